//! Matrix units: the search for some that kernels can use, and a test that they compute correctly.
//!
//! wgpu has them as an experiment, so nothing requires them. A device that is opened with them first makes two small products
//! with known results, and is opened again without them if one is wrong.

use crate::{
    backend::WgpuBackend,
    device::{Gpu, StandIn},
    wgsl::cooperative::{By, Units},
};
use std::fmt;
use wgpu::{
    Features,
    wgt::{CooperativeMatrixProperties, CooperativeScalarType as Scalar},
};
use wgrad::{Array, DType, Session, Store, f16};

/// The use of an adapter's matrix units.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MatrixUnits {
    /// wgpu knows of none.
    Absent,
    /// Nothing optional was asked for.
    NotAsked,
    /// No kernel can use them: why.
    Unfit(String),
    /// The driver gives no device with them: why.
    Refused(String),
    /// The device was opened with them, but they failed their self-test: how.
    Failed(String),
    /// They make the products of f16, in small matrices of so many rows, columns and summands.
    Used(usize),
}

impl fmt::Display for MatrixUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MatrixUnits::Absent => f.write_str("there are none"),
            MatrixUnits::NotAsked => f.write_str("not used: nothing optional is asked for"),
            MatrixUnits::Unfit(why) => write!(f, "not used: {why}"),
            MatrixUnits::Refused(why) => write!(f, "not used: the driver refuses them: {why}"),
            MatrixUnits::Failed(why) => write!(f, "present, but failed their self-test, so not used: {why}"),
            MatrixUnits::Used(size) => write!(f, "used for products of f16, as {size}x{size}x{size}"),
        }
    }
}

/// The features of a device whose units are used, beside those that are always requested.
pub(crate) const EXPERIMENT: Features = Features::EXPERIMENTAL_COOPERATIVE_MATRIX;

/// The needs of kernels that use units, or the stand-in: f16 values to multiply, integers to make them of bit for bit,
/// and the number of a subgroup.
const NEEDED: Features = Features::SHADER_F16.union(Features::SHADER_I16).union(Features::SUBGROUP);

