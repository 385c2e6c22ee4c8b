//! The precision of elementwise functions and their gradients, and the exceptions from its bounds.

use super::{Double, Point, least_normal, points, ulps, unit};
use crate::{Machine, Outputs, named};
use wgrad::{Array, DType, Data, Program, Tape, Tensor};

/// Points at which a gradient has another bound, or none.
pub struct Exception {
    /// The points and the bound, as a sentence of the page of operations.
    pub says: &'static str,
    /// True for the points of the exception.
    pub meant: fn(&Point) -> bool,
    /// The magnitude whose unit in the last place measures the error at these points; `None` if the error is not
    /// measured.
    pub scale: Option<f64>,
}

/// A function whose results are compared with results of 50 digits.
pub struct Function {
    /// The function's name, which is also the name of its file of points.
    pub name: &'static str,
    /// The function itself.
    pub f: for<'t> fn(&[Tensor<'t>]) -> Tensor<'t>,
    /// The exception for its gradient, if there is one.
    pub exception: Option<Exception>,
}

fn function(name: &'static str, f: for<'t> fn(&[Tensor<'t>]) -> Tensor<'t>) -> Function {
    Function { name, f, exception: None }
}

impl Function {
    fn except(self, says: &'static str, scale: Option<f64>, meant: fn(&Point) -> bool) -> Self {
        Self { exception: Some(Exception { says, meant, scale }), ..self }
    }
}

/// All elementwise functions.
pub fn functions() -> Vec<Function> {
    vec![
        function("abs", |x| x[0].abs()),
        function("add", |x| x[0] + x[1]),
        function("clamp", |x| x[0].clamp(-1.0, 1.0)),
        function("cos", |x| x[0].cos()),
        function("div", |x| x[0] / x[1]).except(
            "of `a / b` in b: where `a / b` is a normal number.",
            None,
            |point| !point.truths[0][0].is_normal(point.dtype),
        ),
        function("elu", |x| x[0].elu(0.7)),
        function("erf", |x| x[0].erf()),
        function("exp", |x| x[0].exp()),
        function("expm1", |x| x[0].expm1()),
        function("gelu", |x| x[0].gelu()).except(
            "of gelu, whose root is at -0.752: from -1.5 to -0.3 in units of 1/4, the size of the terms that cancel.",
            Some(0.25),
            |point| (-1.5..-0.3).contains(&point.inputs[0][0]),
        ),
        function("gelu_tanh", |x| x[0].gelu_tanh()).except(
            "of gelu_tanh, whose root is at -0.752: from -2 to -0.3 in units of 1/4, the size of the terms that cancel.",
            Some(0.25),
            |point| (-2.0..-0.3).contains(&point.inputs[0][0]),
        ),
        function("guarded_sqrt", |x| x[0].guarded_sqrt()),
        function("leaky_relu", |x| x[0].leaky_relu(0.1)),
        function("log", |x| x[0].log()),
        function("log1p", |x| x[0].log1p()),
        function("log_sigmoid", |x| x[0].log_sigmoid()),
        function("maximum", |x| x[0].maximum(x[1])),
        function("minimum", |x| x[0].minimum(x[1])),
        function("mul", |x| x[0] * x[1]),
        function("neg", |x| -x[0]),
        function("normal_cdf", |x| x[0].normal_cdf()),
        function("normal_pdf", |x| x[0].normal_pdf()).except(
            "of normal_pdf: where the density is a normal number.",
            None,
            |point| !point.truths[0][0].is_normal(point.dtype),
        ),
        function("pow", |x| x[0].pow(x[1])).except(
            "of `a^b`: where `a^b` and `a^(b - 1)` are normal numbers.",
            None,
            |point| {
                let (power, base) = (point.truths[0][0], point.inputs[0][0]);
                let less = Double::from(power.high / base);
                !power.is_normal(point.dtype) || !less.is_normal(point.dtype)
            },
        ),
        function("pow_3", |x| x[0].pow(3.0)),
        function("pow_minus_three_halves", |x| x[0].pow(-1.5)),
        function("recip", |x| x[0].recip()),
        function("relu", |x| x[0].relu()),
        function("rsqrt", |x| x[0].rsqrt()),
        function("sigmoid", |x| x[0].sigmoid()),
        function("silu", |x| x[0].silu()).except(
            "of silu, whose root is at -1.278: from -2 to -0.8 in units of 1/4, the size of the terms that cancel.",
            Some(0.25),
            |point| (-2.0..-0.8).contains(&point.inputs[0][0]),
        ),
        function("sin", |x| x[0].sin()),
        function("softplus", |x| x[0].softplus()),
        function("sqrt", |x| x[0].sqrt()),
        function("square", |x| x[0].square()),
        function("sub", |x| x[0] - x[1]),
        function("tanh", |x| x[0].tanh()),
    ]
}

impl Double {
    fn is_normal(self, dtype: DType) -> bool {
        self.high.abs() >= least_normal(dtype) && ulps(dtype, f64::INFINITY, self) > 1.0
    }
}

/// The largest error of a result, in units in the last place, and its point.
#[derive(Clone, Debug, Default)]
pub struct Worst {
    /// The error.
    pub ulps: f64,
    /// The arguments, the result and the truth, as text.
    pub at: String,
}

impl Worst {
    fn see(&mut self, error: f64, at: impl Fn() -> String) {
        if error > self.ulps {
            *self = Self { ulps: error, at: at() };
        }
    }
}

/// The device that computes results.
pub enum Device<'a> {
    /// The reference interpreter.
    Reference,
    /// The CPU, which keeps subnormal numbers.
    Cpu(&'a mut Machine),
    /// A GPU, which may flush subnormal numbers to 0. In f32, subnormal arguments are left out, and results below
    /// sixteen times the least normal number may be any number between 0 and the truth.
    Gpu(&'a mut Machine),
}

impl Device<'_> {
    fn run(&mut self, program: Program, inputs: &[(String, Array)]) -> Vec<Vec<f64>> {
        let taps = |outputs: Outputs| outputs.taps.iter().map(|(_, value)| value.to_f64()).collect();
        match self {
            Device::Reference => {
                let outcome = wgrad_cpu::reference::run(&program, &[], &named(inputs)).expect("the reference runs");
                outcome.taps.into_iter().map(|(.., value)| value).collect()
            }
            Device::Cpu(machine) | Device::Gpu(machine) => {
                let step = machine.session.compile(program).expect("the plan compiles");
                taps(machine.run(&step, inputs))
            }
        }
    }
}

/// The largest errors of a function's value and of its gradient, in a type.
///
/// # Panics
/// If the device fails.
pub fn worst(function: &Function, dtype: DType, mut device: Device<'_>) -> [Worst; 2] {
    let flushing = matches!(device, Device::Gpu(_)) && dtype == DType::F32;
    let least = least_normal(dtype);
    let kept = |x: &f64| !flushing || *x == 0.0 || x.abs() >= least;
    let mut points = points(function.name);
    points.retain(|point| point.dtype == dtype && point.inputs.iter().flatten().all(kept));
    let inputs: Vec<(String, Array)> = (0..points[0].inputs.len())
        .map(|i| {
            let column: Vec<f64> = points.iter().map(|point| point.inputs[i][0]).collect();
            (format!("x{i}"), Array::new([column.len()], Data::from_f64(dtype, &column)))
        })
        .collect();
    let t = Tape::default();
    let x: Vec<Tensor<'_>> = inputs.iter().map(|(name, array)| t.input_like(name, array)).collect();
    let y = (function.f)(&x);
    t.tap("value", y);
    for slope in y.vjp(y.ones_like(), &x) {
        t.tap_each("slope", slope.expect("it depends on each"));
    }
    let results = device.run(t.finish(), &inputs);
    let mut worst = [Worst::default(), Worst::default()];
    for (i, point) in points.iter().enumerate() {
        let meant = function.exception.as_ref().filter(|exception| (exception.meant)(point));
        for (k, result) in results.iter().enumerate() {
            let (have, truth) = (result[i], point.truths[k][0]);
            let error = match meant.filter(|_| k > 0) {
                Some(Exception { scale: None, .. }) => continue,
                Some(Exception { scale: Some(scale), .. }) => {
                    ((have - truth.high) - truth.low).abs() / unit(dtype, *scale)
                }
                None => ulps(dtype, have, truth),
            };
            let flushed = flushing && truth.high.abs() < 16.0 * least && (0.0..=1.0).contains(&(have / truth.high));
            let zero = flushing && have == 0.0 && truth.high.abs() < 16.0 * least;
            if !flushed && !zero {
                worst[k.min(1)].see(error, || format!("{:e}: {have:e}, not {:e}", Inputs(&point.inputs), truth.high));
            }
        }
    }
    worst
}

/// The arguments of a point, for messages.
struct Inputs<'a>(&'a [Vec<f64>]);

impl std::fmt::LowerExp for Inputs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().flatten().enumerate().try_for_each(|(i, x)| write!(f, "{}{x:e}", if i > 0 { ", " } else { "" }))
    }
}
