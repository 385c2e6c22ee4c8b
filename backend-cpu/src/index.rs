//! Kernels that move elements by position or by index.

use crate::{map::at, nest::Nest};
use wgrad::op::Segments;

/// An index that points outside its axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OutOfRange(pub u32);

/// Addition as the type has it: floats round, integers wrap.
pub(crate) trait Add: Copy + Default {
    fn plus(self, other: Self) -> Self;
}

macro_rules! add {
    ($($t:ty: $f:expr;)*) => { $(
        impl Add for $t {
            fn plus(self, other: Self) -> Self {
                $f(self, other)
            }
        }
    )* };
}
add! {
    f64: |a, b| a + b;
    f32: |a, b| a + b;
    u32: u32::wrapping_add;
    i32: i32::wrapping_add;
}

/// Copies one part of an assembly to its places.
pub(crate) fn place<T: Copy>(nest: &Nest<2>, x: &[T], out: &mut [T]) {
    nest.visit(0..nest.len(), |_, len, [ix, io]| match nest.strides {
        [1, 1] => out[io..][..len].copy_from_slice(&x[ix..][..len]),
        [sx, so] => (0..len).for_each(|i| out[at(io, i, so)] = x[at(ix, i, sx)]),
    });
}

/// An axis that indices point into: its extent and stride.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub extent: usize,
    pub stride: isize,
}

impl Axis {
    fn offset(self, index: u32) -> Result<isize, OutOfRange> {
        if (index as usize) < self.extent { Ok(index as isize * self.stride) } else { Err(OutOfRange(index)) }
    }
}

/// `out[i] = x[.., index[i], ..]`; the nest walks x (without the axis) and the index.
pub(crate) fn gather<T: Copy>(
    nest: &Nest<2>,
    axis: Axis,
    x: &[T],
    index: &[u32],
    out: &mut [T],
) -> Result<(), OutOfRange> {
    let mut result = Ok(());
    nest.visit(0..nest.len(), |point, len, [ix, ii]| {
        for (i, o) in out[point..][..len].iter_mut().enumerate() {
            match axis.offset(index[at(ii, i, nest.strides[1])]) {
                Ok(offset) => *o = x[(at(ix, i, nest.strides[0]) as isize + offset) as usize],
                Err(outside) => result = result.and(Err(outside)),
            }
        }
    });
    result
}

/// `out[.., index[i], ..] += x[i]`, in row-major order; the nest walks x, the index, and out (without the axis).
pub(crate) fn scatter_add<T: Add>(
    nest: &Nest<3>,
    axis: Axis,
    x: &[T],
    index: &[u32],
    out: &mut [T],
) -> Result<(), OutOfRange> {
    out.fill(T::default());
    let mut result = Ok(());
    nest.visit(0..nest.len(), |_, len, [ix, ii, io]| {
        let [sx, si, so] = nest.strides;
        for i in 0..len {
            match axis.offset(index[at(ii, i, si)]) {
                Ok(offset) => {
                    let o = &mut out[(at(io, i, so) as isize + offset) as usize];
                    *o = o.plus(x[at(ix, i, sx)]);
                }
                Err(outside) => result = result.and(Err(outside)),
            }
        }
    });
    result
}

/// Repeats element `s` of a strided vector over segment `s`; gaps are zero.
pub(crate) fn segment_broadcast<T: Copy + Default>(
    segments: &Segments,
    x: &[T],
    (offset, stride): (usize, isize),
    out: &mut [T],
) {
    out.fill(T::default());
    for (s, &(start, len)) in segments.ranges.iter().enumerate() {
        out[start..start + len].fill(x[at(offset, s, stride)]);
    }
}
