//! The operators of tensors, and the numbers that may stand beside a tensor in place of another one.

use crate::{
    DType, Tensor, f16,
    op::{Binary, Op, Unary},
};
use std::{fmt, ops};

/// The other side of an operation: a tensor, or a number that takes the tensor's type.
///
/// ```
/// # use wgrad::{DType, Tape};
/// let t = Tape::default();
/// let x = t.input("x", [3], DType::F32);
/// let mut y = (1 - x).pow(2) * 0.5f32 + 1.0;
/// y += x;
/// y /= 3;
/// # assert_eq!(y.dtype(), DType::F32);
/// ```
///
/// An f32 stands on the right only. With two types of floats on the left, the compiler could not tell what `1.0 - x` is
/// in `(1.0 - x).sqrt()`.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'t> {
    /// A number, rounded to the float type it meets; an integer type must hold it exactly. Arithmetic of f16 with a
    /// number that f16 cannot hold is computed in f32, and its result is rounded.
    Value(f64),
    /// A tensor.
    Tensor(Tensor<'t>),
}

impl<'t> Operand<'t> {
    /// The operand as a tensor, a number taking the type of `like`.
    #[track_caller]
    pub fn like(self, like: Tensor<'t>) -> Tensor<'t> {
        match self {
            Operand::Value(value) => like.tape.scalar(value, like.dtype()),
            Operand::Tensor(tensor) => tensor,
        }
    }

    /// True if it is a number that f16 cannot hold.
    pub(crate) fn is_no_half(self) -> bool {
        self.value().is_some_and(|value| value.is_finite() && f16::from_f64(value).to_f64() != value)
    }

    /// The number, if it is one.
    pub fn value(self) -> Option<f64> {
        if let Operand::Value(value) = self { Some(value) } else { None }
    }
}

impl fmt::Display for Operand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Value(value) => write!(f, "{value}"),
            Operand::Tensor(tensor) => write!(f, "{}", tensor.id),
        }
    }
}

/// Makes operands of numbers that f64 holds exactly.
macro_rules! numbers {
    ($($t:ty),*) => { $(
        impl From<$t> for Operand<'_> {
            fn from(value: $t) -> Self {
                Operand::Value(value.into())
            }
        }
    )* };
}
numbers!(f64, f32, i32);

impl<'t> From<Tensor<'t>> for Operand<'t> {
    fn from(tensor: Tensor<'t>) -> Self {
        Operand::Tensor(tensor)
    }
}

/// Implements an operator of a tensor and an operand, and its assigning form.
macro_rules! operators {
    ($($trait:ident $method:ident $assign:ident $assign_method:ident $op:ident),* $(,)?) => { $(
        impl<'t, R: Into<Operand<'t>>> ops::$trait<R> for Tensor<'t> {
            type Output = Tensor<'t>;
            #[track_caller]
            fn $method(self, other: R) -> Tensor<'t> {
                self.arithmetic(stringify!($method), Binary::$op, other.into(), false)
            }
        }
        /// Records a new value; copies of the tensor stay what they are.
        impl<'t, R: Into<Operand<'t>>> ops::$assign<R> for Tensor<'t> {
            #[track_caller]
            fn $assign_method(&mut self, other: R) {
                *self = self.arithmetic(stringify!($method), Binary::$op, other.into(), false);
            }
        }
    )* };
}
operators! {
    Add add AddAssign add_assign Add,
    Sub sub SubAssign sub_assign Sub,
    Mul mul MulAssign mul_assign Mul,
    Div div DivAssign div_assign Div,
}

/// Implements an operator of a number and a tensor.
macro_rules! left_operators {
    ($($number:ty: $trait:ident $method:ident $op:ident),* $(,)?) => { $(
        impl<'t> ops::$trait<Tensor<'t>> for $number {
            type Output = Tensor<'t>;
            #[track_caller]
            fn $method(self, other: Tensor<'t>) -> Tensor<'t> {
                other.arithmetic(stringify!($method), Binary::$op, self.into(), true)
            }
        }
    )* };
}
left_operators!(f64: Add add Add, f64: Sub sub Sub, f64: Mul mul Mul, f64: Div div Div);
left_operators!(i32: Add add Add, i32: Sub sub Sub, i32: Mul mul Mul, i32: Div div Div);

impl ops::Neg for Tensor<'_> {
    type Output = Self;
    #[track_caller]
    fn neg(self) -> Self {
        self.tape.push(Op::Unary(Unary::Neg), &[self])
    }
}

/// Logical not, of a bool tensor.
impl ops::Not for Tensor<'_> {
    type Output = Self;
    #[track_caller]
    fn not(self) -> Self {
        self.tape.require(self.dtype() == DType::Bool, "not", &[self], || "needs bools".into());
        self.equals(0.0)
    }
}
