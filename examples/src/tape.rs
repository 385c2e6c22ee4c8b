//! `wgrad tape`: prints a recorded step with its lints, or its plan.

use crate::{
    Error, Result,
    cli::{Common, TapeArgs, TapeExample},
    device::Place,
    output::json,
    resnet, rnn, say, transformer, two_tower,
};
use serde::Serialize;
use std::collections::BTreeMap;
use wgrad::{
    Array, DType, Noise, Program, Store, Tape,
    plan::{Home, Kernel, Plan},
};
use wgrad_nn::{
    Builder, Init, Linear, Precision, Schedule, Trainer, TrainerConfig,
    optim::{AdamW, AdamWConfig},
};

/// A recorded step as JSON: its size, passes, commits, taps and lints.
#[derive(Serialize)]
struct TapeSummary {
    example: &'static str,
    nodes: usize,
    nodes_in_use: usize,
    passes: Vec<String>,
    commits: Vec<String>,
    taps: Vec<String>,
    unreached: Vec<String>,
    lints: Vec<String>,
}

/// A plan as JSON: the costs of a step.
#[derive(Serialize)]
struct PlanSummary {
    example: &'static str,
    nodes: usize,
    /// The number of kernels of each kind.
    kernels: BTreeMap<&'static str, usize>,
    /// The number of memory slots that values share, and their size in bytes.
    slots: usize,
    bytes: usize,
    states: usize,
    state_bytes: usize,
    /// The number of bytes that kernels read and write.
    traffic: usize,
    flops: usize,
}

impl PlanSummary {
    fn new(example: &'static str, program: &Program, plan: &Plan) -> Self {
        let mut kernels = BTreeMap::new();
        plan.kernels.iter().for_each(|kernel| *kernels.entry(kernel.name()).or_default() += 1);
        let memory = |wanted: fn(&Home) -> bool| {
            let slots = plan.slots.iter().filter(|slot| wanted(&slot.home));
            slots.fold((0, 0), |(n, bytes), slot| (n + 1, bytes + slot.len * slot.dtype.size()))
        };
        let (slots, bytes) = memory(|home| *home == Home::Transient);
        let (states, state_bytes) = memory(|home| matches!(home, Home::State(_)));
        let traffic = plan.kernels.iter().map(|kernel| plan.traffic(kernel)).sum();
        let flops = plan.kernels.iter().map(Kernel::flops).sum();
        let nodes = program.live().iter().filter(|live| **live).count();
        Self { example, nodes, kernels, slots, bytes, states, state_bytes, traffic, flops }
    }
}

/// `wgrad tape`.
///
/// # Errors
/// If the flags do not go together, the example's data cannot be read, or the device for a plan cannot be opened.
pub fn tape(args: &TapeArgs, common: &Common) -> Result<()> {
    if args.dot && common.json {
        return Err(Error::Usage("--dot and --json do not go together: a graph is no JSON object".into()));
    }
    let (example, (store, program)) = match &args.example {
        TapeExample::Rnn(args) => ("rnn", rnn::step(&rnn::Config::new(args, common.steps)?, common.seed())?),
        TapeExample::Transformer(args) => {
            let config = transformer::Config::new(args, common.steps)?;
            ("transformer", transformer::step(&config, common.seed())?)
        }
        TapeExample::Resnet(args) => {
            ("resnet", resnet::step(&resnet::Config::new(args, common.steps)?, common.seed())?)
        }
        TapeExample::TwoTower(args) => {
            ("two-tower", two_tower::step(&two_tower::Config::new(args, common.steps)?, common.seed())?)
        }
        TapeExample::Passes => ("passes", passes(common.seed())),
    };
    if args.plan {
        let session = Place::open(common)?.session(store)?;
        let (program, plan) = session.plan(&program);
        if common.json {
            json(&PlanSummary::new(example, &program, &plan));
        } else {
            say!("{}", plan.describe(&program));
        }
        return Ok(());
    }
    if common.json {
        let layout = program.layout();
        json(&TapeSummary {
            example,
            nodes: program.nodes().len(),
            nodes_in_use: program.live().iter().filter(|live| **live).count(),
            passes: program.passes().iter().map(ToString::to_string).collect(),
            commits: program.commits().iter().map(|(state, _)| layout.state(*state).name.clone()).collect(),
            taps: program.taps().iter().map(|tap| tap.name.clone()).collect(),
            unreached: program.unreached().iter().map(|param| layout.param(*param).path.clone()).collect(),
            lints: program.lints().iter().map(ToString::to_string).collect(),
        });
        return Ok(());
    }
    if args.dot {
        say!("{}", program.to_dot().trim_end());
        return Ok(());
    }
    say!("{}", program.to_string().trim_end());
    match program.lints() {
        [] => say!("no lints"),
        lints => {
            say!("\nlints");
            lints.iter().for_each(|lint| say!("  {lint}"));
        }
    }
    Ok(())
}

/// A step with every pass that a [`Trainer`] offers: a perceptron on digits, in half precision. Micro-batch and update
/// are one program here; a training run with several micro-batches has two programs.
fn passes(seed: u64) -> (Store, Program) {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, seed);
    let init = Init::XavierUniform { gain: 1.0 };
    let (hidden, head) = (Linear::new(b.at("hidden"), 64, 32, &init), Linear::new(b.at("head"), 32, 10, &init));
    let params = store.params();
    let lr = Schedule::WarmupCosine { base: 1e-3, steps: 100, total: 10_000, init: 1e-5, end: 0.0 };
    let adamw = AdamW::new(&mut store, &params, AdamWConfig { lr: lr.into(), ..AdamWConfig::default() });
    let config = TrainerConfig {
        accumulate: 4,
        precision: Precision::F16,
        noise: Some(Noise::annealed(0.01)),
        centralize: true,
        agc: Some(0.01),
        head: [Some(head.weight), head.bias].into_iter().flatten().collect(),
        clip_norm: Some(1.0),
        clip_value: Some(0.5),
        ema: Some(0.999),
        seed,
        ..TrainerConfig::default()
    };
    let trainer = Trainer::new(&mut store, &params, adamw, config, move |batch| {
        head.forward(hidden.forward(batch.get("x")).tanh()).cross_entropy(batch.get("y")).into()
    });
    let tape = Tape::new(store.layout().clone().into());
    let (x, y) = (Array::zeros([32, 64], DType::F32), Array::zeros([32], DType::U32));
    trainer.record_micro_batch(&tape, &[("x", &x), ("y", &y)]);
    trainer.record_update(&tape, true);
    (store, tape.finish())
}
