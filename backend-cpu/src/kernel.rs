//! Kernels of a plan, with their loops resolved once, when the plan is compiled.

use crate::{
    contract::{MatMul, matmul},
    index::{Axis, OutOfRange, gather, place, scatter_add, segment_broadcast},
    map::{map1, map2, select},
    math,
    nest::Nest,
    reduce::{Larger, Max, Norm, ReduceNest, Sum, argmax, reduce},
};
use std::sync::Arc;
use wgrad::{
    DType, Data, Error, Result, Shape, f16, f16_from_f64,
    op::{Binary, Op, Reduce, Segments, Unary},
    plan::{Kernel, Operand},
    random,
};

/// The weight of a transcendental function of one element, an addition being 1.
const TRANSCENDENTAL: usize = 24;
/// The weight of one that runs in vector instructions.
const VECTORISED: usize = 6;

/// What a kernel computes, by which loops.
#[derive(Debug)]
enum Body {
    Iota,
    Random { stream: u64, key: (usize, isize), counter: usize },
    Unary(Unary, Nest<1>),
    Binary(Binary, Nest<2>),
    Select(Nest<3>),
    Cast(Nest<1>),
    Copy(Nest<1>),
    Reduce(Reduce, ReduceNest),
    ArgMax { kept: Nest<1>, axis: Axis },
    Assemble { parts: Vec<Nest<2>>, gaps: bool },
    Gather(Nest<2>, Axis),
    ScatterAdd(Nest<3>, Axis),
    SegmentSum(Vec<ReduceNest>),
    SegmentBroadcast { segments: Arc<Segments>, offset: usize, stride: isize },
    MatMul(MatMul),
}

/// A kernel ready to run.
#[derive(Debug)]
pub(crate) struct Compiled {
    body: Body,
    /// The number of elements written.
    len: usize,
    op: &'static str,
    site: &'static std::panic::Location<'static>,
}

/// Element types, found inside [`Data`].
trait Element: Sized {
    fn slice(data: &Data) -> &[Self];
}

macro_rules! elements {
    ($($t:ty => $v:ident),*) => { $(
        impl Element for $t {
            fn slice(data: &Data) -> &[$t] {
                match data {
                    Data::$v(v) => v,
                    other => panic!("a kernel of {} was given {}", stringify!($t), other.dtype()),
                }
            }
        }
    )* };
}
elements!(f64 => F64, f32 => F32, f16 => F16, u32 => U32, i32 => I32, bool => Bool);

/// Runs `$body` with `$out` bound to the output's elements, for those types that the op exists in.
macro_rules! by_type {
    ($data:expr, $out:ident, [$($v:ident),*] => $body:expr) => {
        match $data {
            $(Data::$v($out) => $body,)*
            #[allow(unreachable_patterns, reason = "some ops exist in every type")]
            other => panic!("no kernel for {}", other.dtype()),
        }
    };
}

fn nest_of<const N: usize>(shape: &Shape, operands: [&Operand; N]) -> Nest<N> {
    Nest::new(shape, operands.map(|o| o.offset), operands.map(|o| &o.strides[..]))
}

fn nest1(operand: &Operand) -> Nest<1> {
    nest_of(&operand.shape, [operand])
}

/// The loops that copy a read to contiguous memory.
pub(crate) fn copy_nest(operand: &Operand) -> Nest<1> {
    nest1(operand)
}

/// Strides without the axis that an index takes the place of, and that axis.
fn split_axis(strides: &[isize], extent: usize, axis: usize) -> (Vec<isize>, Axis) {
    let mut rest = strides.to_vec();
    rest[axis] = 0;
    (rest, Axis { extent, stride: strides[axis] })
}

