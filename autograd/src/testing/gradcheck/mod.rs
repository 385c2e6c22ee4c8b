//! Gradient checks: recorded derivatives against differences, for your own functions and modules.
//!
//! Derivatives are compared in f64 with two central differences, extrapolated (Richardson 1911). If a kink lies within
//! reach of a difference, the place is counted and not compared. Kinks are found by the decisions of the program (the
//! outcomes of comparisons, the winners of maxima, integers), never by the size of the error: a wrong derivative cannot
//! pass for a kink.
//!
//! A test, which needs the device's crate among its dev-dependencies:
//!
//! ```
//! use wgrad::{Array, Session, testing::{GradcheckError, gradcheck}};
//! fn swish_is_right(session: &mut Session) -> Result<(), GradcheckError> {
//!     let x = Array::new([2, 2], vec![0.3, -1.2, 2.0, 0.7]);
//!     let checked = gradcheck(session, &[x], |x| x[0] * x[0].sigmoid())?;
//!     assert_eq!((checked.compared, checked.kinks), (4, 0));
//!     Ok(())
//! }
//! ```

mod blame;
mod decisions;
mod differences;
mod error;
mod moved;
mod negative;
mod subject;

pub use differences::central_difference;
pub use error::{Along, GradcheckError, Mismatch, Order, Source, Suspect};
pub use negative::{assert_detects_wrong_gradient, assert_rejects};

use crate::{Array, ParamSet, Session, Shape, Tape, Taps, Tensor};
use decisions::Observed;
use differences::Verdict;
use subject::Subject;

/// The movements of each source that a check compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Directions {
    /// Every element by itself.
    Elements,
    /// All elements at once, in this many random directions. Each takes as many runs as a single element.
    Random(usize),
}

/// The way a gradient is checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Gradcheck {
    /// The largest distance of a difference. Smaller ones, down to a hundredth, are tried if a kink is near or the
    /// function is too curved. Extrapolated differences in f64 are best around 1e-3: rounding is 1e-13 of the value
    /// then.
    pub eps: f64,
    /// The tolerance of derivatives: `atol + rtol * |numeric|`, and a tenth of the difference's own error.
    pub atol: f64,
    /// See [`Gradcheck::atol`].
    pub rtol: f64,
    /// The highest derivative that is checked.
    pub order: Order,
    /// The movements of each source.
    pub directions: Directions,
    /// The seed of the random directions.
    pub seed: u64,
}

impl Default for Gradcheck {
    fn default() -> Self {
        Self { eps: 1e-3, atol: 5e-8, rtol: 5e-8, order: Order::First, directions: Directions::Elements, seed: 0 }
    }
}

/// The report of a check.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Checked {
    /// The number of derivatives that were compared, over all sources and orders.
    pub compared: usize,
    /// The number that were skipped, since a kink lies within reach.
    pub kinks: usize,
}

/// The report of a check of one order.
struct Seen {
    checked: Checked,
    /// The recorded derivative by each source; `None` if the value does not depend on it.
    gradients: Vec<Option<Vec<f64>>>,
    /// For each source, true for each element or direction that was compared.
    compared: Vec<Vec<bool>>,
}

/// Checks a function's first derivatives, element by element: see [`Gradcheck::check`].
///
/// # Errors
/// As [`Gradcheck::check`].
pub fn gradcheck(
    session: &mut Session,
    inputs: &[Array],
    f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>,
) -> Result<Checked, GradcheckError> {
    Gradcheck::new().check(session, inputs, f)
}

impl Gradcheck {
    /// A check of first derivatives, element by element.
    pub fn new() -> Self {
        Self::default()
    }

    /// With another distance: see [`Gradcheck::eps`].
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// With another absolute tolerance.
    #[must_use]
    pub fn atol(self, atol: f64) -> Self {
        Self { atol, ..self }
    }

    /// With another relative tolerance.
    #[must_use]
    pub fn rtol(self, rtol: f64) -> Self {
        Self { rtol, ..self }
    }

    /// Checks second derivatives too: the gradient of the gradient's product with a fixed vector.
    #[must_use]
    pub fn second_order(self) -> Self {
        Self { order: Order::Second, ..self }
    }

    /// Checks along `n` random directions of each source, instead of element by element. A wrong element shows in each.
    #[must_use]
    pub fn random_directions(self, n: usize) -> Self {
        Self { directions: Directions::Random(n), ..self }
    }

    /// Checks the derivatives of a function by its f64 inputs. Integers and bools are passed along. The result may have
    /// any shape: its elements are summed with different weights. The derivative by an input that the function does not
    /// use must be 0. The states of the session stay as they are.
    ///
    /// # Errors
    /// [`GradcheckError::Mismatch`] for the first derivative that is wrong; if the inputs or the result are narrower
    /// floats, or something is not finite; if there are elements, and a kink is near each; if the device fails.
    ///
    /// # Panics
    /// If `f` panics, as for shapes that do not fit.
    pub fn check(
        &self,
        session: &mut Session,
        inputs: &[Array],
        f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>,
    ) -> Result<Checked, GradcheckError> {
        self.check_params(session, &ParamSet::default(), inputs, |_, x| f(x))
    }

