//! Training in half precision: which gradients are lost and what loss scaling saves, measured on digits. A page of the
//! documentation holds the figures, which this test writes.

use approx::abs_diff_eq;
use std::{fmt::Write, path::Path};
use wgrad::{Array, DType, DynamicScale, LossScaler, Optimizer, Store, Tape, Tensor};
use wgrad_nn::{
    Builder, Init, Linear,
    data::{Digits, Task},
    optim::{Sgd, SgdConfig},
};
use wgrad_tests::Machine;

const BATCH: usize = 64;
const PIXELS: usize = 64;
const CLASSES: usize = 10;
const SEED: u64 = 1;

type Activation = for<'t> fn(Tensor<'t>) -> Tensor<'t>;

/// A perceptron on digits, with layers of one width.
struct Mlp {
    layers: Vec<Linear>,
    activation: Activation,
}

impl Mlp {
    /// Weights as PyTorch draws them: uniform within the root of the reciprocal of the fan-in.
    fn new(store: &mut Store, depth: usize, width: usize, activation: Activation) -> Self {
        let mut b = Builder::new(store, SEED);
        let layer = |i: usize| {
            let inputs = if i == 0 { PIXELS } else { width };
            let outputs = if i + 1 == depth { CLASSES } else { width };
            let init = Init::Uniform(1.0 / (inputs as f64).sqrt());
            Linear::new(b.at(&format!("layer{}", i + 1)), inputs, outputs, &init)
        };
        Self { layers: (0..depth).map(layer).collect(), activation }
    }

    /// The loss, and what each layer gives before its activation.
    fn loss<'t>(&self, tape: &'t Tape) -> (Tensor<'t>, Vec<Tensor<'t>>) {
        let x = tape.shared_input("x", [PIXELS, BATCH, 1], DType::F32).reshape([PIXELS, BATCH]).transpose();
        let y = tape.shared_input("y", [BATCH], DType::U32);
        let mut z: Vec<Tensor<'t>> = vec![];
        for layer in &self.layers {
            z.push(layer.forward(z.last().map_or(x, |z| (self.activation)(*z))));
        }
        (z[z.len() - 1].cross_entropy(y), z)
    }
}

/// The batch of a step.
fn batch(digits: &Digits, step: usize) -> [(String, Array); 2] {
    let batch = digits.train(BATCH, step as u64);
    let [x, y] = batch.take(["x", "y"]);
    [("x".into(), x), ("y".into(), y)]
}

// What is lost.

const SCALES: [f64; 4] = [1.0, 8.0, 256.0, 65536.0];
/// Ten sigmoid layers and what reads them.
const DEPTH: usize = 11;
const WIDTH: usize = 128;

/// For each layer, the share of gradient elements by `z` that a half holds as zero, and f32 does not, at a loss scale: in
/// a sigmoid network at its first values.
fn flushed(scale: f64) -> Vec<f64> {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DEPTH, WIDTH, |x| x.sigmoid());
    let mut cpu = Machine::poisoned(2, store);
    let step = cpu.session.record(|t| {
        let (loss, z) = model.loss(t);
        let exact = loss.grad_wrt(&z);
        let (loss, z) = t.autocast(DType::F16, || model.loss(t));
        let f16s = (loss * scale).grad_wrt(&z);
        for (exact, half) in exact.into_iter().zip(f16s) {
            let [exact, half] = [exact, half].map(|g| g.expect("reached"));
            let lost = half.cast(DType::F16).equals(0.0).and(!exact.equals(0.0));
            t.tap_each("lost", lost.cast(DType::F32).mean());
        }
    });
    let out = cpu.run(&step.expect("the plan compiles"), &batch(&Digits::embedded(SEED), 0));
    out.taps.iter().map(|(_, share)| share.item(0)).collect()
}

/// The share over all layers, which have unequal numbers of elements.
fn of_all(shares: &[f64]) -> f64 {
    let width = |i: usize| if i + 1 == DEPTH { CLASSES } else { WIDTH } as f64;
    let total: f64 = (0..DEPTH).map(width).sum();
    shares.iter().enumerate().map(|(i, share)| share * width(i)).sum::<f64>() / total
}

// What is learnt.

const STEPS: usize = 300;
/// The losses of so many steps at the end are averaged.
const LAST: usize = 50;
/// As small as the weight of one loss among others may be.
const SMALL: f64 = 1.0 / (1 << 20) as f64;

/// How a network is trained.
struct Run {
    name: &'static str,
    half: bool,
    /// What the loss is multiplied by, and the learning rate divided by.
    weight: f64,
    scale: Option<DynamicScale>,
}

/// What came of it.
#[derive(Debug)]
struct Outcome {
    /// The mean of the first and of the last losses, without their weight.
    first: f64,
    last: f64,
    /// Steps that were taken.
    taken: f64,
    /// The largest and smallest loss scale, and the last.
    scales: Option<[f64; 3]>,
}

