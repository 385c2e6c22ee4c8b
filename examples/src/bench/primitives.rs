//! Workload w7: single operations, three of them with their gradients.

use super::{
    command::Bench,
    data::{Draw, Source},
    measure::{self, Losses},
};
use crate::{Result, interrupt};
use std::time::Instant;
use wgrad::{Array, Attention, Conv2d, Session, StateId, Store, Tape, Tensor};

/// An operation, and the tensors that it reads.
pub struct Primitive {
    /// The name of the result.
    pub name: &'static str,
    tensors: &'static [(&'static str, &'static [usize], Draw)],
    /// Records the operation; returns the output, then the gradients in the order of the inputs.
    record: for<'t> fn(&[Tensor<'t>]) -> Vec<Tensor<'t>>,
}

const NORMAL: Draw = Draw::Normal(0.0, 1.0);
/// A matrix with a row for each softmax or normalisation.
const ROWS: [usize; 2] = [4096, 1024];
const FEATURES: [usize; 1] = [ROWS[1]];
/// The batch, the heads, the positions and the width of a head.
const HEADS: [usize; 4] = [8, 6, 256, 64];
/// The batch, the channels, the height and the width.
const IMAGES: [usize; 4] = [16, 64, 32, 32];
/// The default of PyTorch.
const LAYER_NORM_EPS: f64 = 1e-5;

/// All operations of w7.
pub const PRIMITIVES: [Primitive; 8] = [
    Primitive {
        name: "w7_matmul512",
        tensors: &[("mm512.a", &[512, 512], NORMAL), ("mm512.b", &[512, 512], NORMAL)],
        record: matmul,
    },
    Primitive {
        name: "w7_matmul1024",
        tensors: &[("mm1024.a", &[1024, 1024], NORMAL), ("mm1024.b", &[1024, 1024], NORMAL)],
        record: matmul,
    },
    Primitive {
        name: "w7_matmul2048",
        tensors: &[("mm2048.a", &[2048, 2048], NORMAL), ("mm2048.b", &[2048, 2048], NORMAL)],
        record: matmul,
    },
    Primitive { name: "w7_softmax", tensors: &[("rows", &ROWS, NORMAL)], record: |x| vec![x[0].softmax(1)] },
    Primitive {
        name: "w7_layernorm",
        tensors: &[
            ("rows", &ROWS, NORMAL),
            ("ln.g", &FEATURES, Draw::Normal(1.0, 0.1)),
            ("ln.b", &FEATURES, NORMAL),
            ("ln.dy", &ROWS, NORMAL),
        ],
        record: layer_norm,
    },
    Primitive { name: "w7_sum16m", tensors: &[("sum16m", &[16 << 20], NORMAL)], record: |x| vec![x[0].sum()] },
    Primitive {
        name: "w7_attn",
        tensors: &[
            ("attn.q", &HEADS, NORMAL),
            ("attn.k", &HEADS, NORMAL),
            ("attn.v", &HEADS, NORMAL),
            ("attn.d", &HEADS, NORMAL),
        ],
        record: attention,
    },
    Primitive {
        name: "w7_conv",
        tensors: &[
            ("conv.x", &IMAGES, NORMAL),
            ("conv.w", &[64, 64, 3, 3], Draw::Normal(0.0, 0.05)),
            ("conv.dy", &IMAGES, NORMAL),
        ],
        record: convolution,
    },
];

fn matmul<'t>(x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    vec![x[0].matmul(x[1])]
}

/// Layer normalisation (Ba, Kiros & Hinton 2016), forward and backward, composed of elementary operations.
fn layer_norm<'t>(tensors: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let [x, gain, bias, dy] = *tensors else { panic!("layer norm takes x, gain, bias and dy") };
    let column = |of_rows: Tensor<'t>| of_rows.reshape([ROWS[0], 1]);
    let (mean, variance) = (column(x.mean_axes(&[1])), column(x.var_axes(&[1])));
    let y = (x - mean) * (variance + LAYER_NORM_EPS).sqrt().recip() * gain + bias;
    with_gradients(y, dy, &[x, gain, bias])
}

