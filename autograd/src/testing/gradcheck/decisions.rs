//! Kinks, found by the decisions of a program: if the outcome of a comparison, the winner of a maximum or an integer
//! differs between two points, a kink or a jump lies between them. The steepness of a function does not count.

use super::error::GradcheckError;
use crate::{
    Array, DType, NodeId, Program, Shape, Taps,
    node::Node,
    op::{Binary, Op, Reduce, Segments, Unary},
    recorded::TapDecl,
};
use std::sync::Arc;

/// A program that taps one value, and all decisions on the way there.
pub(super) struct Observed {
    /// The program: its first tap is the value, the others are decisions.
    pub program: Program,
    /// For each decision, the criterion of a switch.
    looks: Vec<Look>,
}

/// The elements of a norm.
enum Over {
    Axes(Box<[usize]>),
    Segments(Arc<Segments>),
}

/// The criterion by which a tapped value has switched between points.
enum Look {
    /// The value differs.
    Differs,
    /// The value is the input of norms: all elements of one norm change sign, or are 0. Anywhere but at 0 a norm is
    /// smooth.
    Vanishes(Over),
}

impl Observed {
    /// Adds taps to a program that taps one value. Fused ops, which would hide decisions, are decomposed; nothing is
    /// committed.
    ///
    /// # Errors
    /// If the program rounds to a narrower type.
    pub fn new(mut program: Program) -> Result<Self, GradcheckError> {
        program.commits.clear();
        let mut observer = Observer { program: program.lowered(false, |_, _| false), looks: vec![] };
        for i in 0..observer.program.nodes.len() {
            observer.node(NodeId(i as u32))?;
        }
        Ok(Self { program: observer.program, looks: observer.looks })
    }

    /// True if a kink or a jump lies between some points.
    pub fn switches(&self, points: &[&Taps]) -> bool {
        let tap = |taps: &Taps, i: usize| taps.iter().nth(i).expect("one value for each tap").1.clone();
        self.looks.iter().enumerate().any(|(i, look)| {
            let values: Vec<Array> = points.iter().map(|taps| tap(taps, i + 1)).collect();
            match look {
                Look::Differs => values.iter().any(|v| *v != values[0]),
                Look::Vanishes(over) => vanishes(&values, over),
            }
        })
    }
}

struct Observer {
    program: Program,
    looks: Vec<Look>,
}