fn train(run: &Run) -> Outcome {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, 3, 64, |x| x.tanh());
    let params = store.params();
    let lr = (0.1 / run.weight).into();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr, momentum: 0.9, ..SgdConfig::default() });
    let scaler = match &run.scale {
        Some(scale) => LossScaler::dynamic(&mut store, scale.clone()),
        None => LossScaler::none(),
    };
    let mut cpu = Machine::poisoned(2, store);
    let policy = if run.half { DType::F16 } else { DType::F32 };
    let step = cpu.session.record(|t| {
        let (loss, _) = t.autocast(policy, || model.loss(t));
        t.tap("loss", loss);
        sgd.step(scaler.scale(loss * run.weight).grad(&params).unscale(&scaler));
        scaler.update(t);
        if let Some((scale, _)) = scaler.states() {
            t.tap("scale", t.state(scale));
        }
    });
    let step = step.expect("the plan compiles");
    let digits = Digits::embedded(SEED);
    let (mut losses, mut scales) = (vec![], vec![]);
    for i in 0..STEPS {
        let inputs = batch(&digits, i);
        cpu.session.run(&step, &[("x", &inputs[0].1), ("y", &inputs[1].1)]).expect("it runs");
        let taps = cpu.session.taps().expect("it has run").pop().expect("the CPU delivers at once");
        losses.push(taps.scalar("loss").expect("tapped"));
        scales.extend(taps.scalar("scale"));
    }
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let range = |scales: &[f64]| {
        let by = |f: fn(f64, f64) -> f64| scales.iter().copied().reduce(f);
        Some([by(f64::max)?, by(f64::min)?, *scales.last()?])
    };
    Outcome {
        first: losses[0],
        last: mean(&losses[STEPS - LAST..]),
        taken: cpu.session.read(sgd.states().counter()).expect("readable").item(0),
        scales: range(&scales),
    }
}

/// The runs of the page, and what came of each.
fn runs() -> Vec<(Run, Outcome)> {
    let scale = |init: f64, interval: u32| Some(DynamicScale { init, interval, ..DynamicScale::default() });
    let runs = [
        Run { name: "f32", half: false, weight: 1.0, scale: None },
        Run { name: "f16, no scale", half: true, weight: 1.0, scale: None },
        Run { name: "f16, dynamic from 2^16", half: true, weight: 1.0, scale: scale(65536.0, 2000) },
        Run {
            name: "f16, dynamic from 2^24, growing after 60 steps",
            half: true,
            weight: 1.0,
            scale: scale(2f64.powi(24), 60),
        },
        Run { name: "f32, small loss", half: false, weight: SMALL, scale: None },
        Run { name: "f16, small loss, no scale", half: true, weight: SMALL, scale: None },
        Run { name: "f16, small loss, dynamic from 2^16", half: true, weight: SMALL, scale: scale(65536.0, 2000) },
    ];
    runs.into_iter()
        .map(|run| {
            let outcome = train(&run);
            (run, outcome)
        })
        .collect()
}

#[test]
fn a_scaled_loss_trains_in_half_as_in_f32_and_an_unscaled_small_one_does_not() {
    let runs = runs();
    let told = runs.iter().map(|(run, outcome)| format!("{}: {outcome:?}", run.name)).collect::<Vec<_>>().join("\n");
    let [f32, plain, scaled, high, small_f32, small_plain, small_scaled] = &runs[..] else { panic!("seven runs") };
    let last = |run: &(Run, Outcome)| run.1.last;
    // Skipped steps make another run of one: it is not held to the loss of f32, but learns as well.
    for run in [f32, high] {
        assert!(last(run) < 0.03 * run.1.first, "{} learns:\n{told}", run.0.name);
    }
    for run in [plain, scaled, small_scaled] {
        assert!(
            abs_diff_eq!(last(run), last(f32), epsilon = 0.02 * last(f32)),
            "{} ends as f32 does:\n{told}",
            run.0.name
        );
    }
    assert_eq!(last(small_f32), last(f32), "f32 has room for a small loss:\n{told}");
    assert!(last(small_plain) > 0.9 * small_plain.1.first, "a small loss without a scale is not learnt:\n{told}");

    let [most, least, end] = high.1.scales.expect("it has a scale");
    assert!(most == 2f64.powi(23) && least < 2f64.powi(20), "it backs off from what overflows:\n{told}");
    let skipped = STEPS as f64 - high.1.taken;
    assert!(skipped >= 2.0 && skipped < 0.2 * STEPS as f64, "and skips few steps:\n{told}");
    let grown = skipped - (2f64.powi(24) / end).log2();
    assert!(grown >= 1.0, "it has grown {grown} times:\n{told}");
    for run in [f32, plain, scaled, small_f32, small_plain, small_scaled] {
        assert_eq!(run.1.taken, STEPS as f64, "no overflow:\n{told}");
    }

    let shares: Vec<Vec<f64>> = SCALES.into_iter().map(flushed).collect();
    let all: Vec<f64> = shares.iter().map(|shares| of_all(shares)).collect();
    assert!(all.windows(2).all(|pair| pair[1] < 0.9 * pair[0]), "each scale saves gradients: {all:?}");
    assert!(all[0] > 0.4 && all[3] < 0.1, "most are lost, and then few: {all:?}");
    for shares in &shares {
        let lost = |range: std::ops::Range<usize>| shares[range].iter().sum::<f64>();
        assert!(lost(0..5) >= lost(5..10), "the first layers lose most: {shares:?}");
    }
    written(&page(&shares, &all, &runs));
}

