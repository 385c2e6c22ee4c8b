//! Convolutions and their gradients, as direct sums; for 3x3 weights of many channels in fewer multiplications
//! ([`winograd`]).
//!
//! A block of an image is copied once, with zeros around it, into scratch that fits into a cache. There every element of
//! the kernel reads at a fixed distance from the current position, so a vector of neighbouring positions is one load. Nothing
//! is copied once for each element of the kernel, as a matrix product would need. Tiles of sums stay in
//! registers: some channels by a few vectors of positions; for a weight gradient, some channels by a few elements of
//! the kernel. Strides are taken out by taking images apart ([`lattice`]). f16 values are widened as they are copied, and
//! their sums are rounded once.
//!
//! Padding takes part as zeros: beside it, a weight that is infinite gives NaN.

mod correlate;
mod lattice;
mod pack;
mod tile;
mod weights;
mod winograd;

use crate::simd::float::Stored;
use crate::{
    memory::{
        elements::{Env, Source},
        scratch::{Files, Workers},
        sizes::Sizes,
    },
    threads::pool::Pool,
};
use correlate::Correlation;
use lattice::Walk;
use weights::Weights;
use wgrad::{
    Conv2d, DType, f16,
    op::Op,
    plan::{Kernel, Operand},
};
use winograd::Winograd;

/// The shapes of a convolution.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    images: usize,
    groups: usize,
    /// Channels of results, and of images, of one group.
    channels: [usize; 2],
    /// The extents of images, and of results.
    image: [usize; 2],
    result: [usize; 2],
    walks: [Walk; 2],
}

impl Geometry {
    fn new(conv: &Conv2d, image: &[usize], weights: &[usize], result: &[usize]) -> Self {
        let walk = |d: usize| Walk {
            stride: conv.stride[d],
            padding: conv.padding[d],
            dilation: conv.dilation[d],
            kernel: weights[2 + d],
        };
        Self {
            images: image[0],
            groups: conv.groups,
            channels: [weights[0] / conv.groups, weights[1]],
            image: [image[2], image[3]],
            result: [result[2], result[3]],
            walks: [walk(0), walk(1)],
        }
    }

    /// The elements of an image's plane, or of a result's.
    fn plane(&self, image: bool) -> usize {
        if image { self.image } else { self.result }.iter().product()
    }

    /// The multiplications.
    fn work(&self) -> usize {
        let kernel: usize = self.walks.iter().map(|walk| walk.kernel).product();
        let positions: usize = self.result.iter().product();
        self.images * self.groups * self.channels.iter().product::<usize>() * kernel * positions
    }
}

/// The operation.
#[derive(Debug)]
enum Body {
    Correlation(Correlation),
    Weights(Weights),
    Winograd(Winograd),
    WinogradWeights(winograd::Weights),
}

/// A convolution, or one of its gradients, over contiguous reads.
#[derive(Debug)]
pub(crate) struct Convolution {
    body: Body,
    /// The place of each read, its first element and its length.
    reads: [(Source, usize, usize); 2],
    write: (Source, usize),
    dtype: DType,
}

impl Convolution {
    /// Prepares one of the three ops; nothing for any other.
    pub fn new(
        op: &Op,
        kernel: &Kernel,
        source: &dyn Fn(&Operand) -> Source,
        dtype: DType,
        sizes: Sizes,
        files: &mut Files,
    ) -> Option<Self> {
        let (x, write) = (&kernel.reads, &kernel.writes[0]);
        let geometry = match op {
            Op::Conv2d(conv) => Geometry::new(conv, &x[0].shape, &x[1].shape, &write.shape),
            Op::ConvInputGrad(conv, _) => Geometry::new(conv, &write.shape, &x[1].shape, &x[0].shape),
            Op::ConvWeightGrad(conv, _) => Geometry::new(conv, &x[1].shape, &write.shape, &x[0].shape),
            _ => return None,
        };
        let body = match dtype {
            DType::F64 => Body::new::<f64>(op, geometry, sizes, files),
            DType::F16 => Body::new::<f16>(op, geometry, sizes, files),
            _ => Body::new::<f32>(op, geometry, sizes, files),
        };
        let reads = [0, 1].map(|i| {
            assert!(x[i].is_contiguous(), "a convolution reads what lies in one piece");
            (source(&x[i]), x[i].offset, x[i].shape.numel())
        });
        Some(Self { body, reads, write: (source(write), write.offset), dtype })
    }

    /// Runs the op.
    pub fn run(&self, env: Env, workers: &Workers, pool: Pool) {
        match self.dtype {
            DType::F64 => self.run_in::<f64>(env, workers, pool),
            DType::F16 => self.run_in::<f16>(env, workers, pool),
            _ => self.run_in::<f32>(env, workers, pool),
        }
    }

    fn run_in<T: Stored>(&self, env: Env, workers: &Workers, pool: Pool) {
        let reads = self.reads.map(|(source, start, len)| &T::slice(env.data(source))[start..][..len]);
        let Source::Target(target) = self.write.0 else { unreachable!("writes are targets") };
        let target = (&env.targets[target], self.write.1);
        match &self.body {
            Body::Correlation(body) => body.run(reads, target, workers, pool),
            Body::Weights(body) => body.run(reads, target, workers, pool),
            Body::Winograd(body) => body.run(reads, target, workers, pool),
            Body::WinogradWeights(body) => body.run(reads, target, workers, pool),
        }
    }
}

impl Body {
    fn new<T: Stored>(op: &Op, geometry: Geometry, sizes: Sizes, files: &mut Files) -> Self {
        if matches!(op, Op::ConvWeightGrad(..)) {
            return match winograd::Weights::new::<T>(geometry, sizes, files) {
                Some(body) => Body::WinogradWeights(body),
                None => Body::Weights(Weights::new::<T>(geometry, sizes, files)),
            };
        }
        let backward = matches!(op, Op::ConvInputGrad(..));
        match Winograd::new::<T>(geometry, backward, sizes, files) {
            Some(body) => Body::Winograd(body),
            None => Body::Correlation(Correlation::new::<T>(geometry, backward, sizes, files)),
        }
    }
}
