//! Gradients against central differences in f64 on the reference interpreter, first and second order; and the CPU
//! executor against the reference on the same programs.

use crate::{Machine, Tolerance, compare, reference};
use wgrad::{Array, DType, Program, Shape, Store, Tape, Tensor};

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
pub enum Setting {
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
    /// The first derivative that finite differences contradict, or the first value that the CPU computes differently.
    pub fn run(&self, f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Result<(), String> {
        for setting in [Setting::Leaf, Setting::MidGraph, Setting::Strided] {
            self.run_in(setting, &f).map_err(|error| format!("{setting:?}: {error}"))?;
        }
        Ok(())
    }

    /// Checks a function in one setting, in first or second order.
    ///
    /// # Errors
    /// As [`Gradcheck::run`].
    pub fn differences(
        &self,
        setting: Setting,
        second: bool,
        f: &impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>,
    ) -> Result<(), String> {
        let (shapes, indices) = (self.shapes.clone(), self.indices.clone());
        Self { shapes, indices, second, domain: self.domain }.run_in(setting, f)
    }

    /// The numbers that a function is checked on.
    pub fn numbers(&self) -> Vec<Array> {
        self.leaves(Setting::Leaf)
    }

    /// What a check of this function runs, with the arguments as leaves.
    pub fn program(&self, f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Program {
        self.record(Setting::Leaf, &self.leaves(Setting::Leaf), &f)
    }

    fn run_in(&self, setting: Setting, f: &impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Result<(), String> {
        let leaves: Vec<Array> = self.leaves(setting);
        let program = self.record(setting, &leaves, f);
        let inputs = |leaves: &[Array]| -> Vec<(String, Array)> {
            let floats = leaves.iter().enumerate().map(|(i, x)| (format!("x{i}"), x.clone()));
            let directions = leaves
                .iter()
                .enumerate()
                .map(|(i, x)| (format!("v{i}"), Array::new(x.shape(), dense(x.shape().numel(), i))));
            let indices = self.indices.iter().enumerate().map(|(i, x)| (format!("index{i}"), x.clone()));
            let declared = |name: &str| program.inputs().iter().any(|input| input.name == name);
            floats.chain(directions).chain(indices).filter(|(name, _)| declared(name)).collect()
        };
        let outcome = reference(&program, &[], &inputs(&leaves));
        let mut cpu = Machine::poisoned(1, Store::new());
        let step = cpu.session.compile(program.clone()).expect("the plan compiles");
        for ((name, have), (.., want)) in cpu.run(&step, &inputs(&leaves)).taps.iter().zip(&outcome.taps) {
            compare(&format!("{name} on the CPU"), &have.to_f64(), want, Tolerance::F64)?;
        }
        let base = |name: &str| outcome.taps.iter().find(|(n, ..)| n == name).map(|(.., values)| values.clone());
        let moved = |leaves: &[Array], name: &str| {
            let outcome = reference(&program, &[], &inputs(leaves));
            outcome.taps.iter().find(|(n, ..)| n == name).expect("tapped").2[0]
        };
        let orders: &[(&str, &str)] = if self.second { &[("loss", "dx"), ("slope", "ddx")] } else { &[("loss", "dx")] };
        for &(value, gradient) in orders {
            for (i, leaf) in leaves.iter().enumerate() {
                // Absent means that the sweep holds the derivative to be exactly 0.
                let recorded = base(&format!("{gradient}{i}")).unwrap_or_else(|| vec![0.0; leaf.shape().numel()]);
                for direction in directions(leaf.shape().numel()) {
                    let at = |h: f64| {
                        let mut leaves = leaves.clone();
                        let values = leaf.to_f64().iter().zip(&direction).map(|(x, d)| x + h * d).collect::<Vec<f64>>();
                        leaves[i] = Array::new(leaf.shape(), values);
                        moved(&leaves, value)
                    };
                    let (want, error) = central_difference(at, 1e-3);
                    let have: f64 = recorded.iter().zip(&direction).map(|(g, d)| g * d).sum();
                    if (have - want).abs() > 1e-7 * want.abs().max(1.0) + 0.1 * error || have.is_nan() {
                        return Err(format!(
                            "{gradient}{i} . {direction:?} is {have}, by differences {want}\n{program}"
                        ));
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

/// A direction in which every element moves.
fn dense(numel: usize, salt: usize) -> Vec<f64> {
    (0..numel).map(|i| ((i * 37 + salt * 11 + 5) % 17) as f64 / 8.5 - 0.97).collect()
}

/// The directions in which a leaf is moved: a dense one, and single elements, a few of them if there are many.
fn directions(numel: usize) -> Vec<Vec<f64>> {
    const SINGLE: usize = 8;
    let stride = numel.div_ceil(SINGLE).max(1);
    let single = (0..numel).step_by(stride).map(|element| (0..numel).map(|i| (i == element) as u8 as f64).collect());
    std::iter::once(dense(numel, 3)).chain(single).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
