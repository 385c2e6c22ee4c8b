//! `wgrad rnn` and `wgrad tape rnn`: what they print.

use super::{
    config::{BAD_BOUND, Case, CellName, Config, Fix, TaskName},
    table::{FlowColumn, flow_table},
    train::{Files, Finished, Watch, check, program, run},
};
use crate::{
    Error, Result,
    cli::{Common, RnnArgs, RnnRunArgs, TapeArgs},
    device,
    output::json,
    say,
    tour::line,
};
use serde::Serialize;
use std::collections::BTreeMap;
use wgrad::{
    Program, Session,
    plan::{Home, Kernel, Plan},
};

/// A run that another is shown beside.
struct Beside {
    title: &'static str,
    run: Finished,
}

/// `wgrad rnn`.
///
/// # Errors
/// If the flags do not go together, or the run fails.
pub fn train(args: &RnnRunArgs, common: &Common) -> Result<()> {
    let settings = &args.settings;
    let config = Config::new(settings, common.steps)?;
    let files = Files { save: args.save.clone(), resume: args.resume.clone() };
    let watch = if common.quiet { Watch::Silent } else { Watch::Bar };
    let comparison = if common.json || common.quiet { None } else { comparison(settings, common)? };
    let mut beside = None;
    if let Some((title, other)) = comparison {
        check(&config, common, &files)?;
        say!("First {title}, for the comparison:");
        let run = run(&other, common, &Files::default(), watch)?;
        say!("{}", line(&run));
        if run.interrupted {
            say!("Interrupted before the run itself: nothing is saved");
            return Ok(());
        }
        say!("\nNow as asked:");
        beside = Some(Beside { title, run });
    }
    let finished = run(&config, common, &files, watch)?;
    if common.json {
        json(&finished.report);
        return Ok(());
    }
    if finished.interrupted {
        let steps = finished.report.steps;
        match &files.save {
            Some(path) => say!("Interrupted after {steps} steps and saved: go on with --resume {}", path.display()),
            None => say!("Interrupted after {steps} steps; nothing is saved without --save FILE"),
        }
    }
    say!("{}", line(&finished));
    if !common.quiet {
        show(settings, beside, &finished);
    }
    Ok(())
}

/// The run that this one is shown beside: a cured one beside the same without the cure, a gated cell on the digits beside
/// the tanh network.
fn comparison(args: &RnnArgs, common: &Common) -> Result<Option<(&'static str, Config)>> {
    let (title, other) = match (args.fix, args.task, args.cell) {
        (Fix::None, TaskName::Digits, None | Some(CellName::Lstm | CellName::Gru)) => {
            ("the tanh network", RnnArgs { cell: Some(CellName::Rnn), ..args.clone() })
        }
        (Fix::None, ..) => return Ok(None),
        (Fix::MetaClip, ..) => {
            let max_norm = Some(args.max_norm.unwrap_or(BAD_BOUND));
            ("with the bound that it begins with", RnnArgs { fix: Fix::ClipNorm, max_norm, ..args.clone() })
        }
        _ => ("without the cure", RnnArgs { fix: Fix::None, max_norm: None, ..args.clone() }),
    };
    Ok(Some((title, Config::new(&other, common.steps)?)))
}

/// The flow of gradients over time, and the verdict.
fn show(args: &RnnArgs, beside: Option<Beside>, finished: &Finished) {
    let name = match (&beside, args.fix) {
        (None, _) => "|dL/dz|",
        (Some(_), Fix::None) => "as asked",
        (Some(_), _) => "with the cure",
    };
    let columns = |flow: fn(&Finished) -> Vec<f64>| {
        let runs = beside.iter().map(|b| (b.title, &b.run)).chain([(name, finished)]);
        flow_table(&runs.map(|(name, run)| FlowColumn { name: name.into(), flow: flow(run) }).collect::<Vec<_>>())
    };
    let (peak, typical) = (columns(|run| run.history.flow_at_peak()), columns(|run| run.history.typical_flow()));
    say!("\nMean |dL/dz| per time step, at the step of the largest gradient:\n{peak}");
    say!("Mean |dL/dz| per time step, the median over the last tenth of steps:\n{typical}");
    say!("flow ratio, first third over last third: {:.1e}", finished.report.flow_ratio);
    if let Some(bound) = finished.bound {
        say!("bound on the gradient norm: {bound:.2}, from {}", args.max_norm.unwrap_or(BAD_BOUND));
    }
    say!("verdict: {}", finished.report.verdict);
    match (args.case, args.fix) {
        (Case::Exploding, Fix::None) => say!("The cure is one flag away: --fix clip-norm"),
        (Case::Vanishing, Fix::None) => say!("The cure is one flag away: --fix omega"),
        _ => {}
    }
}

/// A printed step as JSON: its size, and what it does to gradients and states.
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

/// A plan as JSON: what a step costs.
#[derive(Serialize)]
struct PlanSummary {
    example: &'static str,
    nodes: usize,
    /// How many there are of each kind.
    kernels: BTreeMap<&'static str, usize>,
    /// Stretches of memory that values share, and their bytes.
    slots: usize,
    bytes: usize,
    states: usize,
    state_bytes: usize,
    /// The bytes that kernels read and write.
    traffic: usize,
    flops: usize,
}

impl PlanSummary {
    fn new(program: &Program, plan: &Plan) -> Self {
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
        Self { example: "rnn", nodes, kernels, slots, bytes, states, state_bytes, traffic, flops }
    }
}

/// `wgrad tape rnn`.
///
/// # Errors
/// If the flags do not go together; for a plan, if there is no such device.
pub fn tape(args: &TapeArgs, common: &Common) -> Result<()> {
    if args.dot && common.json {
        return Err(Error::Usage("--dot and --json do not go together: a graph is no JSON object".into()));
    }
    let (store, program) = program(&Config::new(&args.rnn, common.steps)?, common.seed);
    if args.plan {
        let session = Session::new(device::open(common.device, common.threads.into())?, store)?;
        let (program, plan) = session.plan(&program);
        if common.json {
            json(&PlanSummary::new(&program, &plan));
        } else {
            say!("{}", plan.describe(&program));
        }
        return Ok(());
    }
    if common.json {
        let layout = program.layout();
        json(&TapeSummary {
            example: "rnn",
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