impl Compiled {
    pub fn new(kernel: &Kernel) -> Self {
        let x = &kernel.inputs;
        let out_strides = kernel.shape.strides();
        let body = match &kernel.op {
            Op::Iota(_) => Body::Iota,
            Op::Random { stream, .. } => {
                Body::Random { stream: *stream, key: (x[0].offset, x[0].strides[0]), counter: x[1].offset }
            }
            Op::Unary(op) => Body::Unary(*op, nest1(&x[0])),
            Op::Binary(op) => Body::Binary(*op, nest_of(&kernel.shape, [&x[0], &x[1]])),
            Op::Select => Body::Select(nest_of(&kernel.shape, [&x[0], &x[1], &x[2]])),
            Op::Cast(_) => Body::Cast(nest1(&x[0])),
            // Movement that could not be absorbed into a read: its one input already has the result's elements.
            Op::Reshape(_) => Body::Copy(nest1(&x[0])),
            Op::Reduce(kind, axes) => {
                Body::Reduce(*kind, ReduceNest::new(&x[0].shape, x[0].offset, &x[0].strides, axes))
            }
            Op::ArgMax(axis) => {
                let without = |v: &[isize]| [&v[..*axis], &v[axis + 1..]].concat();
                let kept = Nest::new(&kernel.shape, [x[0].offset], [&without(&x[0].strides)]);
                Body::ArgMax { kept, axis: Axis { extent: x[0].shape[*axis], stride: x[0].strides[*axis] } }
            }
            Op::Assemble { axis, places, .. } => {
                let part = |(place, x): (&wgrad::op::Place, &Operand)| {
                    let mut strides = out_strides.clone();
                    let offset = place.start * strides[*axis] as usize;
                    strides[*axis] *= place.step;
                    Nest::new(&x.shape, [x.offset, offset], [&x.strides, &strides])
                };
                let parts: Vec<_> = places.iter().zip(x).map(part).collect();
                let gaps = parts.iter().map(Nest::len).sum::<usize>() < kernel.shape.numel();
                Body::Assemble { parts, gaps }
            }
            Op::Gather(axis) => {
                let (strides, along) = split_axis(&x[0].strides, x[0].shape[*axis], *axis);
                let offsets = [x[0].offset, x[1].offset];
                Body::Gather(Nest::new(&kernel.shape, offsets, [&strides, &x[1].strides]), along)
            }
            Op::ScatterAdd { axis, len } => {
                let (strides, along) = split_axis(&out_strides, *len, *axis);
                let offsets = [x[0].offset, x[1].offset, 0];
                Body::ScatterAdd(Nest::new(&x[0].shape, offsets, [&x[0].strides, &x[1].strides, &strides]), along)
            }
            Op::SegmentSum(segments) => {
                let stride = x[0].strides[0];
                let sum = |&(start, len): &(usize, usize)| {
                    ReduceNest::new(&[len], crate::map::at(x[0].offset, start, stride), &[stride], &[0])
                };
                Body::SegmentSum(segments.ranges.iter().map(sum).collect())
            }
            Op::SegmentBroadcast(segments) => {
                let (segments, offset, stride) = (segments.clone(), x[0].offset, x[0].strides[0]);
                Body::SegmentBroadcast { segments, offset, stride }
            }
            Op::MatMul { ta, tb } => {
                let rank = kernel.shape.rank();
                let (batch, matrix) = kernel.shape.split_at(rank - 2);
                let strides = |x: &Operand, transposed: bool| {
                    let (row, column) = (x.strides[rank - 2], x.strides[rank - 1]);
                    if transposed { (column, row) } else { (row, column) }
                };
                Body::MatMul(MatMul {
                    m: matrix[0],
                    k: x[0].shape[if *ta { rank - 2 } else { rank - 1 }],
                    n: matrix[1],
                    batch: Nest::new(
                        batch,
                        [x[0].offset, x[1].offset],
                        [&x[0].strides[..rank - 2], &x[1].strides[..rank - 2]],
                    ),
                    lhs: strides(&x[0], *ta),
                    rhs: strides(&x[1], *tb),
                })
            }
            op => unreachable!("{} is a leaf or a view: the plan holds no kernel for it", op.name()),
        };
        Self { body, len: kernel.shape.numel(), op: kernel.op.name(), site: kernel.site }
    }

