//! Attention in one node: the forward pass keeps no scores; the gradient computes them again.
//!
//! ```text
//! s = q k^T scale, minus infinity where a query may not attend
//! l = log(sum(exp(s))), per row
//! p = exp(s - l)             o = p v
//! delta = sum(do * o), per row
//! dp = do v^T                ds = p * (dp - delta)
//! dq = ds k scale            dk = ds^T q scale            dv = p^T do
//! ```
//!
//! (Dao 2023, "FlashAttention-2".) A key that the causal mask removes has weight 0. If the key or its value is
//! non-finite, `0 * inf` is NaN in a kernel that computes the masked score, and does not occur in a kernel that skips
//! it.

use super::{Form, Named, push_all};
use crate::{
    Attention, DType, Shape, Tensor,
    lints::facts::Mark,
    op::{Op, Typed},
};
use serde::{Deserialize, Serialize};

/// The way the scores of attention follow from queries and keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Scores {
    /// True if query `i` may attend to keys 0 to `i` only.
    pub causal: bool,
    /// The bits of the factor of the scores.
    scale: u64,
}

impl Scores {
    /// Scores that are multiplied by `scale`.
    pub fn new(causal: bool, scale: f64) -> Self {
        Self { causal, scale: scale.to_bits() }
    }

    /// The factor of scores.
    pub fn scale(&self) -> f64 {
        f64::from_bits(self.scale)
    }

    /// The same scores, as options of the composition.
    fn options<'t>(&self) -> Attention<'t> {
        Attention { causal: self.causal, scale: Some(self.scale()), ..Attention::default() }
    }

    /// The name of these scores in printed tapes.
    pub(crate) fn attributes(&self) -> String {
        format!("{} scale {}", if self.causal { " causal," } else { "" }, self.scale())
    }
}

pub(super) fn signature(op: &Op) -> Option<(Named, Named)> {
    use Form::{Attended, Keys, Queries, Rows, Values};
    Some(match op {
        Op::Attention(..) => (&[("q", Queries), ("k", Keys), ("v", Values)], &[("o", Attended), ("l", Rows)]),
        Op::AttentionGrad(..) => (
            &[("q", Queries), ("k", Keys), ("v", Values), ("o", Attended), ("l", Rows), ("do", Attended)],
            &[("dq", Queries), ("dk", Keys), ("dv", Values)],
        ),
        _ => return None,
    })
}

/// The shape and type of a result.
pub(super) fn infer(op: &Op, x: &[Typed]) -> Result<Typed, String> {
    let (inputs, outputs) = signature(op).expect("an op of attention");
    if x.len() != inputs.len() {
        return Err(format!("needs {} inputs", inputs.len()));
    }
    let (q, k, v) = (&x[0].0, &x[1].0, &x[2].0);
    let r = q.rank();
    let fits = r >= 3
        && k.rank() == r
        && q[..r - 3] == k[..r - 3]
        && (q[r - 3] == k[r - 3] || k[r - 3] > 0 && q[r - 3].is_multiple_of(k[r - 3]))
        && q[r - 1] == k[r - 1];
    if !fits {
        return Err(
            "needs queries [.., heads, queries, width] and keys [.., kv_heads, keys, width] of one type, with \
                    heads a multiple of kv_heads"
                .into(),
        );
    }
    if v.rank() != r || v[..r - 1] != k[..r - 1] {
        return Err("needs values [.., kv_heads, keys, value width]".into());
    }
    let dtype = x[0].1;
    let typed = |form: Form| -> Typed {
        match form {
            Form::Queries => (q.clone(), dtype),
            Form::Keys => (k.clone(), dtype),
            Form::Values => (v.clone(), dtype),
            Form::Attended => (q.with(r - 1, v[r - 1]), dtype),
            Form::Rows => (Shape::from(&q[..r - 1]), if dtype == DType::F16 { DType::F32 } else { dtype }),
            _ => unreachable!("forms of sequences"),
        }
    };
    for ((name, form), have) in inputs.iter().zip(x) {
        let (shape, of) = typed(*form);
        if have.0 != shape {
            return Err(format!("{name} must be {shape}, not {}", have.0));
        }
        if have.1 != of || !dtype.is_float() {
            return Err(format!("needs floats of one type, and {name} is {}", have.1));
        }
    }
    Ok(typed(outputs[op.outputs().1].1))
}

