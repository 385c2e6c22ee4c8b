//! Sums that need not wait for other sums of their row.
//!
//! The mean's gradient in a normalisation is the sum of `r g + c d` over a row, where `r` and `c` follow from sums of `g` and
//! `d` themselves. Written as `r sum(g) + c sum(d)` it waits for nothing, and the row is walked once less. The rounding error is
//! bounded as before: by some units in the last place of the sum of the summands' magnitudes, `|r| sum(|g|) + |c| sum(|d|)`.

use super::{Body, Instr, Level, Value};
use crate::{
    DType,
    op::{Binary, Reduce, Unary},
};

/// The most sums that one becomes.
const MOST: usize = 3;

/// A body with sums over values that are ready earlier, if rows are then walked less often; else the body as it is.
pub(super) fn earlier(body: Body) -> Body {
    let passes = body.passes();
    if passes < 2 {
        return body;
    }
    let apart = with_rows_apart(body.clone());
    let depths = apart.depths();
    let (mut values, mut new) = (vec![], vec![]);
    for value in &apart.values {
        let terms = match value.instr {
            Instr::Reduce(Reduce::Sum, x) => Linear::new(&apart, &depths, x).terms,
            _ => None,
        };
        new.push(match terms {
            Some(terms) => sum_of(&terms, value.dtype, &new, &mut values),
            None => push(&mut values, Value { instr: value.instr.renumbered(|o| new[o]), ..value.clone() }),
        });
    }
    let stores = apart.stores.iter().map(|&v| new[v]).collect();
    let rewritten = Body { values, stores, ..apart }.without_unused();
    if rewritten.passes() < passes { rewritten } else { body }
}

/// Makes values of elements that depend on values of rows alone into values of rows, except those that are summed or stored.
fn with_rows_apart(mut body: Body) -> Body {
    if body.segments.is_some() {
        return body;
    }
    let mut fixed = body.stores.clone();
    fixed.extend(body.values.iter().filter_map(|value| match value.instr {
        Instr::Reduce(_, x) => Some(x),
        _ => None,
    }));
    for v in (0..body.values.len()).filter(|v| !fixed.contains(v)) {
        let elementwise = matches!(body.values[v].instr, Instr::Unary(..) | Instr::Binary(..) | Instr::Select(..));
        if elementwise && body.values[v].instr.operands().all(|o| body.values[o].level == Level::Row) {
            body.values[v].level = Level::Row;
        }
    }
    body
}

/// A summand: a value of elements times and over values of rows.
struct Term {
    of: usize,
    factors: Vec<(Binary, usize)>,
    negative: bool,
}

/// A value of elements as a sum of values that are ready before it.
struct Linear<'a> {
    body: &'a Body,
    depths: &'a [usize],
    of: usize,
    terms: Option<Vec<Term>>,
}

impl<'a> Linear<'a> {
    fn new(body: &'a Body, depths: &'a [usize], of: usize) -> Self {
        let float = matches!(body.values[of].dtype, DType::F32 | DType::F64);
        let mut this = Self { body, depths, of, terms: (float && depths[of] > 0).then(Vec::new) };
        this.add(of, &[], false);
        this
    }

    /// Adds a value times factors, or gives up.
    fn add(&mut self, v: usize, factors: &[(Binary, usize)], negative: bool) {
        let Some(terms) = &mut self.terms else { return };
        let value = &self.body.values[v];
        let with = |op: Binary, row: usize| [factors, &[(op, row)]].concat();
        match value.instr {
            _ if value.level == Level::Row || value.dtype != self.body.values[self.of].dtype => self.terms = None,
            _ if self.depths[v] < self.depths[self.of] && terms.len() < MOST => {
                terms.push(Term { of: v, factors: factors.to_vec(), negative });
            }
            Instr::Unary(Unary::Neg, a) => self.add(a, factors, !negative),
            Instr::Binary(op @ (Binary::Add | Binary::Sub), a, b) => {
                self.add(a, factors, negative);
                self.add(b, factors, negative != (op == Binary::Sub));
            }
            Instr::Binary(op @ (Binary::Mul | Binary::Div), a, b) => match [a, b].map(|v| self.of_rows(v)) {
                [_, Some(row)] => self.add(a, &with(op, row), negative),
                [Some(row), None] if op == Binary::Mul => self.add(b, &with(op, row), negative),
                _ => self.terms = None,
            },
            _ => self.terms = None,
        }
    }