    /// Computes the output from the inputs. `out` may be longer than the result.
    ///
    /// # Errors
    /// If an index is out of range.
    pub fn run(&self, x: &[&Data], out: &mut Data) -> Result<()> {
        let movement = matches!(self.body, Body::Cast(_) | Body::Copy(_));
        if !movement && (out.dtype() == DType::F16 || x.iter().any(|x| x.dtype() == DType::F16)) {
            return self.run_widened(x, out);
        }
        let len = self.len;
        let mut outside = Ok(());
        match &self.body {
            Body::Iota => by_type!(out, o, [U32] => o[..len].iter_mut().zip(0..).for_each(|(o, i)| *o = i)),
            Body::Random { stream, key: (key, stride), counter } => {
                let (k, counter) = (<u32 as Element>::slice(x[0]), <u32 as Element>::slice(x[1])[*counter]);
                let key = random::stream_key([k[*key], k[crate::map::at(*key, 1, *stride)]], *stream);
                by_type!(out, o, [U32] => {
                    crate::map::split(&mut o[..len], TRANSCENDENTAL, |start, o| {
                        o.iter_mut().enumerate().for_each(|(i, o)| *o = random::word(key, counter, start + i));
                    })
                })
            }
            Body::Unary(op, nest) => match (x[0], out) {
                (Data::F32(a), Data::F32(o)) => unary_f32(*op, nest, a, &mut o[..len]),
                (Data::F64(a), Data::F64(o)) => unary_f64(*op, nest, a, &mut o[..len]),
                (Data::F32(a), Data::Bool(o)) => map1(nest, a, &mut o[..len], 1, f32::is_finite),
                (Data::F64(a), Data::Bool(o)) => map1(nest, a, &mut o[..len], 1, f64::is_finite),
                (Data::I32(a), Data::I32(o)) => map1(nest, a, &mut o[..len], 1, i32::wrapping_neg),
                (a, _) => panic!("no {} of {}", op.name(), a.dtype()),
            },
            Body::Binary(op @ (Binary::Lt | Binary::Eq), nest) => {
                by_type!(x[0], a, [F64, F32, U32, I32, Bool] => {
                    by_type!(out, o, [Bool] => compare(*op, nest, a, Element::slice(x[1]), &mut o[..len]))
                });
            }
            Body::Binary(Binary::Max, nest) => by_type!(out, o, [F64, F32, U32, I32, Bool] => {
                map2(nest, Element::slice(x[0]), Element::slice(x[1]), &mut o[..len], 1, Larger::larger)
            }),
            Body::Binary(op, nest) => match out {
                Data::F32(o) => {
                    arithmetic(*op, nest, Element::slice(x[0]), Element::slice(x[1]), &mut o[..len], f32::powf)
                }
                Data::F64(o) => {
                    arithmetic(*op, nest, Element::slice(x[0]), Element::slice(x[1]), &mut o[..len], f64::powf)
                }
                Data::U32(o) => {
                    let f: fn(u32, u32) -> u32 = match op {
                        Binary::Add => u32::wrapping_add,
                        Binary::Sub => u32::wrapping_sub,
                        Binary::Mul => u32::wrapping_mul,
                        _ => |a, b| a.checked_div(b).unwrap_or(0),
                    };
                    map2(nest, Element::slice(x[0]), Element::slice(x[1]), &mut o[..len], 1, f);
                }
                Data::I32(o) => {
                    let f: fn(i32, i32) -> i32 = match op {
                        Binary::Add => i32::wrapping_add,
                        Binary::Sub => i32::wrapping_sub,
                        Binary::Mul => i32::wrapping_mul,
                        _ => |a, b| if b == 0 { 0 } else { a.wrapping_div(b) },
                    };
                    map2(nest, Element::slice(x[0]), Element::slice(x[1]), &mut o[..len], 1, f);
                }
                Data::F16(_) | Data::Bool(_) => panic!("no {} of this type", op.name()),
            },
            Body::Select(nest) => by_type!(out, o, [F64, F32, U32, I32, Bool] => {
                select(nest, Element::slice(x[0]), Element::slice(x[1]), Element::slice(x[2]), &mut o[..len])
            }),
            Body::Cast(nest) => cast(nest, x[0], len, out),
            Body::Copy(nest) => copy(nest, x[0], len, out),
            Body::Reduce(Reduce::Sum, nest) => by_type!(out, o, [F64, F32, U32, I32] => {
                reduce::<_, Sum>(nest, Element::slice(x[0]), &mut o[..len])
            }),
            Body::Reduce(Reduce::Max, nest) => by_type!(out, o, [F64, F32, U32, I32, Bool] => {
                reduce::<_, Max>(nest, Element::slice(x[0]), &mut o[..len])
            }),
            Body::Reduce(Reduce::Norm, nest) => by_type!(out, o, [F64, F32] => {
                reduce::<_, Norm>(nest, Element::slice(x[0]), &mut o[..len])
            }),
            Body::ArgMax { kept, axis } => by_type!(x[0], a, [F64, F32, U32, I32, Bool] => {
                by_type!(out, o, [U32] => argmax(kept, axis.extent, axis.stride, a, &mut o[..len]))
            }),
            Body::Assemble { parts, gaps } => by_type!(out, o, [F64, F32, U32, I32, Bool] => {
                if *gaps {
                    o[..len].fill(Default::default());
                }
                parts.iter().zip(x).for_each(|(nest, x)| place(nest, Element::slice(x), o));
            }),
            Body::Gather(nest, axis) => by_type!(out, o, [F64, F32, U32, I32, Bool] => {
                outside = gather(nest, *axis, Element::slice(x[0]), Element::slice(x[1]), &mut o[..len]);
            }),
            Body::ScatterAdd(nest, axis) => by_type!(out, o, [F64, F32, U32, I32] => {
                outside = scatter_add(nest, *axis, Element::slice(x[0]), Element::slice(x[1]), &mut o[..len]);
            }),
            Body::SegmentSum(segments) => by_type!(out, o, [F64, F32, U32, I32] => {
                for (nest, o) in segments.iter().zip(o.iter_mut()) {
                    reduce::<_, Sum>(nest, Element::slice(x[0]), std::slice::from_mut(o));
                }
            }),
            Body::SegmentBroadcast { segments, offset, stride } => by_type!(out, o, [F64, F32, U32, I32, Bool] => {
                segment_broadcast(segments, Element::slice(x[0]), (*offset, *stride), &mut o[..len])
            }),
            Body::MatMul(shape) => by_type!(out, o, [F64, F32] => {
                matmul(shape, Element::slice(x[0]), Element::slice(x[1]), &mut o[..len])
            }),
        }
        outside.map_err(|OutOfRange(index)| {
            let extent = match &self.body {
                Body::Gather(_, axis) | Body::ScatterAdd(_, axis) => axis.extent,
                _ => unreachable!("only indexing leaves its axis"),
            };
            Error::IndexOutOfRange { op: self.op, index, extent, site: self.site }
        })
    }
}