/// [`Tensor::attention`] as one op, without a mask tensor and without dropout.
#[track_caller]
pub(crate) fn attention<'t>(scores: Scores, q: Tensor<'t>, k: Tensor<'t>, v: Tensor<'t>) -> Tensor<'t> {
    let o = push_all(|out| Op::Attention(scores, out), &[q, k, v])[0];
    o.tape.mark(o, Mark::Attention);
    o
}

/// All outputs of an op of attention, in primitives; `None` for any other op. Over f16 they are computed in f32 and
/// rounded once.
pub(super) fn decompose<'t>(op: &Op, x: &[Tensor<'t>]) -> Option<Vec<Tensor<'t>>> {
    Some(match op {
        Op::Attention(scores, _) => rounded(x, |x| forward(scores, x)),
        Op::AttentionGrad(scores, _) => rounded(x, |x| backward(scores, x)),
        _ => return None,
    })
}

/// The outputs of an op of attention over f16, computed by the same op over f32; `None` for any other op.
pub(super) fn widened<'t>(op: &Op, x: &[Tensor<'t>]) -> Option<Vec<Tensor<'t>>> {
    Some(match op {
        Op::Attention(scores, _) => rounded(x, |x| push_all(|out| Op::Attention(*scores, out), x)),
        Op::AttentionGrad(scores, _) => rounded(x, |x| push_all(|out| Op::AttentionGrad(*scores, out), x)),
        _ => return None,
    })
}

/// The results of a function over widened inputs, cast to the type of the first input. The values per row (`l`) stay
/// wide.
#[track_caller]
fn rounded<'t>(x: &[Tensor<'t>], f: impl FnOnce(&[Tensor<'t>]) -> Vec<Tensor<'t>>) -> Vec<Tensor<'t>> {
    let wide: Vec<Tensor<'t>> = x.iter().map(|x| x.cast(x.wide())).collect();
    f(&wide).into_iter().map(|y| if y.rank() == x[0].rank() { y.cast(x[0].dtype()) } else { y }).collect()
}

fn forward<'t>(scores: &Scores, x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let [q, k, v] = *x else { panic!("three inputs") };
    let (weights, l) = q.attention_scores(k, &scores.options()).weights();
    vec![weights.attend(v), l]
}

fn backward<'t>(scores: &Scores, x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let [q, k, v, o, l, d_o] = *x else { panic!("six inputs") };
    let s = q.attention_scores(k, &scores.options());
    let (shape, last) = (s.shape(), s.rank() - 1);
    let p = (s - l.unreduce(&[last], &shape)).exp();
    let delta = (d_o * o).sum_axes(&[last]);
    let dp = d_o.shared(k).matmul_t(v).reshape(&shape);
    let ds = p * (dp - delta.unreduce(&[last], &shape));
    let (p, ds) = (p.shared(k), ds.shared(k));
    let dq = ds.matmul(k).reshape(q.shape()) * scores.scale();
    let dk = ds.matmul_with((q * scores.scale()).shared(k), true, false);
    vec![dq, dk, p.matmul_with(d_o.shared(k), true, false)]
}

/// The gradient rule of attention is its gradient op. `None` for a gradient op, and if a gradient flows back to `l`,
/// which only gradient ops read.
pub(super) fn vjp<'t>(
    op: &Op,
    y: &[Tensor<'t>],
    x: &[Tensor<'t>],
    g: &[Option<Tensor<'t>>],
) -> Option<Vec<Option<Tensor<'t>>>> {
    let (Op::Attention(scores, _), &[Some(d_o), None]) = (op, g) else { return None };
    let given = push_all(|out| Op::AttentionGrad(*scores, out), &[x[0], x[1], x[2], y[0], y[1], d_o]);
    Some(given.into_iter().map(Some).collect())
}
