//! Checks of gradients against finite differences, first and second order, with the arguments as leaves, mid-graph and
//! strided; and of the CPU against the reference on the same programs.

use crate::{Machine, Tolerance, compare, reference};
use wgrad::{
    Array, DType, Program, Shape, Store, Tape, Tensor,
    testing::{Checked, Gradcheck as Differences},
};

/// The numbers of a check's arguments. All of them are at least 0.03 apart from each other and from 0, so that no
/// maximum or comparison is near a tie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    /// Numbers of both signs.
    Any,
    /// Positive numbers of at least 0.3.
    Positive,
}

/// Up to this number of elements, differences are taken for each element alone.
const SINGLE: usize = 24;

/// The origin of the checked function's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// The arguments are leaves.
    Leaf,
    /// The arguments are computed from leaves, which are also used elsewhere.
    MidGraph,
    /// The arguments are views: every other element, backwards, of longer leaves with reversed dimensions.
    Strided,
}

/// A gradient check of one function.
///
/// The function gets float arguments of the given shapes, then the index arrays, and returns a float tensor.
pub struct Gradcheck {
    /// The shapes of the float arguments.
    pub shapes: Vec<Shape>,
    /// The numbers in the float arguments.
    pub domain: Domain,
    /// The integer arguments.
    pub indices: Vec<Array>,
    /// True to check second derivatives too.
    pub second: bool,
}

impl Gradcheck {
    /// A first and second order check over arguments of these shapes.
    pub fn new<S: Into<Shape>>(shapes: impl IntoIterator<Item = S>) -> Self {
        let shapes = shapes.into_iter().map(Into::into).collect();
        Self { shapes, domain: Domain::Any, indices: vec![], second: true }
    }

    /// The same check with positive numbers only.
    pub fn positive(self) -> Self {
        Self { domain: Domain::Positive, ..self }
    }

    /// The same check with integer arguments after the float arguments.
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

    /// The values of the float arguments.
    pub fn numbers(&self) -> Vec<Array> {
        self.leaves(Setting::Leaf)
    }

    /// The program that a check of this function runs, with the arguments as leaves.
    pub fn program(&self, f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Program {
        self.record(Setting::Leaf, &self.leaves(Setting::Leaf), &f)
    }

    fn run_in(&self, setting: Setting, f: &impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Result<(), String> {
        let leaves = self.leaves(setting);
        let program = self.record(setting, &leaves, f);
        let mut cpu = Machine::poisoned(1, Store::new());
        self.agree(&mut cpu, &program, &leaves)?;
        let total: usize = leaves.iter().map(|x| x.shape().numel()).sum();
        // Differences are taken for each element if there are few; otherwise in random directions, which move all
        // elements.
        let check = Differences::new();
        let check = if total <= SINGLE { check } else { check.random_directions(3) };
        let check = if self.second { check.second_order() } else { check };
        let arrays = [&leaves[..], &self.indices].concat();
        let checked = check.check(&mut cpu.session, &arrays, |x| {
            let (x, indices) = x.split_at(leaves.len());
            loss(setting, x, indices, f)
        });
        match checked {
            Ok(Checked { kinks: 0, .. }) => Ok(()),
            Ok(Checked { kinks, .. }) => Err(format!("{kinks} kinks, though no numbers are close\n{program}")),
            Err(error) => Err(format!("{error}\n{program}")),
        }
    }

    /// Compares the results of the CPU with the reference's.
    fn agree(&self, cpu: &mut Machine, program: &Program, leaves: &[Array]) -> Result<(), String> {
        let floats = leaves.iter().enumerate().map(|(i, x)| (format!("x{i}"), x.clone()));
        let directions = leaves
            .iter()
            .enumerate()
            .map(|(i, x)| (format!("v{i}"), Array::new(x.shape(), dense(x.shape().numel(), i))));
        let indices = self.indices.iter().enumerate().map(|(i, x)| (format!("index{i}"), x.clone()));
        let declared = |name: &str| program.inputs().iter().any(|input| input.name == name);
        let inputs: Vec<(String, Array)> =
            floats.chain(directions).chain(indices).filter(|(name, _)| declared(name)).collect();
        let outcome = reference(program, &[], &inputs);
        let step = cpu.session.compile(program.clone()).expect("the plan compiles");
        for ((name, have), (.., want)) in cpu.run(&step, &inputs).taps.iter().zip(&outcome.taps) {
            compare(&format!("{name} on the CPU"), &have.to_f64(), want, Tolerance::F64)?;
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

    /// Records the loss, its gradient `dx`, the slope `dx . v`, and the gradient `ddx` of the slope.
    fn record(&self, setting: Setting, leaves: &[Array], f: &impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>) -> Program {
        let t = Tape::default();
        let x: Vec<Tensor<'_>> = leaves.iter().enumerate().map(|(i, x)| t.input_like(&format!("x{i}"), x)).collect();
        let indices: Vec<Tensor<'_>> =
            self.indices.iter().enumerate().map(|(i, index)| t.input_like(&format!("index{i}"), index)).collect();
        let loss = loss(setting, &x, &indices, f);
        t.tap("loss", loss);
        let gradients = loss.grad_wrt(&x);
        let mut slope = t.scalar(0.0, DType::F64);
        for (i, g) in gradients.iter().enumerate() {
            if let Some(g) = g {
                t.tap(&format!("dx{i}"), *g);
                slope += (*g * t.input(&format!("v{i}"), g.shape(), DType::F64)).sum();
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

/// A scalar that depends on each element of the result with another weight, and not linearly.
fn loss<'t>(
    setting: Setting,
    x: &[Tensor<'t>],
    indices: &[Tensor<'t>],
    f: &impl for<'u> Fn(&[Tensor<'u>]) -> Tensor<'u>,
) -> Tensor<'t> {
    let args: Vec<Tensor<'t>> = x.iter().map(|&x| argument(setting, x)).chain(indices.iter().copied()).collect();
    let y = f(&args);
    let weights = (y.tape().iota(y.numel()).cast(DType::F64) * 0.7 + 0.3).cos().reshape(y.shape());
    let loss = (y * weights).sum() + (y * 0.5).sin().sum();
    if setting != Setting::MidGraph {
        return loss;
    }
    x.iter().fold(loss.tanh() + loss, |loss, x| loss + (*x * *x).sum())
}

fn argument<'t>(setting: Setting, x: Tensor<'t>) -> Tensor<'t> {
    match setting {
        Setting::Leaf => x,
        // The function is monotone and keeps the sign of `x`.
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

/// A direction that moves every element.
fn dense(numel: usize, salt: usize) -> Vec<f64> {
    (0..numel).map(|i| ((i * 37 + salt * 11 + 5) % 17) as f64 / 8.5 - 0.97).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