impl Compiled {
    /// Computes in f32 what is stored in f16.
    fn run_widened(&self, x: &[&Data], out: &mut Data) -> Result<()> {
        let f32_of = |data: &Data| Data::from_f64(DType::F32, &data.to_f64());
        let wide = |data: &&Data| if data.dtype() == DType::F16 { f32_of(data) } else { (*data).clone() };
        let x: Vec<Data> = x.iter().map(wide).collect();
        let x: Vec<&Data> = x.iter().collect();
        if out.dtype() != DType::F16 {
            return self.run(&x, out);
        }
        let mut wide = f32_of(out);
        self.run(&x, &mut wide)?;
        *out = Data::from_f64(DType::F16, &wide.to_f64());
        Ok(())
    }
}

macro_rules! unary {
    ($name:ident, $t:ty, exp: $exp:path, tanh: $tanh:path, cost: $vector:expr, erf: $erf:path) => {
        fn $name(op: Unary, nest: &Nest<1>, a: &[$t], out: &mut [$t]) {
            let slow = TRANSCENDENTAL;
            match op {
                Unary::Neg => map1(nest, a, out, 1, |x| -x),
                Unary::Recip => map1(nest, a, out, 1, |x| 1.0 / x),
                Unary::Sqrt => map1(nest, a, out, 1, <$t>::sqrt),
                Unary::Exp => map1(nest, a, out, $vector, $exp),
                Unary::Log => map1(nest, a, out, slow, <$t>::ln),
                Unary::Sin => map1(nest, a, out, slow, <$t>::sin),
                Unary::Cos => map1(nest, a, out, slow, <$t>::cos),
                Unary::Tanh => map1(nest, a, out, $vector, $tanh),
                Unary::Erf => map1(nest, a, out, slow, $erf),
                Unary::IsFinite => unreachable!("gives bool"),
            }
        }
    };
}
unary!(unary_f32, f32, exp: math::exp, tanh: math::tanh, cost: VECTORISED, erf: libm::erff);
unary!(unary_f64, f64, exp: f64::exp, tanh: f64::tanh, cost: TRANSCENDENTAL, erf: libm::erf);

