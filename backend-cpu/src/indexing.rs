//! Ops that are kernels by themselves: those that move elements by position, by index or by segment.

use crate::{
    argsort::ArgSort,
    cumsum::CumSum,
    loops::{
        reduce::{self, Monoid, with_monoid},
        view::View,
    },
    memory::{
        elements::{Element, Env, Source, with_type},
        half::{narrow, widen},
        strides::{Nest, at},
    },
    simd::{
        functions::Number,
        lanes::{Lanes, map1},
    },
    threads::pool::Pool,
};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use wgrad::{
    DType, f16,
    op::{Op, Place, Reduce, Segments},
    plan::{Kernel, Operand},
};

/// An index that points outside its axis, and the extent of that axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OutOfRange {
    pub index: u32,
    pub extent: usize,
}

/// An axis that indices point into: its extent and stride.
#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    stride: isize,
}

/// As [`with_type`], for types that can be added up.
macro_rules! with_summand {
    ($dtype:expr, $t:ident => $body:expr) => {{
        macro_rules! run {
            ($type:ty) => {{
                type $t = $type;
                $body
            }};
        }
        match $dtype {
            DType::F64 => run!(f64),
            DType::F32 => run!(f32),
            DType::F16 => run!(wgrad::f16),
            DType::U32 => run!(u32),
            DType::I32 => run!(i32),
            DType::Bool => unreachable!("bools have no arithmetic"),
        }
    }};
}

/// The loops of the op.
#[derive(Debug)]
enum Action {
    Copy(View),
    ArgMax { kept: Nest<1>, axis: Axis },
    ArgSort(ArgSort),
    CumSum(CumSum),
    Assemble { parts: Vec<Nest<2>>, gaps: bool },
    Gather(Nest<2>, Axis),
    ScatterAdd(Nest<3>, Axis, Mutex<Vec<f32>>),
    SegmentReduce { kind: Reduce, segments: Arc<Segments>, offset: usize, stride: isize },
    SegmentBroadcast { segments: Arc<Segments>, offset: usize, stride: isize },
    Fill(Vec<(usize, usize)>),
}

/// An op over strided reads, with one contiguous write.
#[derive(Debug)]
pub(crate) struct Single {
    action: Action,
    reads: Vec<Source>,
    /// The slot's place among the written ones, and the first element.
    write: (Source, usize),
    len: usize,
    dtype: DType,
}

/// Strides without the axis that an index takes the place of, and that axis.
fn split_axis(strides: &[isize], extent: usize, axis: usize) -> (Vec<isize>, Axis) {
    let mut rest = strides.to_vec();
    rest[axis] = 0;
    (rest, Axis { extent, stride: strides[axis] })
}

impl Single {
    /// Zeros in some ranges of a write.
    pub fn fill(ranges: &[(usize, usize)], kernel: &Kernel, source: &dyn Fn(&Operand) -> Source, dtype: DType) -> Self {
        let write = &kernel.writes[0];
        let write = ((source)(write), write.offset);
        Self { action: Action::Fill(ranges.to_vec()), reads: vec![], write, len: kernel.writes[0].shape.numel(), dtype }
    }