/// Consent to what wgpu calls experimental.
pub(crate) fn consent() -> wgpu::ExperimentalFeatures {
    // SAFETY: nothing here is undefined by itself. wgpu has its callers acknowledge that its experimental parts may have bugs
    // that lead there. Of these parts a device is asked for one, and its one use, the kernels of `wgsl/cooperative.rs`, is
    // held to what SPIR-V asks of them by spirv-val, and to what they should compute by the self-test.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

/// An adapter's offer.
pub(crate) struct Offer {
    pub features: Features,
    /// The most invocations of a subgroup.
    pub width: u32,
    /// The most invocations of a workgroup.
    pub invocations: u32,
    pub units: Vec<CooperativeMatrixProperties>,
}

impl Offer {
    pub fn of(adapter: &wgpu::Adapter) -> Self {
        Self {
            features: adapter.features(),
            width: adapter.get_info().subgroup_max_size,
            invocations: adapter.limits().max_compute_invocations_per_workgroup,
            units: adapter.cooperative_matrix_properties(),
        }
    }

    /// The units that kernels use: those that multiply squares of f16 and add in f32, the largest there are.
    pub fn choose(&self) -> Result<Units, MatrixUnits> {
        if !self.features.contains(EXPERIMENT) || self.units.is_empty() {
            return Err(MatrixUnits::Absent);
        }
        let squares = |size: &u32| {
            let fits = |unit: &CooperativeMatrixProperties| {
                [unit.m_size, unit.n_size, unit.k_size] == [*size; 3]
                    && (unit.ab_type, unit.cr_type) == (Scalar::F16, Scalar::F32)
            };
            self.units.iter().any(fits)
        };
        let Some(size) = [16, 8].into_iter().find(squares) else {
            return Err(MatrixUnits::Unfit("none multiplies squares of f16 and adds in f32".into()));
        };
        self.with(Units { size: size as usize, width: self.width as usize, by: By::Device })
    }

    /// The same, of what stands in for units in tests.
    pub fn stand_in(&self, stand_in: StandIn) -> Result<Units, MatrixUnits> {
        let (size, width, by) = match stand_in {
            StandIn::Right { size, width } => (size, width, By::StandIn),
            StandIn::Wrong => (16, 32, By::Wrong),
            StandIn::Broken => (16, 32, By::Broken),
        };
        self.with(Units { size, width, by })
    }

    /// Units, if the adapter has what their kernels need.
    fn with(&self, units: Units) -> Result<Units, MatrixUnits> {
        let missing: Vec<String> = (NEEDED - self.features).iter_names().map(|(name, _)| name.to_lowercase()).collect();
        if !missing.is_empty() {
            return Err(MatrixUnits::Unfit(format!("{} is missing", missing.join(", "))));
        }
        if units.width == 0 || units.threads() > self.invocations as usize {
            let why = format!("four subgroups of {} invocations make no workgroup", units.width);
            return Err(MatrixUnits::Unfit(why));
        }
        Ok(units)
    }
}

/// Rows, summands and columns of the products of the self-test, and whether their sides are transposed. None fills its tiles;
/// the second is loaded in fours.
const PRODUCTS: [([usize; 3], bool); 2] = [([70, 45, 39], false), ([68, 72, 44], true)];

/// Makes products of known figures, and compares them all. They are exact whatever the order of summands, as long as f16 values
/// are multiplied as they are, subnormal and infinite ones too, and added in f32.
pub(crate) fn test(gpu: &Gpu) -> Result<(), String> {
    let backend = WgpuBackend::on(gpu).map_err(sentence)?.poisoned();
    let mut session = Session::new(Box::new(backend), Store::new()).map_err(sentence)?;
    for ([m, k, n], transposed) in PRODUCTS {
        let left = |i: usize, t: usize| match (i, t) {
            // f16 values are subnormal below 2^-14.
            (0, _) => whole(i, t, k, -64.0) * 2f64.powi(-24),
            (1, 3) => f64::INFINITY,
            _ => whole(i, t, k, -64.0),
        };
        let right = |t: usize, j: usize| whole(j, t, k, 64.0);
        let a = matrix([m, k], transposed, left);
        let b = matrix([k, n], transposed, right);
        let made = session.eval(&[("a", &a), ("b", &b)], |t| {
            let sides = [t.input_like("a", &a), t.input_like("b", &b)];
            let [a, b] = if transposed { sides.map(|side| side.transpose()) } else { sides };
            a.matmul(b).cast(DType::F32)
        });
        let made = made.map_err(sentence)?.to_f64();
        for (at, have) in made.into_iter().enumerate() {
            let (i, j) = (at / n, at % n);
            let want: f64 = (0..k).map(|t| left(i, t) * right(t, j)).sum();
            if have != want && !(have.is_nan() && want.is_nan()) {
                return Err(format!("of {m}x{k} times {k}x{n}, element ({i}, {j}) is {have} instead of {want}"));
            }
        }
    }
    Ok(())
}

/// An error in a line: what compilers say goes on with the kernel's text.
fn sentence(error: impl fmt::Display) -> String {
    let text = error.to_string();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(MOST_TEXT).collect()
}

/// The most characters of what is wrong.
const MOST_TEXT: usize = 300;

/// Element `i` of summand `t` of `k`: a small whole number. The first and the last product are larger, and cancel: a sum in
/// f16 would lose the others.
fn whole(i: usize, t: usize, k: usize, last: f64) -> f64 {
    match t {
        0 => 64.0,
        _ if t + 1 == k => last,
        _ => ((i * 5 + t * 3) % 7) as f64 - 3.0,
    }
}

/// A matrix of f16 by its elements; transposed, if it is to be seen so again.
fn matrix([rows, columns]: [usize; 2], transposed: bool, element: impl Fn(usize, usize) -> f64) -> Array {
    let shape = if transposed { [columns, rows] } else { [rows, columns] };
    let at = |(x, y): (usize, usize)| if transposed { element(y, x) } else { element(x, y) };
    let places = (0..shape[0]).flat_map(|x| (0..shape[1]).map(move |y| (x, y)));
    Array::new(shape, places.map(|place| f16::from_f64(at(place))).collect::<Vec<f16>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wgsl::cooperative::{FEWEST, TILE};

    /// Rows, columns and summands.
    type Size = [u32; 3];

    fn unit([m_size, n_size, k_size]: Size, ab_type: Scalar, cr_type: Scalar) -> CooperativeMatrixProperties {
        CooperativeMatrixProperties { m_size, n_size, k_size, ab_type, cr_type, saturating_accumulation: false }
    }

    fn offer(width: u32, units: &[(Size, Scalar, Scalar)]) -> Offer {
        let units = units.iter().map(|(size, ab, cr)| unit(*size, *ab, *cr)).collect();
        Offer { features: NEEDED | EXPERIMENT, width, invocations: 1024, units }
    }

    /// The list of an adapter, and the choice from it.
    #[test]
    fn squares_of_f16_that_add_up_singles_are_taken() {
        use Scalar::{F16, F32};
        let nvidia = [([16, 16, 16], F16, F16), ([16, 8, 16], F16, F32), ([16; 3], F16, F32), ([8; 3], F16, F32)];
        let metal = [([8; 3], F32, F32), ([8; 3], F16, F16), ([8; 3], F16, F32)];
        let intel = [([8, 16, 16], F16, F32), ([8, 8, 16], F16, F32), ([16; 3], F16, F16), ([16; 3], F32, F32)];
        assert_eq!(offer(32, &nvidia).choose(), Ok(Units { size: 16, width: 32, by: By::Device }));
        // Metal does not tell how wide its subgroups are: there are four at least, if they might all be as wide as that.
        let units = offer(64, &metal).choose().unwrap();
        assert_eq!((units, units.threads()), (Units { size: 8, width: 64, by: By::Device }, 256));
        assert!(matches!(offer(32, &intel).choose(), Err(MatrixUnits::Unfit(_))));
        assert_eq!(offer(32, &[]).choose(), Err(MatrixUnits::Absent));
    }

    /// Else other kernels would make them, or none would meet an edge.
    #[test]
    fn units_make_the_products_of_the_self_test_and_meet_their_edges() {
        for (sizes, _) in PRODUCTS {
            assert!(sizes.iter().all(|extent| *extent >= FEWEST && extent % TILE != 0), "{sizes:?}");
        }
    }

    #[test]
    fn what_their_kernels_need_must_be_there() {
        let good = || offer(32, &[([16; 3], Scalar::F16, Scalar::F32)]);
        let without = |feature| Offer { features: good().features - feature, ..good() }.choose();
        let missing = |name: &str| Err(MatrixUnits::Unfit(format!("{name} is missing")));
        assert_eq!(without(Features::SHADER_F16), missing("shader_f16"));
        assert_eq!(without(Features::SHADER_I16), missing("shader_i16"));
        assert_eq!(without(Features::SUBGROUP), missing("subgroup"));
        assert_eq!(without(EXPERIMENT), Err(MatrixUnits::Absent));
        assert!(matches!(Offer { invocations: 127, ..good() }.choose(), Err(MatrixUnits::Unfit(_))));
        assert!(matches!(Offer { width: 0, ..good() }.choose(), Err(MatrixUnits::Unfit(_))));
        assert!(Offer { invocations: 128, ..good() }.choose().is_ok());
    }
}