fn arithmetic<T>(op: Binary, nest: &Nest<2>, a: &[T], b: &[T], out: &mut [T], pow: fn(T, T) -> T)
where
    T: Copy + Send + Sync + std::ops::Add<Output = T> + std::ops::Sub<Output = T>,
    T: std::ops::Mul<Output = T> + std::ops::Div<Output = T>,
{
    match op {
        Binary::Add => map2(nest, a, b, out, 1, |a, b| a + b),
        Binary::Sub => map2(nest, a, b, out, 1, |a, b| a - b),
        Binary::Mul => map2(nest, a, b, out, 1, |a, b| a * b),
        Binary::Div => map2(nest, a, b, out, 2, |a, b| a / b),
        Binary::Pow => map2(nest, a, b, out, TRANSCENDENTAL, pow),
        Binary::Max | Binary::Lt | Binary::Eq => unreachable!("handled for every type by the caller"),
    }
}

fn compare<T: Copy + Sync + PartialOrd>(op: Binary, nest: &Nest<2>, a: &[T], b: &[T], out: &mut [bool]) {
    match op {
        Binary::Lt => map2(nest, a, b, out, 1, |a, b| a < b),
        _ => map2(nest, a, b, out, 1, |a, b| a == b),
    }
}

/// Conversions between numbers, by way of f64, which holds every value of every type.
fn cast(nest: &Nest<1>, x: &Data, len: usize, out: &mut Data) {
    /// Into f64, and out of it: to nearest for floats, truncated for integers.
    trait Via: Copy + Send + Sync {
        fn into_f64(self) -> f64;
        fn from_f64(v: f64) -> Self;
    }
    macro_rules! via {
        ($($t:ty),*) => { $(
            impl Via for $t {
                fn into_f64(self) -> f64 {
                    self as f64
                }
                fn from_f64(v: f64) -> Self {
                    v as $t
                }
            }
        )* };
    }
    via!(f64, f32, u32, i32);
    impl Via for f16 {
        fn into_f64(self) -> f64 {
            self.to_f64()
        }
        fn from_f64(v: f64) -> Self {
            f16_from_f64(v)
        }
    }
    impl Via for bool {
        fn into_f64(self) -> f64 {
            self as u8 as f64
        }
        fn from_f64(v: f64) -> Self {
            v != 0.0
        }
    }
    by_type!(x, a, [F64, F32, F16, U32, I32, Bool] => by_type!(out, o, [F64, F32, F16, U32, I32, Bool] => {
        map1(nest, a, &mut o[..len], 1, |x| Via::from_f64(Via::into_f64(x)))
    }));
}

/// Copies a strided read to contiguous memory.
pub(crate) fn copy(nest: &Nest<1>, x: &Data, len: usize, out: &mut Data) {
    by_type!(out, o, [F64, F32, F16, U32, I32, Bool] => map1(nest, Element::slice(x), &mut o[..len], 1, |x| x));
}

/// Fills memory with values that no computation should meet.
pub(crate) fn poison(data: &mut Data) {
    match data {
        Data::F64(v) => v.fill(f64::NAN),
        Data::F32(v) => v.fill(f32::NAN),
        Data::F16(v) => v.fill(f16::NAN),
        Data::U32(v) => v.fill(0xDEAD_BEEF),
        Data::I32(v) => v.fill(i32::MIN),
        Data::Bool(v) => v.fill(true),
    }
}

/// An empty value, to leave in the place of one that is taken out.
pub(crate) fn nothing(dtype: DType) -> Data {
    Data::zeros(dtype, 0)
}