    /// As [`Gradcheck::check`], also for derivatives by the parameters of a set, which must be f64: declare a module
    /// with `Builder::with_dtype(DType::F64)`. Parameters are moved around the values that they have in the session,
    /// which keeps them.
    ///
    /// # Errors
    /// As [`Gradcheck::check`].
    ///
    /// # Panics
    /// If `f` panics, as for shapes that do not fit, or assigns to parameters.
    pub fn check_params(
        &self,
        session: &mut Session,
        params: &ParamSet,
        inputs: &[Array],
        f: impl for<'t> Fn(&'t Tape, &[Tensor<'t>]) -> Tensor<'t>,
    ) -> Result<Checked, GradcheckError> {
        let subject = Subject::new(session, params, inputs, f)?;
        let mut all = Checked::default();
        for order in [Order::First, Order::Second].into_iter().filter(|order| *order <= self.order) {
            let seen = self.check_order(session, &subject, order)?;
            all.compared += seen.checked.compared;
            all.kinks += seen.checked.kinks;
        }
        Ok(all)
    }

    fn check_order<F: for<'t> Fn(&'t Tape, &[Tensor<'t>]) -> Tensor<'t>>(
        &self,
        session: &mut Session,
        subject: &Subject<'_, F>,
        order: Order,
    ) -> Result<Seen, GradcheckError> {
        let gradients = subject.gradients(session, order)?;
        let observed = Observed::new(subject.value(session, order)?)?;
        let step = session.compile(observed.program.clone())?;
        let base = session.run_now(&step, &subject.arrays().named())?;
        finite("the value", value(&base))?;
        let mut seen = Seen { checked: Checked::default(), gradients, compared: vec![] };
        for (s, (source, array)) in subject.sources().enumerate() {
            let have = seen.gradients[s].clone().unwrap_or_else(|| vec![0.0; array.shape().numel()]);
            let mut compared = vec![];
            for (along, direction) in self.movements(array.shape(), s) {
                let numeric = self.numeric(&observed, &base, |h| {
                    session.run_now(&step, &subject.moved(s, &direction, h).named()).map_err(Into::into)
                })?;
                let analytic = dot(&have, &direction);
                compared.push(numeric.is_some());
                let Some(numeric) = numeric else {
                    seen.checked.kinks += 1;
                    continue;
                };
                seen.checked.compared += 1;
                finite(&format!("the recorded {order} derivative by {source} {along}"), analytic)?;
                finite(&format!("the difference by {source} {along}"), numeric.derivative)?;
                if self.is_coarse(numeric) {
                    let what = format!("the difference by {source} {along}");
                    return Err(GradcheckError::TooCoarse { what, rounding: numeric.rounding });
                }
                if let Verdict::Wrong { tolerance } = self.judge(analytic, numeric) {
                    let suspect = self.blame(session, subject, order)?;
                    let numeric = numeric.derivative;
                    let found = Mismatch { order, suspect, input: source, index: along, analytic, numeric, tolerance };
                    return Err(GradcheckError::Mismatch(Box::new(found)));
                }
            }
            seen.compared.push(compared);
        }
        match seen.checked {
            Checked { compared: 0, kinks } if kinks > 0 => Err(GradcheckError::NothingCompared { kinks }),
            _ => Ok(seen),
        }
    }

    /// The movements of source number `s`.
    fn movements(&self, shape: &Shape, s: usize) -> Vec<(Along, Vec<f64>)> {
        let numel = shape.numel();
        match self.directions {
            Directions::Elements => {
                (0..numel).map(|i| (Along::Element(unravel(i, shape)), one_hot(i, numel))).collect()
            }
            Directions::Random(n) if numel > 0 => {
                let direction = |i: usize| differences::direction(self.seed, &[s as u64, i as u64], numel);
                (0..n).map(|i| (Along::Direction(i), direction(i))).collect()
            }
            Directions::Random(_) => vec![],
        }
    }
}

/// The value that an observed program taps.
fn value(taps: &Taps) -> f64 {
    taps.iter().next().expect("the value is tapped first").1.item(0)
}

fn finite(what: &str, value: f64) -> Result<(), GradcheckError> {
    if value.is_finite() { Ok(()) } else { Err(GradcheckError::NonFinite { what: what.into(), value }) }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    // 0 * NaN is NaN, but an element that does not move does not count.
    a.iter().zip(b).filter(|(_, b)| **b != 0.0).map(|(a, b)| a * b).sum()
}

fn one_hot(i: usize, numel: usize) -> Vec<f64> {
    (0..numel).map(|k| (k == i) as u8 as f64).collect()
}

/// The index in each dimension of an element, from its row-major one.
fn unravel(i: usize, shape: &Shape) -> Vec<usize> {
    shape.strides().iter().zip(shape.iter()).map(|(&stride, &n)| i / stride as usize % n).collect()
}