    pub fn new(op: &Op, kernel: &Kernel, source: &dyn Fn(&Operand) -> Source, dtype: DType) -> Self {
        let (x, write) = (&kernel.reads, &kernel.writes[0]);
        let out_strides = write.shape.strides();
        let action = match op {
            // This rank's part of an exchange.
            Op::Reshape(_) | Op::Exchange(..) => Action::Copy(View::new(source(&x[0]), &x[0], 0, false)),
            Op::ArgMax(axis) => {
                let without = |v: &[isize]| [&v[..*axis], &v[axis + 1..]].concat();
                let kept = Nest::new(&write.shape, [x[0].offset], [&without(&x[0].strides)]);
                Action::ArgMax { kept, axis: Axis { extent: x[0].shape[*axis], stride: x[0].strides[*axis] } }
            }
            Op::ArgSort(axis, descending) => Action::ArgSort(ArgSort::new(&x[0], &write.shape, *axis, *descending)),
            Op::CumSum { axis, reverse } => Action::CumSum(CumSum::new(&x[0], &write.shape, *axis, *reverse)),
            Op::Assemble { axis, places, .. } => {
                let part = |(place, x): (&Place, &Operand)| {
                    let mut strides = out_strides.clone();
                    let offset = place.start * strides[*axis] as usize;
                    strides[*axis] *= place.step;
                    Nest::new(&x.shape, [x.offset, offset], [&x.strides, &strides])
                };
                let parts: Vec<_> = places.iter().zip(x).map(part).collect();
                let gaps = parts.iter().map(Nest::len).sum::<usize>() < write.shape.numel();
                Action::Assemble { parts, gaps }
            }
            Op::Gather(axis) => {
                let (strides, along) = split_axis(&x[0].strides, x[0].shape[*axis], *axis);
                let offsets = [x[0].offset, x[1].offset];
                Action::Gather(Nest::new(&write.shape, offsets, [&strides, &x[1].strides]), along)
            }
            Op::ScatterAdd { axis, len } => {
                let (strides, along) = split_axis(&out_strides, *len, *axis);
                let offsets = [x[0].offset, x[1].offset, 0];
                let nest = Nest::new(&x[0].shape, offsets, [&x[0].strides, &x[1].strides, &strides]);
                // f16 values are added up in f32.
                let room = if dtype == DType::F16 { write.shape.numel() } else { 0 };
                Action::ScatterAdd(nest, along, Mutex::new(vec![0.0; room]))
            }
            Op::SegmentReduce(kind, segments) => Action::SegmentReduce {
                kind: *kind,
                segments: segments.clone(),
                offset: x[0].offset,
                stride: x[0].strides[0],
            },
            Op::SegmentBroadcast(segments) => {
                Action::SegmentBroadcast { segments: segments.clone(), offset: x[0].offset, stride: x[0].strides[0] }
            }
            op => unreachable!("{} is a leaf, a view or a loop: the plan holds no such kernel", op.name()),
        };
        let reads = x.iter().map(source).collect();
        // The ranks make the rest of an exchange's result.
        let len = if let Op::Exchange(..) = op { x[0].shape.numel() } else { write.shape.numel() };
        Self { action, reads, write: (source(write), write.offset), len, dtype }
    }

    /// Runs the op.
    ///
    /// # Errors
    /// If an index is out of range.
    pub fn run(&self, env: Env, pool: Pool) -> Result<(), OutOfRange> {
        let data = |i: usize| env.data(self.reads[i]);
        let index = || u32::slice(data(1));
        match &self.action {
            Action::Fill(ranges) => with_type!(self.dtype, T => {
                let out = self.out::<T>(env, 0, self.len);
                ranges.iter().for_each(|&(start, len)| out[start..][..len].fill(T::default()));
            }),
            Action::Copy(view) => with_type!(self.dtype, T => self.split::<T>(env, pool, 1, |start, out| {
                view.gather(T::slice(data(0)), 0, 0..1, start..start + out.len(), out);
            })),
            Action::ArgMax { kept, axis } => {
                let dtype = data(0).dtype();
                with_type!(dtype, T => self.split::<u32>(env, pool, axis.extent, |start, out| {
                    argmax::<T>(kept, *axis, T::slice(data(0)), start, out);
                }));
            }
            Action::ArgSort(sort) => with_type!(data(0).dtype(), T => {
                let Source::Target(target) = self.write.0 else { unreachable!("writes are targets") };
                sort.run::<T>(T::slice(data(0)), &env.targets[target], self.write.1, pool);
            }),
            Action::CumSum(sums) => with_summand!(self.dtype, T => {
                let Source::Target(target) = self.write.0 else { unreachable!("writes are targets") };
                sums.run::<T>(T::slice(data(0)), &env.targets[target], self.write.1, pool);
            }),
            Action::Assemble { parts, gaps } => with_type!(self.dtype, T => {
                let out = self.out::<T>(env, 0, self.len);
                if *gaps {
                    out.fill(T::default());
                }
                parts.iter().enumerate().for_each(|(i, nest)| place(nest, T::slice(data(i)), out));
            }),
            Action::Gather(nest, axis) => {
                let first = First::default();
                with_type!(self.dtype, T => self.split::<T>(env, pool, 4, |start, out| {
                    gather(nest, *axis, T::slice(data(0)), index(), start, out, &first);
                }));
                return first.result(index(), nest, axis.extent);
            }
            Action::ScatterAdd(nest, axis, sums) => {
                let first = First::default();
                macro_rules! add {
                    ($t:ty, $out:expr) => {
                        scatter_add(nest, *axis, <$t>::slice(data(0)), index(), $out, &first)
                    };
                }
                match self.dtype {
                    DType::F64 => add!(f64, self.out::<f64>(env, 0, self.len)),
                    DType::F32 => add!(f32, self.out::<f32>(env, 0, self.len)),
                    DType::F16 => {
                        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
                        add!(f16, &mut sums);
                        map1(Lanes::Slice(&sums), self.out(env, 0, self.len), narrow);
                    }
                    DType::U32 => add!(u32, self.out::<u32>(env, 0, self.len)),
                    DType::I32 => add!(i32, self.out::<i32>(env, 0, self.len)),
                    DType::Bool => unreachable!("bools have no arithmetic"),
                }
                return first.result(index(), nest, axis.extent);
            }
            Action::SegmentReduce { kind, segments, offset, stride } => with_monoid!(*kind, self.dtype, T, M => {
                pool.each(self.len, segments.total, |range| {
                    let out = self.out(env, range.start, range.len());
                    segment_reduce::<T, M>(&segments.ranges[range], T::slice(data(0)), (*offset, *stride), out);
                });
            }),
            Action::SegmentBroadcast { segments, offset, stride } => with_type!(self.dtype, T => {
                self.split::<T>(env, pool, 1, |start, out| {
                    segment_broadcast(&segments.ranges, T::slice(data(0)), (*offset, *stride), start, out);
                });
            }),
        }
        Ok(())
    }

