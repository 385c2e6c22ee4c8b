//! The times of a plan's kernels; kernels that do the same count as one.

use super::{Plan, print::Line};
use crate::program::Program;

/// Kernels that do the same to different memory, and their time together. The texts are those of [`Plan::describe`].
#[derive(Clone, PartialEq, Debug)]
pub struct Cost {
    /// Their positions in the plan, ascending.
    pub kernels: Vec<usize>,
    /// Their time, in seconds.
    pub seconds: f64,
    /// The arithmetic that they do: see [`Kernel::flops`](super::Kernel::flops).
    pub flops: usize,
    /// The bytes that they read and write: see [`Plan::traffic`].
    pub bytes: usize,
    /// Their kind.
    pub kernel: String,
    /// The space of each.
    pub over: String,
    /// The computation of each.
    pub computes: String,
    /// The writes of the first, and its reads.
    pub operands: String,
    /// The scope that they were recorded in. Where it is not the same for all, the turns of loops are left out: `block[]/ffn`.
    pub recorded_in: String,
}

impl Cost {
    fn new((seconds, flops, bytes): (f64, usize, usize), k: usize, line: Line) -> Self {
        let [kernel, over, _, _, operands, computes, recorded_in] = line.cells;
        Self { kernels: vec![k], seconds, flops, bytes, kernel, over, computes, operands, recorded_in }
    }
}

impl Plan {
    /// The times of a run, the longest first. `program` is the one that the plan was made of, and
    /// `seconds[k]` the time of kernel `k`. Kernels are added up if they have the same kind, operations and shapes, and
    /// their scopes differ in no more than the turns of loops: those of all layers of a network that are alike.
    ///
    /// # Panics
    /// If there are not as many times as kernels.
    #[track_caller]
    pub fn costs(&self, program: &Program, seconds: &[f64]) -> Vec<Cost> {
        assert_eq!(seconds.len(), self.kernels.len(), "each kernel of the plan has a time");
        let described = self.describe(program);
        let mut costs: Vec<(String, Cost)> = vec![];
        for (k, (kernel, &seconds)) in self.kernels.iter().zip(seconds).enumerate() {
            let (flops, bytes) = (kernel.flops(), self.traffic(kernel));
            let line = described.line(kernel);
            match costs.iter_mut().find(|(same, _)| *same == line.same) {
                None => costs.push((line.same.clone(), Cost::new((seconds, flops, bytes), k, line))),
                Some((_, cost)) => {
                    cost.kernels.push(k);
                    cost.seconds += seconds;
                    cost.flops += flops;
                    cost.bytes += bytes;
                    if cost.recorded_in != line.cells[6] {
                        cost.recorded_in = line.scope;
                    }
                }
            }
        }
        let mut costs: Vec<Cost> = costs.into_iter().map(|(_, cost)| cost).collect();
        costs.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        costs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Array, DType, Store, Tape, Tensor,
        plan::{Grouping, Kernel},
    };
    use approx::assert_abs_diff_eq;
    use std::sync::Arc;

    /// Three layers of one shape with weights of their own, a fourth of another shape, and a sum.
    fn layers() -> (Program, Plan) {
        let mut store = Store::new();
        let mut weight =
            |i: usize, shape: [usize; 2]| store.param(&format!("layer/{i}"), &Array::zeros(shape, DType::F32));
        let weights = [weight(0, [8, 8]), weight(1, [8, 8]), weight(2, [8, 8]), weight(3, [8, 4])];
        let tape = Tape::new(Arc::new(store.layout().clone()));
        let x = tape.input("x", [16, 8], DType::F32);
        let turn = |x, (i, &w)| tape.scoped_turn("layer", i, || Tensor::matmul(x, tape.param(w)).tanh());
        tape.tap("sum", weights.iter().enumerate().fold(x, turn).sum());
        let program = tape.finish();
        let plan = Plan::with(&program, &Grouping::default());
        (program, plan)
    }

    #[test]
    fn kernels_that_do_the_same_are_added_up_and_the_longest_come_first() {
        let (program, plan) = layers();
        let described = plan.describe(&program).to_string();
        assert_eq!(
            plan.kernels.iter().map(Kernel::name).collect::<Vec<_>>(),
            ["matmul"; 4].into_iter().chain(["reduce"]).collect::<Vec<_>>(),
            "{described}"
        );
        let costs = plan.costs(&program, &[1.0, 2.0, 4.0, 0.5, 16.0]);
        let of = |cost: &Cost| (cost.kernel.clone(), cost.kernels.clone(), cost.seconds, cost.recorded_in.clone());
        assert_eq!(
            costs.iter().map(of).collect::<Vec<_>>(),
            [
                ("reduce".into(), vec![4], 16.0, String::new()),
                ("matmul".into(), vec![0, 1, 2], 7.0, "layer[]".into()),
                ("matmul".into(), vec![3], 0.5, "layer[3]".into()),
            ],
            "{described}"
        );
        let matmuls = &costs[1];
        // Products, and a tanh of each element; two matrices are read, and one is written.
        assert_eq!((matmuls.flops, matmuls.bytes), (3 * (2 * 16 * 8 * 8 + 16 * 8), 3 * 4 * (16 * 8 + 8 * 8 + 16 * 8)));
        assert_eq!((matmuls.over.as_str(), matmuls.computes.as_str()), ("16x8 by 8x8", "then tanh"));
    }

    #[test]
    fn nothing_is_lost() {
        let (program, plan) = layers();
        let seconds: Vec<f64> = (0..plan.kernels.len()).map(|k| 1.0 / (1 + k) as f64).collect();
        let costs = plan.costs(&program, &seconds);
        let mut kernels: Vec<usize> = costs.iter().flat_map(|cost| cost.kernels.clone()).collect();
        kernels.sort_unstable();
        assert_eq!(kernels, (0..plan.kernels.len()).collect::<Vec<_>>());
        let [have, want] = [costs.iter().map(|cost| cost.seconds).sum::<f64>(), seconds.iter().sum()];
        assert_abs_diff_eq!(have, want, epsilon = 1e-12);
        assert_eq!(costs.iter().map(|cost| cost.flops).sum::<usize>(), plan.kernels.iter().map(Kernel::flops).sum());
        assert_eq!(costs.iter().map(|c| c.bytes).sum::<usize>(), plan.kernels.iter().map(|k| plan.traffic(k)).sum());
        assert!(costs.is_sorted_by(|a, b| a.seconds >= b.seconds));
    }

    #[test]
    #[should_panic(expected = "each kernel of the plan has a time")]
    fn a_time_for_each_kernel() {
        let (program, plan) = layers();
        let _ = plan.costs(&program, &[1.0]);
    }
}
