//! Sequence ops as kernels of a plan: what they read and write, for the loops of [`crate::sequence`].

use super::Sequence;
use crate::{
    memory::{
        elements::{Env, Source, aligned_mut},
        scratch::{Files, Workers},
    },
    simd::float::Real,
    threads::team::Team,
};
use wgrad::{
    DType, Shape,
    op::Op,
    plan::{Kernel, Operand},
};

/// The most inputs, and outputs, that a sequence op has.
const INPUTS: usize = 6;
const OUTPUTS: usize = 3;

/// A stretch of memory: where it is, its first element, and its length.
type Stretch = (Source, usize, usize);

/// A sequence op over contiguous reads.
#[derive(Debug)]
pub(crate) struct Recurrence {
    sequence: Sequence,
    reads: Vec<Stretch>,
    writes: Vec<Stretch>,
    scratch: usize,
    dtype: DType,
}

impl Recurrence {
    pub fn new(op: &Op, kernel: &Kernel, source: &dyn Fn(&Operand) -> Source, dtype: DType, files: &mut Files) -> Self {
        let shapes: Vec<&Shape> = kernel.reads.iter().map(|read| &read.shape).collect();
        let sequence = Sequence::new(op, &shapes).expect("a sequence op: no other fused op is claimed");
        let stretch = |o: &Operand| {
            assert!(o.is_contiguous(), "a fused op reads and writes contiguous memory");
            (source(o), o.offset, o.shape.numel())
        };
        Self {
            scratch: files.take(dtype, sequence.scratch()),
            sequence,
            reads: kernel.reads.iter().map(stretch).collect(),
            writes: kernel.writes.iter().map(stretch).collect(),
            dtype,
        }
    }

    /// Runs the op.
    pub fn run(&self, env: Env, workers: &Workers, team: &Team) {
        match self.dtype {
            DType::F64 => self.run_in::<f64>(env, workers, team),
            DType::F32 => self.run_in::<f32>(env, workers, team),
            dtype => unreachable!("sequences of {dtype} are not claimed"),
        }
    }

    fn run_in<T: Real>(&self, env: Env, workers: &Workers, team: &Team) {
        let mut inputs: [&[T]; INPUTS] = [&[]; INPUTS];
        for (input, &(source, start, len)) in inputs.iter_mut().zip(&self.reads) {
            if !matches!(source, Source::Target(_)) {
                *input = &T::slice(env.data(source))[start..start + len];
            }
        }
        let mut outputs: [&mut [T]; OUTPUTS] = [&mut [], &mut [], &mut []];
        for (output, &(source, start, len)) in outputs.iter_mut().zip(&self.writes) {
            let Source::Target(target) = source else { unreachable!("a kernel writes its targets") };
            // SAFETY: the targets outlive the run; the writes of a kernel do not overlap, and a read of a target is left out.
            *output = unsafe { env.targets[target].part(start, len) };
        }
        let mut scratch = workers.mine();
        let scratch = aligned_mut(T::slice_mut(&mut scratch.registers[self.scratch]));
        let scratch = &mut scratch[..self.sequence.scratch()];
        self.sequence.run(team, scratch, &inputs[..self.reads.len()], &mut outputs[..self.writes.len()]);
    }
}
