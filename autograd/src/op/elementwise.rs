//! Elementwise functions: gates of activations, the names of all, and their effect on infinities.

use super::{Binary, Unary};
use serde::{Deserialize, Serialize};

/// The gates of activations `x gate(x)`: functions that rise from 0 to 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Gate {
    /// `1 / (1 + e^-x)`, of SiLU.
    Sigmoid,
    /// The normal distribution's function, of GELU.
    Normal,
    /// `(1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, of GELU's approximation.
    NormalTanh,
}

macro_rules! names {
    ($t:ident: $($variant:ident $(($gate:ident))? $name:literal)*) => {
        impl $t {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant $((Gate::$gate))?),*];

            /// The name in messages and printed tapes.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant $((Gate::$gate))? => $name,)*
                }
            }
        }
    };
}

names! { Unary:
    Neg "neg"
    Recip "recip"
    Sqrt "sqrt"
    Exp "exp"
    Expm1 "expm1"
    Log "log"
    Log1p "log1p"
    Sin "sin"
    Cos "cos"
    Tanh "tanh"
    Erf "erf"
    Sigmoid "sigmoid"
    NormalCdf "normal_cdf"
    NormalPdf "normal_pdf"
    Gated(Sigmoid) "silu"
    Gated(Normal) "gelu"
    Gated(NormalTanh) "gelu_tanh"
    GatedSlope(Sigmoid) "silu_slope"
    GatedSlope(Normal) "gelu_slope"
    GatedSlope(NormalTanh) "gelu_tanh_slope"
    Floor "floor"
    Round "round"
    IsFinite "is_finite"
}

names! { Binary:
    Add "add"
    Sub "sub"
    Mul "mul"
    Div "div"
    Pow "pow"
    Max "max"
    Lt "less"
    Eq "equal"
}

impl Unary {
    /// True if the function maps an intended infinity, such as that of a mask, to a finite value.
    pub(crate) fn ends_infinity(self) -> bool {
        match self {
            Self::Exp | Self::Expm1 | Self::Tanh | Self::Erf | Self::Recip | Self::IsFinite => true,
            Self::Sigmoid | Self::NormalCdf | Self::NormalPdf => true,
            Self::Neg | Self::Sqrt | Self::Log | Self::Log1p | Self::Sin | Self::Cos => false,
            Self::Floor | Self::Round => false,
            Self::Gated(_) | Self::GatedSlope(_) => false,
        }
    }
}