    /// A stretch of the result.
    fn out<'a, T: Element>(&self, env: Env<'a>, start: usize, len: usize) -> &'a mut [T] {
        let Source::Target(target) = self.write.0 else { unreachable!("writes are targets") };
        assert!(start + len <= self.len);
        // SAFETY: an op's only write shares its slot with no read, and its callers ask for each element once.
        unsafe { env.targets[target].part(self.write.1 + start, len) }
    }

    /// Runs `f` on stretches of the result, given where each begins, on several threads where it is worth it. `cost`
    /// weighs one element.
    fn split<T: Element>(&self, env: Env, pool: Pool, cost: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        // Tasks of a cache line or more.
        const TASK: usize = 64;
        pool.each(self.len.div_ceil(TASK), self.len * cost, |range| {
            let (start, end) = (range.start * TASK, self.len.min(range.end * TASK));
            f(start, self.out(env, start, end.saturating_sub(start)));
        });
    }
}

/// The first element of an index, in row-major order, that is out of range: the same whatever thread meets it.
struct First(AtomicU64);

impl Default for First {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl First {
    fn note(&self, point: usize) {
        self.0.fetch_min(point as u64, Relaxed);
    }

    fn result<const N: usize>(&self, index: &[u32], nest: &Nest<N>, extent: usize) -> Result<(), OutOfRange> {
        match self.0.load(Relaxed) {
            u64::MAX => Ok(()),
            point => {
                let mut found = 0;
                nest.visit(point as usize..point as usize + 1, |_, _, from| found = from[1] as usize);
                Err(OutOfRange { index: index[found], extent })
            }
        }
    }
}

/// Copies one part of an assembly to its places.
fn place<T: Copy>(nest: &Nest<2>, x: &[T], out: &mut [T]) {
    nest.visit(0..nest.len(), |_, len, [ix, io]| match nest.strides() {
        [1, 1] => out[io as usize..][..len].copy_from_slice(&x[ix as usize..][..len]),
        [sx, so] => (0..len).for_each(|i| out[at(io, i, so)] = x[at(ix, i, sx)]),
    });
}

/// `out[i] = x[.., index[i], ..]`; the nest walks x (without the axis) and the index.
fn gather<T: Copy>(nest: &Nest<2>, axis: Axis, x: &[T], index: &[u32], start: usize, out: &mut [T], outside: &First) {
    let [sx, si] = nest.strides();
    nest.visit(start..start + out.len(), |point, len, [ix, ii]| {
        let out = &mut out[point - start..][..len];
        // One index for a whole run: rows of an embedding.
        if let (1, 0, Some(&i)) = (sx, si, index.get(ii as usize))
            && (i as usize) < axis.extent
        {
            return out.copy_from_slice(&x[at(ix, i as usize, axis.stride)..][..len]);
        }
        for (j, o) in out.iter_mut().enumerate() {
            match index[at(ii, j, si)] as usize {
                i if i < axis.extent => *o = x[at(ix + j as isize * sx, i, axis.stride)],
                _ => outside.note(point + j),
            }
        }
    });
}

/// `out[.., index[i], ..] += x[i]`, in row-major order; the nest walks x, the index, and out (without the axis).
fn scatter_add<T: Copy, S: Default + Copy + num::Add<T>>(
    nest: &Nest<3>,
    axis: Axis,
    x: &[T],
    index: &[u32],
    out: &mut [S],
    outside: &First,
) {
    out.fill(S::default());
    let [sx, si, so] = nest.strides();
    nest.visit(0..nest.len(), |point, len, [ix, ii, io]| {
        for j in 0..len {
            match index[at(ii, j, si)] as usize {
                i if i < axis.extent => {
                    let o = &mut out[at(io + j as isize * so, i, axis.stride)];
                    *o = o.plus(x[at(ix, j, sx)]);
                }
                _ => outside.note(point + j),
            }
        }
    });
}

mod num {
    use super::{f16, widen};

