//! The loss around the parameters of a model: curvature by Hessian-vector products, and the noise of gradients.

use super::trainer::{Inputs, Loss, LossFn};
use crate::random::generator;
use rand::RngExt as _;
use rand_distr::{Distribution, StandardNormal};
use std::{fmt, rc::Rc};
use wgrad::{Array, DType, Data, Optimizer, Param, ParamSet, Result, Session, Shape, Step, Tape};

/// A batch: its inputs by name.
type Named<'a> = [(&'a str, &'a Array)];

/// The loss of a batch as a function of some parameters, around the values that a session holds. It changes none of
/// them.
///
/// A vector over all parameters holds one parameter after another, each contiguous, in the order of declaration. Every
/// product moves vectors to the host and back, so a landscape is for an occasional look.
///
/// ```
/// use wgrad::{Array, DType, Session, Store};
/// use wgrad_cpu::CpuBackend;
/// use wgrad_nn::{Builder, Init, Landscape, Linear};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut store = Store::new();
/// let model = Linear::new(Builder::new(&mut store, 0), 2, 1, &Init::Zeros);
/// let params = store.params();
/// let mut session = Session::new(Box::new(CpuBackend::new(1)?), store)?;
/// let mut landscape = Landscape::new(&params, move |batch| model.forward(batch.get("x")).mse(batch.get("y")).into());
/// let (x, y) = (Array::new([2, 2], vec![3f32, 0.0, 0.0, 1.0]), Array::new([2, 1], vec![1f32, 1.0]));
/// let top = landscape.sharpness(&mut session, &[("x", &x), ("y", &y)], 1e-6, 200)?;
/// // The mean over two rows of squares: the Hessian is the sum of (x, 1) (x, 1)^T.
/// assert!((top.value - 10.123).abs() < 1e-3);
/// println!("gradient descent is stable up to the rate {:.3}", top.highest_rate(0.0));
/// # Ok(())
/// # }
/// ```
pub struct Landscape {
    params: ParamSet,
    loss: LossFn,
    compiled: Vec<(Key, Step)>,
}

/// The key of a compiled program: true if it multiplies by the Hessian, and the inputs of a batch.
type Key = (bool, Vec<(String, Shape, DType)>);

/// The number of programs that are kept.
const KEPT: usize = 16;

/// An eigenvalue of the Hessian.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Eigenvalue {
    /// Its value.
    pub value: f64,
    /// The norm of `H v - value v`, for the unit vector `v` that was found; 0 for an exact eigenvector.
    pub residual: f64,
    /// The number of products it took.
    pub products: usize,
}

impl Eigenvalue {
    /// The highest learning rate at which gradient descent with this momentum is stable, if this eigenvalue is the
    /// sharpness: `2 (1 + momentum) / sharpness` (Cohen et al. 2021, arXiv 2103.00065).
    pub fn highest_rate(&self, momentum: f64) -> f64 {
        2.0 * (1.0 + momentum) / self.value
    }
}

/// The learning rate of an optimizer, and the highest one at which its steps are stable.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stability {
    /// The largest eigenvalue of the Hessian, whose elements are divided as the optimizer divides gradients.
    pub sharpness: Eigenvalue,
    /// The learning rate.
    pub rate: f64,
    /// The learning rate beyond which steps along that eigenvector grow. It is 2 over the sharpness for plain gradient
    /// descent (Cohen et al. 2021), and 38 over it for Adam with the usual `b1` (Cohen et al. 2022, arXiv 2207.14484).
    pub highest: f64,
}

/// A mean over samples.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its standard error; NaN for one sample.
    pub error: f64,
}

impl Estimate {
    fn of(samples: &[f64]) -> Self {
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Self { mean, error: (variance / n).sqrt() }
    }
}

/// The noise of gradients (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1). Both estimates are unbiased; with
/// few batches, either may be negative.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NoiseScale {
    /// The squared norm of the true gradient.
    pub signal: f64,
    /// The trace of the covariance of one example's gradient.
    pub noise: f64,
    /// The noise over the signal: about the batch size, in examples, up to which a larger batch saves steps in
    /// proportion.
    pub scale: f64,
}

impl fmt::Debug for Landscape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Landscape").field("params", &self.params.len()).finish_non_exhaustive()
    }
}

