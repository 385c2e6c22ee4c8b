//! The sum, or the maximum, of the values of all ranks, in the order of the ranks.

use crate::{DType, Data, op::Reduce};
use ::half::f16;
use std::borrow::Borrow;

/// The elementwise reduction of values of one type and length, in their order: added in their own type (f16 in f32, and
/// rounded once), or the largest, which is NaN if one is NaN. `None` if there are none, or if they do not fit each other.
///
/// ```
/// use wgrad::{Data, collective::reduced, op::Reduce};
/// let ranks = [Data::F32(vec![1.0, 2.0]), Data::F32(vec![10.0, 20.0])];
/// assert_eq!(reduced(Reduce::Sum, ranks), Some(Data::F32(vec![11.0, 22.0])));
/// ```
pub fn reduced(reduce: Reduce, values: impl IntoIterator<Item = Data>) -> Option<Data> {
    let mut values = values.into_iter();
    let mut total = values.next()?;
    reduce_into(reduce, &mut total, values).then_some(total)
}

/// As [`reduced`], of `total` and the values after it, into `total`. False if they do not fit each other; `total` is then
/// a reduction of some of them.
pub fn reduce_into<D: Borrow<Data>>(reduce: Reduce, total: &mut Data, values: impl IntoIterator<Item = D>) -> bool {
    let dtype = total.dtype();
    if let Data::F16(v) = total {
        *total = widened(v);
    }
    let fit = values.into_iter().all(|value| match value.borrow() {
        value if value.dtype() != dtype => false,
        Data::F16(v) => add(reduce, total, &widened(v)),
        value => add(reduce, total, value),
    });
    if let (Data::F32(sum), DType::F16) = (&*total, dtype) {
        *total = Data::F16(sum.iter().map(|x| f16::from_f32(*x)).collect());
    }
    fit
}

/// The type that f16 values are added in.
fn widened(values: &[f16]) -> Data {
    Data::F32(values.iter().map(|x| x.to_f32()).collect())
}

/// Combines with another rank's values; false if they do not fit.
fn add(reduce: Reduce, total: &mut Data, other: &Data) -> bool {
    /// Combines element by element; false if the lengths differ.
    fn each<T: Copy>(a: &mut [T], b: &[T], f: impl Fn(T, T) -> T) -> bool {
        a.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a, *b));
        a.len() == b.len()
    }
    /// The larger of two numbers; NaN if either is.
    macro_rules! larger {
        () => {
            |a, b| if a >= b || a.is_nan() { a } else { b }
        };
    }
    match (reduce, total, other) {
        (Reduce::Sum, Data::F64(a), Data::F64(b)) => each(a, b, |a, b| a + b),
        (Reduce::Sum, Data::F32(a), Data::F32(b)) => each(a, b, |a, b| a + b),
        (Reduce::Sum, Data::U32(a), Data::U32(b)) => each(a, b, u32::wrapping_add),
        (Reduce::Sum, Data::I32(a), Data::I32(b)) => each(a, b, i32::wrapping_add),
        (Reduce::Max, Data::F64(a), Data::F64(b)) => each(a, b, larger!()),
        (Reduce::Max, Data::F32(a), Data::F32(b)) => each(a, b, larger!()),
        (Reduce::Max, Data::U32(a), Data::U32(b)) => each(a, b, u32::max),
        (Reduce::Max, Data::I32(a), Data::I32(b)) => each(a, b, i32::max),
        (Reduce::Max, Data::Bool(a), Data::Bool(b)) => each(a, b, |a, b| a || b),
        _ => false,
    }
}
