//! Every operation passes every check. The table of both is a page of the documentation, which this test writes.

use std::{collections::BTreeMap, fmt::Write, path::Path};
use wgrad::{Array, DType, Data, Store, Tape, Tensor};
use wgrad_tests::{
    Machine,
    catalogue::{Row, catalogue},
    checks::{CHECKS, Check, special_floats},
    gpu,
    precision::{
        elementwise::{Device, Worst, functions, worst},
        rows,
    },
    reference,
};

/// The cells that are empty for a reason.
const EXEMPT: &[(&str, &str, &str)] = &[
    ("accuracy", "empty", "the mean of no rows is NaN"),
    ("batch_norm", "one", "one element has no variance: it is refused while recording"),
    ("cross_entropy", "empty", "the mean of no rows is NaN"),
    ("nll", "empty", "the mean of no rows is NaN"),
    ("std_axes_with", "one", "one element has no unbiased deviation: it is NaN"),
    ("max", "empty", "the maximum of nothing is minus infinity"),
    ("mean", "empty", "the mean of nothing is NaN"),
    ("min", "empty", "the minimum of nothing is infinite"),
    ("mse", "empty", "the mean of nothing is NaN"),
    ("var_axes_with", "one", "one element has no unbiased variance: it is NaN"),
];

/// How many rows of an operation passed each check; what failed; and what nobody checked.
#[test]
fn every_operation_passes_every_check() {
    let mut cells: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut failures = vec![];
    for (op, outcomes) in checked() {
        let passed = cells.entry(op).or_insert_with(|| vec![0; CHECKS.len()]);
        for (outcome, passed) in outcomes.into_iter().zip(passed) {
            match outcome {
                Some(Ok(())) => *passed += 1,
                Some(Err(why)) => failures.push(why),
                None => {}
            }
        }
    }
    let names: Vec<&str> = failures.iter().map(|f| f.lines().next().expect("a line")).collect();
    assert!(failures.is_empty(), "{} fail:\n{}\nthe first:\n{}", names.len(), names.join("\n"), failures[0]);

    let exempt = |op: &str, check: &str| EXEMPT.iter().find(|(o, c, _)| *o == op && *c == check).map(|(.., why)| *why);
    let all =
        || cells.iter().flat_map(|(op, passed)| CHECKS.iter().zip(passed).map(move |(c, n)| (&op[..], c.name, *n)));
    let missing: Vec<_> = all().filter(|&(op, check, n)| n == 0 && exempt(op, check).is_none()).collect();
    assert!(missing.is_empty(), "nobody checks {missing:?}");
    let idle: Vec<_> = EXEMPT.iter().filter(|(op, check, _)| !all().any(|cell| cell == (*op, *check, 0))).collect();
    assert!(idle.is_empty(), "these are checked, and need no excuse: {idle:?}");

    let mut page = String::from(PAGE);
    writeln!(page, "| operation | {} |", CHECKS.iter().map(|c| c.name).collect::<Vec<_>>().join(" | ")).unwrap();
    writeln!(page, "|---|{}", "---:|".repeat(CHECKS.len())).unwrap();
    for (op, passed) in &cells {
        let cell = |n: &usize| if *n > 0 { n.to_string() } else { "-".into() };
        writeln!(page, "| {op} | {} |", passed.iter().map(cell).collect::<Vec<_>>().join(" | ")).unwrap();
    }
    page += "\nEmpty cells:\n\n";
    for (op, check, why) in EXEMPT {
        writeln!(page, "- {op}, {check}: {why}.").unwrap();
    }
    page += &special_values();
    page += &precision();
    page += &rows::section(&rows::on_cpu());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    if std::env::var_os("WGRAD_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be made");
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(have == page, "docs/operations.md is out of date: run this test with WGRAD_BLESS=1 to write it anew");
}

/// The operation of each row, and what each check says of it.
type Outcomes = Vec<(String, Vec<Option<Result<(), String>>>)>;

/// Runs all checks on all rows, on as many threads as there are.
fn checked() -> Outcomes {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    // Rows cannot be sent: each thread makes its own, and runs every n-th of them.
    let part = |first: usize| -> Outcomes {
        let say = |row: &Row, check: &Check| {
            Some((check.run)(row)?.map_err(|why| format!("{}: {}: {why}", row.name, check.name)))
        };
        let outcomes = |row: Row| (row.op.clone(), CHECKS.iter().map(|check| say(&row, check)).collect());
        catalogue().into_iter().skip(first).step_by(threads).map(outcomes).collect()
    };
    std::thread::scope(|scope| {
        let part = &part;
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("no check panics")).collect()
    })
}

const PAGE: &str = "\
# Operations, and what is checked of each