impl Observer {
    fn node(&mut self, id: NodeId) -> Result<(), GradcheckError> {
        let Node { op, inputs, shape, dtype, site, .. } = self.program.node(id).clone();
        let float = |id: NodeId| self.program.node(id).dtype.is_float();
        match &op {
            Op::Unary(Unary::Floor | Unary::Round | Unary::IsFinite)
            | Op::Binary(Binary::Lt | Binary::Eq)
            | Op::ArgMax(_)
            | Op::ArgSort(..) => {
                self.look(id, Look::Differs);
            }
            Op::Cast(to) if float(inputs[0]) && !to.is_float() => self.look(id, Look::Differs),
            Op::Cast(to) if float(inputs[0]) && to.size() < self.program.node(inputs[0]).dtype.size() => {
                return Err(GradcheckError::NotF64 { what: format!("the cast at {site}"), dtype: *to });
            }
            Op::Binary(Binary::Max) if dtype.is_float() => {
                for side in [Binary::Lt, Binary::Eq] {
                    let decided = self.push(Op::Binary(side), &inputs, &shape, DType::Bool);
                    self.look(decided, Look::Differs);
                }
            }
            // A function has different branches on the two sides of a pole.
            Op::Unary(Unary::Recip) => self.sign(inputs[0]),
            Op::Binary(Binary::Div) if dtype.is_float() => self.sign(inputs[1]),
            Op::Reduce(Reduce::Max, axes) if dtype.is_float() => {
                let whole = self.program.node(inputs[0]).shape.clone();
                let kept = axes.iter().fold(whole.clone(), |kept, &axis| kept.with(axis, 1));
                let lifted = self.push(Op::Reshape(kept.clone()), &[id], &kept, dtype);
                let spread = self.push(Op::Expand(whole.clone()), &[lifted], &whole, dtype);
                let winners = self.push(Op::Binary(Binary::Eq), &[inputs[0], spread], &whole, DType::Bool);
                self.look(winners, Look::Differs);
            }
            Op::Reduce(Reduce::Norm, axes) => self.look(inputs[0], Look::Vanishes(Over::Axes(axes.clone()))),
            Op::SegmentReduce(Reduce::Max, segments) if dtype.is_float() => {
                let whole = self.program.node(inputs[0]).shape.clone();
                let spread = self.push(Op::SegmentBroadcast(segments.clone()), &[id], &whole, dtype);
                let winners = self.push(Op::Binary(Binary::Eq), &[inputs[0], spread], &whole, DType::Bool);
                self.look(winners, Look::Differs);
            }
            Op::SegmentReduce(Reduce::Norm, segments) => {
                self.look(inputs[0], Look::Vanishes(Over::Segments(segments.clone())));
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds a decision: true if a value is below 0.
    fn sign(&mut self, x: NodeId) {
        let Node { shape, dtype, .. } = self.program.node(x).clone();
        let mut zero = self.push(Op::Const(0), &[], &Shape::scalar(), dtype);
        if shape.rank() > 0 {
            let ones = Shape::from(vec![1; shape.rank()]);
            zero = self.push(Op::Reshape(ones.clone()), &[zero], &ones, dtype);
            zero = self.push(Op::Expand(shape.clone()), &[zero], &shape, dtype);
        }
        let below = self.push(Op::Binary(Binary::Lt), &[x, zero], &shape, DType::Bool);
        self.look(below, Look::Differs);
    }

    fn push(&mut self, op: Op, inputs: &[NodeId], shape: &Shape, dtype: DType) -> NodeId {
        let of = self.program.nodes.last().expect("the value is a node");
        let (scope, site) = (of.scope, of.site);
        self.program.nodes.push(Node { op, inputs: inputs.into(), shape: shape.clone(), dtype, scope, site });
        NodeId(self.program.nodes.len() as u32 - 1)
    }

    fn look(&mut self, node: NodeId, look: Look) {
        let site = self.program.node(node).site;
        self.program.taps.push(TapDecl { name: format!("decision{}", self.looks.len()), node, site });
        self.looks.push(look);
    }
}

impl Over {
    /// The number of the norm that each element is part of, if there is one, and the count of norms.
    fn groups(&self, shape: &Shape) -> (Vec<Option<usize>>, usize) {
        match self {
            Over::Axes(axes) => {
                let kept: Vec<usize> = (0..shape.rank()).filter(|d| !axes.contains(d)).collect();
                let (strides, within) = (shape.strides(), shape.without(axes));
                let group = |i: usize| {
                    let place = kept.iter().zip(within.strides());
                    place.map(|(&d, s)| i / strides[d] as usize % shape[d] * s as usize).sum::<usize>()
                };
                ((0..shape.numel()).map(|i| Some(group(i))).collect(), within.numel())
            }
            Over::Segments(segments) => {
                let mut groups = vec![None; shape.numel()];
                for (s, &(start, len)) in segments.ranges.iter().enumerate() {
                    groups[start..start + len].fill(Some(s));
                }
                (groups, segments.ranges.len())
            }
        }
    }
}

/// True if, in some norm, an element moves, and all elements change sign or are 0.
fn vanishes(values: &[Array], over: &Over) -> bool {
    let shape = values[0].shape();
    let (groups, count) = over.groups(shape);
    let values: Vec<Vec<f64>> = values.iter().map(Array::to_f64).collect();
    let (mut holds, mut moves) = (vec![false; count], vec![false; count]);
    for (i, group) in groups.into_iter().enumerate() {
        let Some(group) = group else { continue };
        let first = values[0][i];
        let same_sign = |v: &Vec<f64>| (v[i] < 0.0 && first < 0.0) || (v[i] > 0.0 && first > 0.0);
        holds[group] |= values.iter().all(same_sign);
        moves[group] |= values.iter().any(|v| v[i] != first);
    }
    holds.iter().zip(moves).any(|(holds, moves)| !holds && moves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_norm_vanishes_where_nothing_keeps_its_sign() {
        let vanishes = |values: &[Array], axes: &[usize]| super::vanishes(values, &Over::Axes(axes.into()));
        let at = |values: [f64; 4]| Array::new([2, 2], values.to_vec());
        let base = [1.0, -1.0, 1e-9, 0.0];
        let moved = |i: usize, by: f64| {
            let mut values = base;
            values[i] += by;
            vanishes(&[at(base), at(values)], &[1])
        };
        assert!(!moved(0, -3.0), "its neighbour keeps the norm from 0");
        assert!(moved(2, -2e-9), "nothing keeps it");
        assert!(!moved(3, 1.0), "1e-9 keeps it");
        assert!(!vanishes(&[at([0.0; 4]), at([0.0; 4])], &[1]), "nothing moves");
        assert!(vanishes(&[at(base), at([-1.0, 1.0, 1.0, 1.0])], &[1]), "the first row turns");
        assert!(vanishes(&[at(base), at([-1.0, 1.0, 1.0, 1.0])], &[0]), "the second column turns, and was at 0");
        assert!(!vanishes(&[at(base), at([-1.0, -1.0, 1.0, 1.0])], &[0]), "each column has something that stays");
    }
}