const PAGE: &str = "\
# Half precision

This page is written by `tests/tests/half_training.rs`, which fails where a figure has moved.

`Tape::autocast(DType::F16, ..)` records matrix products and convolutions in half precision; its documentation has the
table of what is computed in which type. Parameters, optimizer states and their updates are f32. A `LossScaler` keeps
small gradients in range. Its scale, its back-off and its growth are nodes and states of the recorded step.

## Gradients lost

A half is zero below 2^-25, about 3e-8. The share of gradient elements that a half holds as zero and f32 does not, at
four loss scales (Micikevicius et al. 2018, \"Mixed precision training\"): gradients by each layer's output before its
activation, in a perceptron of ten sigmoid layers, 128 wide, and a linear one, on 64 digits, at its first values, which
are PyTorch's uniform ones. Counted on the tape, by a cast, two comparisons and a mean.

";

fn page(shares: &[Vec<f64>], all: &[f64], runs: &[(Run, Outcome)]) -> String {
    let mut page = String::from(PAGE);
    writeln!(page, "| layer | scale 1 | 8 | 256 | 65536 |\n|---|---:|---:|---:|---:|").unwrap();
    let mut line = |name: &str, shares: Vec<f64>| {
        let cells: Vec<String> = shares.iter().map(|share| format!("{:.1} %", 100.0 * share)).collect();
        writeln!(page, "| {name} | {} |", cells.join(" | ")).unwrap();
    };
    for layer in 0..DEPTH {
        line(&(layer + 1).to_string(), shares.iter().map(|shares| shares[layer]).collect());
    }
    line("all", all.to_vec());
    write!(
        page,
        "\n## Losses\n\n\
         A perceptron of three layers, 64 wide, tanh, on digits in batches of {BATCH}: {STEPS} steps of SGD with momentum \
         0.9 at\nlearning rate 0.1, from one seed. The loss is the mean of the last {LAST} steps. The small loss is \
         multiplied by 2^-20, and\nthe learning rate by 2^20, which in f32 changes no bit: without a scale all that a half \
         passes on is zero, and only the\nlast bias learns, whose gradient meets no matrix product.\n\n\
         | run | loss | steps taken | loss scale: most, least, last |\n|---|---:|---:|---|\n"
    )
    .unwrap();
    for (run, outcome) in runs {
        let power = |scale: f64| format!("2^{}", scale.log2());
        let scales = outcome.scales.map_or("-".into(), |scales| scales.map(power).join(", "));
        writeln!(page, "| {} | {:.4} | {} | {scales} |", run.name, outcome.last, outcome.taken).unwrap();
    }
    page
}

/// A text without its numbers, and the numbers as they are written.
fn taken_apart(text: &str) -> (String, Vec<&str>) {
    let (mut words, mut numbers) = (String::new(), vec![]);
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(start);
        let (number, after) = from.split_at(from.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(from.len()));
        words.push_str(before);
        numbers.push(number.trim_end_matches('.'));
        rest = after;
    }
    (words + rest, numbers)
}

/// Whether a written number is close to another: a share (one decimal) by 0.3 of a hundredth, others by 2 %.
fn is_close(have: &str, want: &str) -> bool {
    let [a, b]: [f64; 2] = [have, want].map(|number| number.parse().expect("digits and a point"));
    let share = want.split_once('.').is_some_and(|(_, decimals)| decimals.len() == 1);
    abs_diff_eq!(a, b, epsilon = if share { 0.3 } else { 0.02 * b })
}

/// Compares the page with what is there: another processor sums in another order, so its numbers may differ a little.
fn written(page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/half-precision.md");
    if std::env::var_os("WGRAD_BLESS").is_some() {
        std::fs::write(&path, page).expect("the page can be written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let ((have, numbers), (want, wanted)) = (taken_apart(&there), taken_apart(page));
    let same = |(have, want): (&&str, &&str)| is_close(have, want);
    assert!(
        have == want && numbers.len() == wanted.len() && numbers.iter().zip(&wanted).all(same),
        "docs/half-precision.md is out of date: run this test with WGRAD_BLESS=1 to write it anew; it should be\n{page}"
    );
}