This page is written by `tests/tests/operations.rs`, which fails where a check fails, or where an operation lacks one.
A number says on how many kinds of arguments (the rows of `tests/src/catalogue`) the check has passed.

- *gradient*, *second order*: derivatives against finite differences, in f64.
- *mid-graph*, *views*: the same with arguments that are computed and used elsewhere too; and that are every other
  element, backwards, of larger tensors with their dimensions in reverse order.
- *f64*, *f32*, *f16*: values and derivatives on the CPU against the reference interpreter, in memory full of NaN.
- *unfused*: the same with one kernel per node.
- *same bits*: on one, two and three threads, and cut into the smallest tasks.
- *empty*, *one*, *odd*: sizes that all these were run on.
- *special floats*: NaN, infinities, zeros of both signs and (in f64) subnormal numbers give on the CPU what the
  reference gives, in values and gradients. A convolution may multiply padding with its weights, so for it that holds of
  values, and of special floats in the images: NaN or infinite weights may show at the borders. Where 3x3 weights of 32
  channels and more are multiplied in squares, special floats may show in the results of the same square, and from 16
  channels on in the whole gradient of the weights between the same two channels.

";

/// A function of one number.
type Function = fn(Tensor<'_>) -> Tensor<'_>;

/// Functions whose values at special points are documented.
const FUNCTIONS: &[(&str, Function)] = &[
    ("-x", |x| -x),
    ("recip", |x| x.recip()),
    ("sqrt", |x| x.sqrt()),
    ("rsqrt", |x| x.rsqrt()),
    ("guarded_sqrt", |x| x.guarded_sqrt()),
    ("exp", |x| x.exp()),
    ("expm1", |x| x.expm1()),
    ("log", |x| x.log()),
    ("log1p", |x| x.log1p()),
    ("sin", |x| x.sin()),
    ("cos", |x| x.cos()),
    ("tanh", |x| x.tanh()),
    ("erf", |x| x.erf()),
    ("normal_cdf", |x| x.normal_cdf()),
    ("normal_pdf", |x| x.normal_pdf()),
    ("abs", |x| x.abs()),
    ("square", |x| x.square()),
    ("x.pow(2.0)", |x| x.pow(2.0)),
    ("x.pow(0.0)", |x| x.pow(0.0)),
    ("x.pow(-1.0)", |x| x.pow(-1.0)),
    ("x.maximum(0.0)", |x| x.maximum(0.0)),
    ("x.minimum(0.0)", |x| x.minimum(0.0)),
    ("x.clamp(-1.0, 1.0)", |x| x.clamp(-1.0, 1.0)),
    ("sigmoid", |x| x.sigmoid()),
    ("log_sigmoid", |x| x.log_sigmoid()),
    ("softplus", |x| x.softplus()),
    ("relu", |x| x.relu()),
    ("leaky_relu(0.1)", |x| x.leaky_relu(0.1)),
    ("elu(1.0)", |x| x.elu(1.0)),
    ("gelu", |x| x.gelu()),
    ("gelu_tanh", |x| x.gelu_tanh()),
    ("silu", |x| x.silu()),
];

/// The second table of the page: values and slopes at special points, the same on the reference and, in f64 and f32, on
/// the CPU.
fn special_values() -> String {
    const POINTS: [(&str, f64); 6] = [
        ("NaN", f64::NAN),
        ("inf", f64::INFINITY),
        ("-inf", f64::NEG_INFINITY),
        ("0", 0.0),
        ("-0", -0.0),
        ("-1", -1.0),
    ];
    let mut page = String::from(
        "\n## Special values\n\nThe value, and the slope in brackets, at special points: the same in every float type.\n\n",
    );
    writeln!(page, "| function | {} |\n|---|{}", POINTS.map(|(name, _)| name).join(" | "), "---|".repeat(6)).unwrap();
    for (name, f) in FUNCTIONS {
        let values = |dtype: DType| {
            let t = Tape::default();
            let x = t.input("x", [POINTS.len()], dtype);
            let y = f(x);
            t.tap("y", y);
            t.tap("dx", y.sum().grad_wrt(&[x])[0].expect("it depends on x"));
            let inputs =
                [("x".to_string(), Array::new([POINTS.len()], Data::from_f64(dtype, &POINTS.map(|(_, x)| x))))];
            (t.finish(), inputs)
        };
        let show = |v: f64| match v {
            v if v.is_nan() => "NaN".to_string(),
            v if v.is_infinite() => if v > 0.0 { "inf" } else { "-inf" }.to_string(),
            v if v == 0.0 => if v.is_sign_negative() { "-0" } else { "0" }.to_string(),
            v => format!("{}", (v * 1e4).round() / 1e4),
        };
        let (program, inputs) = values(DType::F64);
        let want = reference(&program, &[], &inputs);
        let cell = |i: usize| format!("{} ({})", show(want.taps[0].2[i]), show(want.taps[1].2[i]));
        let cells: Vec<String> = (0..POINTS.len()).map(cell).collect();
        for dtype in [DType::F64, DType::F32] {
            let (program, inputs) = values(dtype);
            let mut cpu = Machine::poisoned(1, Store::new());
            let step = cpu.session.compile(program).expect("the plan compiles");
            let have = cpu.run(&step, &inputs);
            let (y, dx) = (have.tap("y").to_f64(), have.tap("dx").to_f64());
            let have: Vec<String> = (0..POINTS.len()).map(|i| format!("{} ({})", show(y[i]), show(dx[i]))).collect();
            assert_eq!(have, cells, "{name} of {dtype} on the CPU, and on the reference");
        }
        writeln!(page, "| {name} | {} |", cells.join(" | ")).unwrap();
    }
    page
}

/// The most that a type's results may lie from the truth, in units in the last place, on the CPU and on wgpu.
const BOUNDS: [(DType, f64, Option<f64>); 3] =
    [(DType::F64, 4.0, None), (DType::F32, 4.0, Some(8.0)), (DType::F16, 1.0, Some(1.0))];

/// The third table of the page: how far elementwise functions and their gradients lie from what 50 digits give.
fn precision() -> String {
    let mut page = String::from(PRECISION);
    page += "| function | f64 | f32 | f16 |\n|---|---:|---:|---:|\n";
    let mut failures = vec![];
    let functions = functions();
    for function in &functions {
        let mut line = format!("| {} |", function.name);
        for (dtype, bound, on_gpu) in BOUNDS {
            let mut judge = |who: &str, bound: f64, worst: [Worst; 2]| {
                for (what, Worst { ulps, at }) in ["value", "gradient"].into_iter().zip(&worst) {
                    if *ulps > bound {
                        failures.push(format!("{}, {what} in {dtype} on {who}: {ulps:.2} ulp at {at}", function.name));
                    }
                }
                worst.map(|worst| worst.ulps)
            };
            if dtype == DType::F64 {
                judge("the reference", bound, worst(function, dtype, Device::Reference));
            }
            let mut cpu = Machine::poisoned(1, Store::new());
            let measured = judge("the CPU", bound, worst(function, dtype, Device::Cpu(&mut cpu)));
            // The standard library's functions of f64 differ from system to system by less than a unit.
            let step = if dtype == DType::F64 { 1.0 } else { 0.5 };
            let [value, gradient] = measured.map(|ulps| (ulps / step).ceil() * step);
            write!(line, " {value}, {gradient} |").unwrap();
            if let (Some(bound), Some(gpu)) = (on_gpu, gpu()) {
                let mut gpu = Machine::on_gpu(gpu, Store::new());
                judge("wgpu", bound, worst(function, dtype, Device::Gpu(&mut gpu)));
            }
        }
        writeln!(page, "{line}").unwrap();
    }
    assert!(failures.is_empty(), "{} are over their bounds:\n{}", failures.len(), failures.join("\n"));
    page += "\nGradients are held to something else in a few places:\n\n";
    for exception in functions.iter().filter_map(|function| function.exception.as_ref()) {
        writeln!(page, "- {}", exception.says).unwrap();
    }
    page += "- of recurrent cells, from the gates that the forward pass stores, as `y (1 - y)` and `1 - y^2`: in units of 1.\n";
    page
}

const PRECISION: &str = "
## Precision

The largest errors of the value and of the gradient on the CPU, in units in the last place (ulp) of the true result, over
all finite arguments of each type for which there is a result: a few hundred points of every exponent, subnormal ones
among them, and close to where a function changes its form, overflows or underflows. The truth has 50 digits
(`tests/precision`). Correct rounding is 0.5; errors are rounded up to halves, those of f64, which come from the standard
library, to whole units. The bounds are 4 in f64 and f32, and 1 in f16, whose functions are computed in f32 and rounded
once. On wgpu they are 8 in f32 and 1 in f16. WGSL lets a device take subnormal numbers for 0: there subnormal arguments
are left out, and results below 2^-122 may be closer to 0.

";

#[test]
fn elementwise_functions_and_their_gradients_are_precise() {
    precision();
}

#[test]
fn special_floats_are_special() {
    for dtype in [DType::F64, DType::F32] {
        let floats = special_floats(dtype);
        assert!(floats.iter().any(|x| x.is_nan()) && floats.iter().any(|x| x.is_infinite()));
        assert!(floats.iter().any(|x| *x == 0.0 && x.is_sign_negative()), "{floats:?}");
    }
    assert!(special_floats(DType::F64).iter().any(|x| x.is_subnormal()));
}