/// Causal attention, forward and backward.
fn attention<'t>(tensors: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let [q, k, v, dy] = *tensors else { panic!("attention takes queries, keys, values and dy") };
    let y = q.attention(k, v, &Attention { causal: true, ..Attention::default() });
    with_gradients(y, dy, &[q, k, v])
}

/// A 3x3 convolution, forward and backward.
fn convolution<'t>(tensors: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let [x, w, dy] = *tensors else { panic!("a convolution takes x, weights and dy") };
    with_gradients(x.conv2d(w, Conv2d::same(3)), dy, &[x, w])
}

/// `y`, and the gradients of the tensors `of`, with `dy` as the cotangent of `y`.
fn with_gradients<'t>(y: Tensor<'t>, dy: Tensor<'t>, of: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let gradients = y.vjp(dy, of);
    [Some(y)].into_iter().chain(gradients).map(|value| value.expect("y depends on each of them")).collect()
}

/// Times all selected operations, and prints their results.
///
/// # Errors
/// If the data is missing, or the device fails.
pub fn run(bench: &Bench<'_>, mut source: Source) -> Result<()> {
    let rss_base = measure::peak_rss();
    for primitive in PRIMITIVES.iter().filter(|primitive| bench.wants(primitive.name)) {
        if interrupt::requested() {
            break;
        }
        primitive.run(bench, &mut source, rss_base)?;
    }
    Ok(())
}

impl Primitive {
    fn run(&self, bench: &Bench<'_>, source: &mut Source, rss_base: Option<f64>) -> Result<()> {
        let mut store = Store::new();
        let mut states = vec![];
        for &(name, shape, draw) in self.tensors {
            states.push(store.state(name, &source.floats(name, shape, draw)?));
        }
        let mut session = bench.session(store)?;
        let start = Instant::now();
        let step =
            session.record(|t| self.values(t, &states).into_iter().for_each(|value| tap_one_element(t, value)))?;
        let call = |session: &mut Session| {
            session.run(&step, &[])?;
            session.wait()?;
            session.taps()?;
            Ok(())
        };
        // An operation gets a third of a workload's time, because there are several operations.
        let budget = bench.budget / 3;
        let Some(timing) = measure::calls(budget, start.elapsed(), || call(&mut session))? else { return Ok(()) };
        let losses = self.digests(&mut session, &states)?;
        bench.show(self.name, &timing, losses, rss_base);
        bench.profile(self.name, (&mut session, &step), budget, call)
    }

    /// The digests of the output and of the first input's gradient. A separate run taps both in full.
    fn digests(&self, session: &mut Session, states: &[StateId]) -> Result<Losses> {
        let step = session.record(|t| {
            for (name, value) in ["output", "gradient"].into_iter().zip(self.values(t, states)) {
                t.tap(name, value);
            }
        })?;
        session.run(&step, &[])?;
        session.wait()?;
        let taps = session.taps()?;
        let mut digests = taps.last().expect("the run has ended").iter().map(|(_, value)| digest(value));
        Ok((digests.next(), digests.next()))
    }

    fn values<'t>(&self, t: &'t Tape, states: &[StateId]) -> Vec<Tensor<'t>> {
        (self.record)(&states.iter().map(|&state| t.state(state)).collect::<Vec<_>>())
    }
}

/// Taps one element of a value. The kernel computes the whole value, but only this element is copied to the host.
fn tap_one_element(t: &Tape, value: Tensor<'_>) {
    let corner = (0..value.rank()).fold(value, |corner, axis| corner.slice(axis, 0, 1));
    t.tap_each("element", corner);
}

/// The number that compares a result between frameworks: the mean square of the elements, or a scalar itself.
fn digest(value: &Array) -> f64 {
    let values = value.to_f64();
    if value.shape().rank() == 0 { values[0] } else { values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64 }
}
