//! Gradients against central differences in f64 on the reference interpreter, first and second order.

use crate::reference;
use wgrad::{Array, DType, Program, Shape, Tape, Tensor};

/// Which numbers a check feeds in. All of them are at least 0.03 apart from each other and from 0, so that no maximum
/// or comparison is near a tie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    /// Both signs.
    Any,
    /// Positive numbers, from 0.3 on.
    Positive,
}

/// How the checked function meets its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Setting {
    /// They are leaves.
    Leaf,
    /// They are computed from leaves, and used once more elsewhere.
    MidGraph,
    /// They are every other element, backwards, of longer leaves with their dimensions in reverse order.
    Strided,
}

/// A gradient check of one function.
///
/// The function is given float arguments of the given shapes, after them the index arrays, and returns a float tensor.
pub struct Gradcheck {
    /// The shapes of the float arguments.
    pub shapes: Vec<Shape>,
    /// The numbers.
    pub domain: Domain,
    /// Integer arguments.
    pub indices: Vec<Array>,
    /// Whether to check second derivatives too.
    pub second: bool,
}

/// The derivative at 0 of a function of one number, and a bound of its error: two central differences, extrapolated.
pub fn central_difference(f: impl Fn(f64) -> f64, h: f64) -> (f64, f64) {
    let central = |h: f64| (f(h) - f(-h)) / (2.0 * h);
    let (coarse, fine) = (central(h), central(h / 2.0));
    ((4.0 * fine - coarse) / 3.0, (fine - coarse).abs())
}

impl Gradcheck {
    /// A first and second order check over arguments of these shapes.
    pub fn new<S: Into<Shape>>(shapes: impl IntoIterator<Item = S>) -> Self {
        let shapes = shapes.into_iter().map(Into::into).collect();
        Self { shapes, domain: Domain::Any, indices: vec![], second: true }
    }

    /// With positive numbers only.
    pub fn positive(self) -> Self {
        Self { domain: Domain::Positive, ..self }
    }

    /// With integer arguments after the float ones.
    pub fn indices(self, indices: Vec<Array>) -> Self {
        Self { indices, ..self }
    }