impl Landscape {
    /// The landscape of a loss, which may be that of a trainer, over these parameters.
    pub fn new(params: &ParamSet, loss: impl for<'t> Fn(&Inputs<'t>) -> Loss<'t> + 'static) -> Self {
        Self::shared(params, Rc::new(loss))
    }

    pub(crate) fn shared(params: &ParamSet, loss: LossFn) -> Self {
        Self { params: params.clone(), loss, compiled: vec![] }
    }

    /// The gradient of a batch's loss.
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`].
    pub fn gradient(&mut self, session: &mut Session, batch: &Named<'_>) -> Result<Vec<f64>> {
        self.vector(session, batch, None)
    }

    /// The Hessian of a batch's loss times a vector: the gradient of the gradient's product with it (Pearlmutter 1994).
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`].
    ///
    /// # Panics
    /// If the vector has another length than all parameters together.
    #[track_caller]
    pub fn hessian_vector(&mut self, session: &mut Session, batch: &Named<'_>, v: &[f64]) -> Result<Vec<f64>> {
        let (have, want) = (v.len(), self.size(session));
        assert!(have == want, "hessian_vector: a vector of {have} elements, and {want} parameters");
        self.vector(session, batch, Some(v))
    }

    /// The largest eigenvalue of the Hessian, by power iteration. It ends when a product changes the eigenvalue by less
    /// than the share `tolerance`, or after `most` products. Gradient descent with a rate above 2 over the eigenvalue
    /// does not converge (Cohen et al. 2021).
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`].
    pub fn sharpness(
        &mut self,
        session: &mut Session,
        batch: &Named<'_>,
        tolerance: f64,
        most: usize,
    ) -> Result<Eigenvalue> {
        let weights = vec![1.0; self.size(session)];
        self.weighted_sharpness(session, batch, &weights, (tolerance, most))
    }

    /// The largest eigenvalue of `W H W` for a diagonal W.
    fn weighted_sharpness(
        &mut self,
        session: &mut Session,
        batch: &Named<'_>,
        weights: &[f64],
        until: (f64, usize),
    ) -> Result<Eigenvalue> {
        let largest = self.power(session, batch, weights, 0.0, until)?;
        if largest.value >= 0.0 {
            return Ok(largest);
        }
        // This is the lowest eigenvalue. A shift by its magnitude leaves none negative, and the iteration finds the
        // largest.
        let top = self.power(session, batch, weights, -largest.value, until)?;
        Ok(Eigenvalue { value: top.value + largest.value, products: largest.products + top.products, ..top })
    }

    /// The eigenvalue of `W H W + shift` whose magnitude is largest.
    fn power(
        &mut self,
        session: &mut Session,
        batch: &Named<'_>,
        weights: &[f64],
        shift: f64,
        (tolerance, most): (f64, usize),
    ) -> Result<Eigenvalue> {
        let mut rng = generator(0, "sharpness", 0);
        let mut v: Vec<f64> = (0..weights.len()).map(|_| StandardNormal.sample(&mut rng)).collect();
        scale(&mut v, 1.0);
        let weighted = |v: &[f64]| -> Vec<f64> { v.iter().zip(weights).map(|(v, weight)| v * weight).collect() };
        let mut found = Eigenvalue { value: 0.0, residual: 0.0, products: 0 };
        for products in 1..=most.max(1) {
            let mut next = weighted(&self.vector(session, batch, Some(&weighted(&v)))?);
            next.iter_mut().zip(&v).for_each(|(next, v)| *next += shift * v);
            let value = dot(&next, &v);
            let residual = next.iter().zip(&v).map(|(next, v)| (next - value * v).powi(2)).sum::<f64>().sqrt();
            let settled = products > 1 && (value - found.value).abs() <= tolerance * value.abs();
            found = Eigenvalue { value, residual, products };
            if settled || dot(&next, &next) == 0.0 || !value.is_finite() {
                break;
            }
            scale(&mut next, 1.0);
            v = next;
        }
        Ok(found)
    }

    /// The largest eigenvalue of the Hessian as an optimizer's steps see it, and the learning rate of the next update.
    /// Each element of the Hessian is divided as the optimizer divides the gradient; the eigenvalue is found as in
    /// [`Landscape::sharpness`]. `None` before the first update, for an optimizer without a [`wgrad::Preconditioner`],
    /// and if only a run knows the rate. Parameters that have not been stepped are left out, and so are the rates of
    /// groups and weight decay.
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`].
    pub fn stability(
        &mut self,
        session: &mut Session,
        batch: &Named<'_>,
        optimizer: &dyn Optimizer,
        tolerance: f64,
        most: usize,
    ) -> Result<Option<Stability>> {
        let updates = session.read(optimizer.states().counter())?.item(0) as u32;
        let Some(rate) = optimizer.rate(updates).filter(|_| updates > 0) else { return Ok(None) };
        let mut limit = None;
        let step = session.record(|tape| {
            let Some(preconditioner) = optimizer.preconditioner(tape) else { return };
            limit = Some(preconditioner.limit);
            for (arena, divisor) in preconditioner.divisors.parts() {
                tape.tap(&tape.layout().state(*arena).name, *divisor);
            }
        })?;
        let Some(limit) = limit else { return Ok(None) };
        let taps = session.run_now(&step, &[])?;
        let layout = session.layout();
        let weight = |param: Param| -> Vec<f64> {
            let decl = layout.param(param);
            let (size, own) = (decl.shape.numel(), optimizer.states().params().contains(param));
            let divisors = taps.get(&layout.state(decl.arena).name).map(Array::to_f64);
            let of = |at: usize| divisors.as_ref().map_or(1.0, |divisors| divisors[decl.offset + at].sqrt().recip());
            // The divisor of a parameter that has not been stepped is NaN.
            (0..size).map(|at| if own { Some(of(at)).filter(|w| w.is_finite()).unwrap_or(0.0) } else { 0.0 }).collect()
        };
        let weights: Vec<f64> = self.params.iter().flat_map(weight).collect();
        let sharpness = self.weighted_sharpness(session, batch, &weights, (tolerance, most))?;
        Ok(Some(Stability { sharpness, rate, highest: limit / sharpness.value }))
    }

    /// The trace of the Hessian, estimated from `samples` vectors of 1 and -1 that `seed` draws (Hutchinson 1990).
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`].
    ///
    /// # Panics
    /// If there are no samples.
    #[track_caller]
    pub fn trace(&mut self, session: &mut Session, batch: &Named<'_>, samples: usize, seed: u64) -> Result<Estimate> {
        assert!(samples > 0, "trace: 0 samples, and at least 1 is needed");
        let size = self.size(session);
        let mut products = vec![];
        for sample in 0..samples {
            let mut rng = generator(seed, "trace", sample as u64);
            let v: Vec<f64> = (0..size).map(|_| if rng.random::<bool>() { 1.0 } else { -1.0 }).collect();
            products.push(dot(&self.vector(session, batch, Some(&v))?, &v));
        }
        Ok(Estimate::of(&products))
    }

    /// The norm of the gradient of each batch. With batches of one example, these are per-example norms.
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`].
    pub fn norms(&mut self, session: &mut Session, batches: &[&Named<'_>]) -> Result<Vec<f64>> {
        batches.iter().map(|batch| Ok(square(&self.gradient(session, batch)?).sqrt())).collect()
    }

    /// The noise scale, from micro-batches of `examples` examples each, whose losses are means.
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`].
    ///
    /// # Panics
    /// If there are fewer than two micro-batches, or they have no examples.
    #[track_caller]
    pub fn noise_scale(
        &mut self,
        session: &mut Session,
        micro_batches: &[&Named<'_>],
        examples: usize,
    ) -> Result<NoiseScale> {
        let count = micro_batches.len();
        assert!(
            count > 1 && examples > 0,
            "noise_scale: {count} micro-batches of {examples} examples: needs at least 2 micro-batches of at least \
             1 example"
        );
        let mut mean = vec![0.0; self.size(session)];
        let mut squares = 0.0;
        for batch in micro_batches {
            let gradient = self.gradient(session, batch)?;
            squares += square(&gradient) / count as f64;
            mean.iter_mut().zip(&gradient).for_each(|(mean, g)| *mean += g / count as f64);
        }
        let (small, big) = (examples as f64, (examples * count) as f64);
        let of_mean = square(&mean);
        let signal = (big * of_mean - small * squares) / (big - small);
        let noise = (squares - of_mean) / (1.0 / small - 1.0 / big);
        Ok(NoiseScale { signal, noise, scale: noise / signal })
    }

    /// The number of elements of all parameters.
    fn size(&self, session: &Session) -> usize {
        self.params.iter().map(|param| session.layout().param(param).shape.numel()).sum()
    }

    /// The gradient, or the Hessian times a vector.
    fn vector(&mut self, session: &mut Session, batch: &Named<'_>, v: Option<&[f64]>) -> Result<Vec<f64>> {
        let step = self.step(session, batch, v.is_some())?;
        let directions = v.map_or(vec![], |v| self.parts(session, v));
        let named = directions.iter().map(|(name, part)| (name.as_str(), part));
        let inputs: Vec<(&str, &Array)> = batch.iter().copied().chain(named).collect();
        let taps = session.run_now(&step, &inputs)?;
        let of = |i: usize| taps.get(&tap(i)).expect("each is tapped").to_f64();
        Ok((0..self.params.len()).flat_map(of).collect())
    }

    /// A vector as inputs, one for each parameter.
    fn parts(&self, session: &Session, v: &[f64]) -> Vec<(String, Array)> {
        let mut at = 0;
        let part = |(i, param): (usize, Param)| {
            let decl = session.layout().param(param);
            let dtype = session.layout().state(decl.arena).dtype;
            let values = &v[at..at + decl.shape.numel()];
            at += values.len();
            (direction(i), Array::new(decl.shape.clone(), Data::from_f64(dtype, values)))
        };
        self.params.iter().enumerate().map(part).collect()
    }

    fn step(&mut self, session: &mut Session, batch: &Named<'_>, hessian: bool) -> Result<Step> {
        let shapes = batch.iter().map(|(name, x)| (name.to_string(), x.shape().clone(), x.dtype())).collect();
        let key = (hessian, shapes);
        if let Some((_, step)) = self.compiled.iter().find(|(known, _)| *known == key) {
            return Ok(step.clone());
        }
        let tape = Tape::for_ranks(session.layout().clone(), session.ranks());
        let params: Vec<_> = self.params.iter().map(|param| tape.param(param)).collect();
        let zero = |i: usize| params[i].zeros_like();
        let loss = (self.loss)(&Inputs::declare(&tape, batch)).value;
        let mut found = loss.grad_wrt(&params);
        if hessian {
            let directions = params.iter().enumerate();
            let directions = directions.map(|(i, x)| tape.input(&direction(i), x.shape(), x.dtype()));
            let terms = found.iter().zip(directions).filter_map(|(g, v)| Some(((*g)? * v).sum()));
            // A loss that depends on no parameter has no product.
            found = match terms.reduce(|a, b| a + b) {
                Some(product) => product.grad_wrt(&params),
                None => vec![None; params.len()],
            };
        }
        for (i, found) in found.into_iter().enumerate() {
            tape.tap(&tap(i), found.unwrap_or_else(|| zero(i)));
        }
        // A loss may advance a generator or running statistics, so nothing is committed.
        let step = session.compile(tape.finish().without_commits())?;
        self.compiled.truncate(KEPT - 1);
        self.compiled.insert(0, (key, step.clone()));
        Ok(step)
    }
}

/// The cosine of the angle between two vectors, such as gradients of successive steps; NaN if one is 0.
///
/// # Panics
/// If they differ in length.
#[track_caller]
pub fn cosine(a: &[f64], b: &[f64]) -> f64 {
    assert!(a.len() == b.len(), "cosine: vectors of {} and {} elements", a.len(), b.len());
    dot(a, b) / (square(a) * square(b)).sqrt()
}

/// The name of a parameter's result, by the parameter's place in the set.
fn tap(i: usize) -> String {
    format!("landscape/{i}")
}

/// The name of the input with a parameter's part of a direction.
fn direction(i: usize) -> String {
    format!("landscape/direction/{i}")
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The squared norm.
fn square(a: &[f64]) -> f64 {
    dot(a, a)
}

/// Gives a vector a length.
fn scale(v: &mut [f64], length: f64) {
    let norm = square(v).sqrt();
    v.iter_mut().for_each(|v| *v *= length / norm);
}