    /// The value of rows that a value repeats.
    fn of_rows(&self, v: usize) -> Option<usize> {
        match self.body.values[v] {
            Value { level: Level::Row, .. } => Some(v),
            Value { instr: Instr::Spread(row), .. } => Some(row),
            _ => None,
        }
    }
}

/// The sum of terms, of which there is at least one.
fn sum_of(terms: &[Term], dtype: DType, new: &[usize], values: &mut Vec<Value>) -> usize {
    let row = |instr| Value { instr, dtype, level: Level::Row };
    let mut total: Option<usize> = None;
    for Term { of, factors, negative } in terms {
        let sum = Instr::Reduce(Reduce::Sum, new[*of]);
        let known = values.iter().position(|value| value.instr == sum);
        let mut term = known.unwrap_or_else(|| push(values, row(sum)));
        for &(op, factor) in factors {
            term = push(values, row(Instr::Binary(op, term, new[factor])));
        }
        total = Some(match (total, negative) {
            (None, false) => term,
            (None, true) => push(values, row(Instr::Unary(Unary::Neg, term))),
            (Some(total), false) => push(values, row(Instr::Binary(Binary::Add, total, term))),
            (Some(total), true) => push(values, row(Instr::Binary(Binary::Sub, total, term))),
        });
    }
    total.expect("a sum has summands")
}

fn push(values: &mut Vec<Value>, value: Value) -> usize {
    values.push(value);
    values.len() - 1
}

#[cfg(test)]
mod tests {
    use crate::{
        DType, Tape, Tensor,
        plan::{Kernel, Kind, Plan},
    };

    /// The greatest number of walks of a program's kernels over the rows of a matrix.
    fn passes(dtype: DType, record: fn(Tensor<'_>) -> Tensor<'_>) -> usize {
        let t = Tape::default();
        t.tap("y", record(t.input("x", [6, 5], dtype)));
        let of = |kernel: &Kernel| match &kernel.kind {
            Kind::Loop(body) => body.passes(),
            _ => 0,
        };
        Plan::new(&t.finish()).kernels.iter().map(of).max().expect("a kernel")
    }

    /// One sum for each row, as a column.
    fn total(x: Tensor<'_>) -> Tensor<'_> {
        x.sum_axes(&[1]).reshape([6, 1])
    }

    #[test]
    fn what_is_linear_in_what_is_there_earlier_is_summed_up_earlier() {
        let one_walk: [fn(Tensor<'_>) -> Tensor<'_>; 5] = [
            |x| total(x.exp() / total(x)),
            |x| total(total(x) * x.exp()),
            |x| total(-(x.exp() * total(x))),
            |x| total(x.exp() * total(x) - x.tanh()),
            |x| total(x * total(x) + (x.exp() - x.tanh()) / total(x)),
        ];
        for (i, record) in one_walk.into_iter().enumerate() {
            assert_eq!([DType::F32, DType::F64].map(|dtype| passes(dtype, record)), [1, 1], "{i}");
        }
        let gradient: fn(Tensor<'_>) -> Tensor<'_> = |x| {
            let centred = x - total(x) / 5.0;
            let y = centred * (total(centred.square()) / 5.0 + 1e-5).rsqrt();
            y.vjp(x.tanh(), &[x])[0].expect("it depends on it")
        };
        assert_eq!(passes(DType::F32, gradient), 2);
    }

    #[test]
    fn what_is_not_linear_waits() {
        let two_walks: [fn(Tensor<'_>) -> Tensor<'_>; 4] = [
            |x| total((x - total(x)).square()),
            |x| total((x * total(x)).exp()),
            |x| total(total(x) / x),
            // More sums than it is worth.
            |x| total(x * total(x) + x.exp() + x.tanh() + x.abs()),
        ];
        for (i, record) in two_walks.into_iter().enumerate() {
            assert_eq!(passes(DType::F32, record), 2, "{i}");
        }
        assert_eq!(passes(DType::F32, |x| total(x - total(x))), 2, "a row's own value is no summand");
    }
}
