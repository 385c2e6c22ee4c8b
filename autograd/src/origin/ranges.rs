//! The ranges of all values of a run, measured on its device.

use super::{
    ValueRange,
    rewriting::{Rewriting, TOGETHER, aside},
};
use crate::{
    Array, DType, Shape,
    error::Result,
    node::{Node, NodeId},
    op::{Op, Reduce, Unary},
    program::Program,
    recorded::TapDecl,
    session::Session,
};

/// The measures of a value: the number of elements that are not NaN, the number of finite ones, the smallest of these negated, and
/// the largest.
const MEASURES: usize = 4;

impl Rewriting {
    /// Records the measures of a value.
    fn measure(&mut self, value: NodeId, like: &Node) -> [NodeId; MEASURES] {
        let (shape, dtype) = (&like.shape, DType::F32);
        let value = match like.dtype {
            DType::F32 => value,
            _ => self.push(Op::Cast(dtype), &[value], shape, dtype, like),
        };
        // The tanh of an infinity is finite, and that of NaN is NaN.
        let tanh = self.push(Op::Unary(Unary::Tanh), &[value], shape, dtype, like);
        let number = self.push(Op::Unary(Unary::IsFinite), &[tanh], shape, DType::Bool, like);
        let finite = self.push(Op::Unary(Unary::IsFinite), &[value], shape, DType::Bool, like);
        let none = self.filled(f64::NEG_INFINITY, shape, dtype, like);
        let turned = self.push(Op::Unary(Unary::Neg), &[value], shape, dtype, like);
        let [numbers, finites] = [number, finite].map(|is| self.push(Op::Cast(dtype), &[is], shape, dtype, like));
        let [low, high] = [turned, value].map(|of| self.push(Op::Select, &[finite, of, none], shape, dtype, like));
        [(Reduce::Sum, numbers), (Reduce::Sum, finites), (Reduce::Max, low), (Reduce::Max, high)].map(|(reduce, of)| {
            if shape.rank() == 0 {
                return of;
            }
            let all = (0..shape.rank()).collect();
            self.push(Op::Reduce(reduce, all), &[of], &Shape::scalar(), dtype, like)
        })
    }
}

/// The same values, each followed by its measures, in place of commits and taps; and the nodes that are measured.
fn measured(program: &Program) -> (Program, Vec<NodeId>) {
    let live = program.live();
    let (mut rewriting, mut of, mut measures) = (Rewriting::default(), vec![], vec![]);
    rewriting.copy(program, &mut |rewriting, id, value| {
        let node = program.node(id);
        if live[id.index()] && node.dtype.is_float() && node.shape.numel() > 0 {
            of.push(id);
            measures.extend(rewriting.measure(value, node));
        }
    });
    let taps: Vec<TapDecl> = measures
        .chunks(TOGETHER)
        .enumerate()
        .map(|(at, together)| rewriting.together(format!("ranges/{at}"), together, program))
        .collect();
    (aside(Program { nodes: rewriting.nodes, ..program.clone() }, taps), of)
}

impl Session {
    /// The ranges of a program's values, by node, computed from the states as they are and measured on the device, in f32. `None`
    /// of a node that is not used, is not of floats, or has no element. Nothing is committed, and no other run is affected.
    ///
    /// It takes the time and memory of a run without fused kernels, once, and a compilation. Ranks call it together.
    ///
    /// ```
    /// # use wgrad::{Array, DType, Session};
    /// # fn look(session: &mut Session) -> Result<(), wgrad::Error> {
    /// let step = session.record(|t| t.tap("sum", t.input("x", [3], DType::F32).log().sum()))?;
    /// let x = Array::new([3], vec![1f32, 0.0, 4.0]);
    /// let ranges = session.ranges(&step, &[("x", &x)])?;
    /// let log = step.taps()[0].node.index() - 1;
    /// assert!(ranges[log].is_some_and(|range| range.infinite == 1 && range.low == 0.0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::compile`] and [`Session::run`], but for errors of earlier runs, which the next run reports.
    pub fn ranges(&mut self, program: &Program, inputs: &[(&str, &Array)]) -> Result<Vec<Option<ValueRange>>> {
        let (measuring, of) = measured(program);
        let step = self.compile(measuring)?;
        let taps = self.run_aside(&step, inputs)?;
        let measures: Vec<f64> = taps.iter().flat_map(|(_, value)| value.to_f64()).collect();
        let mut ranges = vec![None; program.nodes().len()];
        for (id, measures) in of.iter().zip(measures.chunks(MEASURES)) {
            let elements = program.node(*id).shape.numel();
            let [numbers, finites] = [measures[0], measures[1]].map(|count| count as usize);
            ranges[id.index()] = Some(ValueRange {
                elements,
                nan: elements.saturating_sub(numbers),
                infinite: numbers.saturating_sub(finites),
                low: -measures[2],
                high: measures[3],
            });
        }
        Ok(ranges)
    }
}
