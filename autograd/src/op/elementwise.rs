//! The names of elementwise functions, and their effect on infinities.

use super::{Binary, Gate, Unary};

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
            Self::Gated(_) | Self::GatedSlope(_) => false,
        }
    }
}