    /// Addition as the type has it: floats round, integers wrap.
    pub(super) trait Add<T> {
        fn plus(self, other: T) -> Self;
    }

    macro_rules! add {
        ($($t:ty, $x:ty: $f:expr;)*) => { $(
            impl Add<$x> for $t {
                #[inline(always)]
                fn plus(self, other: $x) -> Self {
                    $f(self, other)
                }
            }
        )* };
    }
    add! {
        f64, f64: |a, b| a + b;
        f32, f32: |a, b| a + b;
        f32, f16: |a, b| a + widen(b);
        u32, u32: u32::wrapping_add;
        i32, i32: i32::wrapping_add;
    }
}

/// The index of the first largest element along an axis, for each result from `start` on.
fn argmax<T: Number>(kept: &Nest<1>, axis: Axis, x: &[T], start: usize, out: &mut [u32]) {
    let stride = kept.strides()[0];
    kept.visit(start..start + out.len(), |point, len, [base]| {
        for (i, o) in out[point - start..][..len].iter_mut().enumerate() {
            let value = |j: usize| x[at(base + i as isize * stride, j, axis.stride)];
            // `a != a` tells NaN in any ordered type.
            let nan = |a: T| a.partial_cmp(&a).is_none();
            let beats = |a: T, b: T| a > b || (nan(a) && !nan(b));
            *o = (1..axis.extent).fold(0, |best, j| if beats(value(j), value(best)) { j } else { best }) as u32;
        }
    });
}

/// The elements from `start` on of a strided vector's elements, each repeated over its segment; zeros in the gaps.
fn segment_broadcast<T: Element>(
    ranges: &[(usize, usize)],
    x: &[T],
    (offset, stride): (usize, isize),
    start: usize,
    out: &mut [T],
) {
    let end = start + out.len();
    let first = ranges.partition_point(|(from, len)| from + len <= start);
    let mut done = start;
    for (s, &(from, len)) in ranges.iter().enumerate().skip(first).take_while(|(_, (from, _))| *from < end) {
        let (from, to) = (from.max(start), (from + len).min(end));
        out[done - start..from - start].fill(T::default());
        out[from - start..to - start].fill(x[at(offset as isize, s, stride)]);
        done = to;
    }
    out[done - start..].fill(T::default());
}

/// The reductions of some segments of a strided vector.
fn segment_reduce<T: Element, M: Monoid<T>>(
    ranges: &[(usize, usize)],
    x: &[T],
    (offset, stride): (usize, isize),
    out: &mut [T],
) {
    let mut part = [T::default(); 256];
    for (&(start, len), out) in ranges.iter().zip(out) {
        let mut acc = M::START;
        let first = at(offset as isize, start, stride);
        if stride == 1 {
            reduce::row::<T, M>(&x[first..][..len], &mut acc);
        } else {
            for done in (0..len).step_by(part.len()) {
                let part = &mut part[..(len - done).min(256)];
                part.iter_mut().enumerate().for_each(|(i, to)| *to = x[at(first as isize, done + i, stride)]);
                reduce::row::<T, M>(part, &mut acc);
            }
        }
        *out = M::finish(acc);
    }
}