    /// Checks a function with its arguments as leaves, mid-graph and strided.
    ///
    /// # Errors
    /// The first derivative that finite differences contradict.
    pub fn run(&self, f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Result<(), String> {
        for setting in [Setting::Leaf, Setting::MidGraph, Setting::Strided] {
            self.run_in(setting, &f).map_err(|error| format!("{setting:?}: {error}"))?;
        }
        Ok(())
    }

    fn run_in(&self, setting: Setting, f: &impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Result<(), String> {
        let leaves: Vec<Array> = self.leaves(setting);
        let program = self.record(setting, &leaves, f);
        let run = |leaves: &[Array]| {
            let floats = leaves.iter().enumerate().map(|(i, x)| (format!("x{i}"), x.clone()));
            let directions = leaves.iter().enumerate().map(|(i, x)| (format!("v{i}"), direction(x.shape(), i)));
            let indices = self.indices.iter().enumerate().map(|(i, x)| (format!("index{i}"), x.clone()));
            let inputs: Vec<(String, Array)> = floats.chain(directions).chain(indices).collect();
            let outcome = reference(&program, &[], &inputs);
            move |name: &str| {
                let found = outcome.taps.iter().find(|(n, ..)| n == name);
                found.map(|(_, _, values)| values.clone())
            }
        };
        let base = run(&leaves);
        let orders: &[(&str, &str)] = if self.second { &[("loss", "dx"), ("slope", "ddx")] } else { &[("loss", "dx")] };
        for &(value, gradient) in orders {
            for (i, leaf) in leaves.iter().enumerate() {
                let recorded = base(&format!("{gradient}{i}"));
                for element in 0..leaf.shape().numel() {
                    let at = |h: f64| {
                        let mut moved = leaves.clone();
                        let mut values = leaf.to_f64();
                        values[element] += h;
                        moved[i] = Array::new(leaf.shape(), values);
                        run(&moved)(value).expect("tapped")[0]
                    };
                    let (want, error) = central_difference(at, 1e-3);
                    // Absent means that the sweep holds the derivative to be exactly 0.
                    let have = recorded.as_ref().map_or(0.0, |g| g[element]);
                    if (have - want).abs() > 1e-7 * want.abs().max(1.0) + 0.1 * error || have.is_nan() {
                        return Err(format!("{gradient}{i}[{element}] is {have}, by differences {want}\n{program}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Values for the leaves: a shuffled grid, so that no two are close.
    fn leaves(&self, setting: Setting) -> Vec<Array> {
        let shapes: Vec<Shape> = self
            .shapes
            .iter()
            .map(|shape| match setting {
                Setting::Strided => shape.iter().rev().map(|&n| 2 * n + 1).collect::<Vec<_>>().into(),
                _ => shape.clone(),
            })
            .collect();
        let total: usize = shapes.iter().map(Shape::numel).sum();
        let stride = (total / 3 + 1..).find(|s| gcd(*s, total.max(1)) == 1).expect("some number is coprime");
        let mut next = 0;
        let mut value = || {
            next += 1;
            let place = next * stride % total.max(1);
            let size = 0.3 + 1.5 * (place as f64 + 0.4) / total as f64;
            if self.domain == Domain::Any && next % 2 == 0 { -size } else { size }
        };
        shapes.iter().map(|s| Array::new(s, (0..s.numel()).map(|_| value()).collect::<Vec<f64>>())).collect()
    }

    /// The loss, its gradient `dx`, the slope `dx . v`, and the gradient `ddx` of that.
    fn record(&self, setting: Setting, leaves: &[Array], f: &impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Program {
        let t = Tape::default();
        let x: Vec<Tensor<'_>> = leaves.iter().enumerate().map(|(i, x)| t.input_like(&format!("x{i}"), x)).collect();
        let mut args: Vec<Tensor<'_>> = x.iter().map(|&x| argument(setting, x)).collect();
        args.extend(self.indices.iter().enumerate().map(|(i, index)| t.input_like(&format!("index{i}"), index)));
        let y = f(&args);
        // Every element of the result counts differently, and not linearly.
        let weights = (t.iota(y.numel()).cast(DType::F64) * 0.7 + 0.3).cos().reshape(y.shape());
        let mut loss = (y * weights).sum() + (y * 0.5).sin().sum();
        if setting == Setting::MidGraph {
            loss = x.iter().fold(loss.tanh() + loss, |loss, x| loss + (*x * *x).sum());
        }
        t.tap("loss", loss);
        let gradients = loss.grad_wrt(&x);
        let mut slope = t.scalar(0.0, DType::F64);
        for (i, g) in gradients.iter().enumerate() {
            if let Some(g) = g {
                t.tap(&format!("dx{i}"), *g);
                slope = slope + (*g * t.input(&format!("v{i}"), g.shape(), DType::F64)).sum();
            }
        }
        if self.second {
            t.tap("slope", slope);
            for (i, g) in slope.grad_wrt(&x).iter().enumerate() {
                if let Some(g) = g {
                    t.tap(&format!("ddx{i}"), *g);
                }
            }
        }
        t.finish()
    }
}

fn argument<'t>(setting: Setting, x: Tensor<'t>) -> Tensor<'t> {
    match setting {
        Setting::Leaf => x,
        // Monotone, and of the sign of x.
        Setting::MidGraph => x + x.sin() * 0.1,
        Setting::Strided => {
            let order: Vec<usize> = (0..x.rank()).rev().collect();
            let turned = if order.len() > 1 { x.permute(&order) } else { x };
            (0..x.rank()).fold(turned, |x, axis| {
                let extent = x.shape()[axis] / 2;
                x.slice_step(axis, 2 * extent, extent, -2)
            })
        }
    }
}

/// A fixed direction, in which every element moves.
fn direction(shape: &Shape, salt: usize) -> Array {
    let values = (0..shape.numel()).map(|i| ((i * 37 + salt * 11 + 5) % 17) as f64 / 8.5 - 0.97);
    Array::new(shape, values.collect::<Vec<f64>>())
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
