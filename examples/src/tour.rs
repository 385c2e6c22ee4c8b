//! The tour: the exploding network without and with clipping, and the vanishing network without and with its cure.

use crate::{
    Result,
    cli::{Common, RnnArgs},
    device::Place,
    history::History,
    report::Report,
    rnn::{Case, Config, Fix},
    run::{Column, Files, Finished, Watch, line, run, table},
};
use std::time::Instant;

/// The default number of steps of a run that is meant to fail.
const FAILING_STEPS: usize = 1500;

/// One stop of the tour.
struct Stop {
    case: Case,
    fix: Fix,
    title: &'static str,
    text: &'static str,
}

const STOPS: [Stop; 4] = [
    Stop {
        case: Case::Exploding,
        fix: Fix::None,
        title: "exploding",
        text: "A tanh network with recurrent weights near the edge of stability, and nothing that bounds a step.",
    },
    Stop {
        case: Case::Exploding,
        fix: Fix::ClipNorm,
        title: "+ clip-norm",
        text: "The same network from the same weights, the global gradient norm clipped to 1.",
    },
    Stop {
        case: Case::Vanishing,
        fix: Fix::None,
        title: "vanishing",
        text: "Clipped, but the recurrent weights start small: the error dies out on its way back.",
    },
    Stop {
        case: Case::Vanishing,
        fix: Fix::Omega,
        title: "+ omega",
        text: "The same, with Pascanu's regulariser, which keeps the error's norm from step to step.",
    },
];

/// Runs the tour, and returns the reports of its runs.
///
/// # Errors
/// As [`run`].
pub fn tour(common: &Common) -> Result<Vec<Report>> {
    let start = Instant::now();
    let say = |text: &str| {
        if !common.quiet && !common.json {
            crate::say!("{text}");
        }
    };
    let configs = STOPS.iter().map(|stop| config(stop, common)).collect::<Result<Vec<Config>>>()?;
    let place = Place::open(common)?;
    say("The task: 50 symbols, two of them marks among distractors; say in which order the marks came.\n");
    let mut runs: Vec<(&Stop, Finished)> = vec![];
    for (i, (stop, config)) in STOPS.iter().zip(configs).enumerate() {
        say(&format!("{}. {}\n   {}", i + 1, stop.title, stop.text));
        let watch = if common.quiet || common.json { Watch::Silent } else { Watch::Bar };
        let finished = run(&config, common, &place, &Files::default(), watch)?;
        say(&format!("   {}\n", line(&finished)));
        let interrupted = finished.interrupted;
        runs.push((stop, finished));
        if interrupted {
            say("Interrupted: the rest of the tour is left out.\n");
            break;
        }
    }
    say(&format!(
        "{:<14} {:>9}  {:>9}  {:>13}  {:>10}  verdict",
        "", "steps", "accuracy", "largest norm", "flow ratio"
    ));
    for (stop, Finished { report: r, .. }) in &runs {
        say(&format!(
            "{:<14} {:>9}  {:>9.3}  {:>13.1e}  {:>10.1e}  {}",
            stop.title, r.steps, r.metric, r.applied_norm_max, r.flow_ratio, r.verdict
        ));
    }
    say("(flow ratio: mean |dL/dz| of the first third of time steps over that of the last third)");
    let columns = |flow: fn(&History) -> Vec<f64>| -> Vec<Column> {
        runs.iter().map(|(stop, run)| Column::new(stop.title, &run.names.flow, flow(&run.history))).collect()
    };
    say("\nMean |dL/dz| per time step, at the step of the largest gradient:");
    say(&table("step", &columns(History::flow_at_peak)));
    say("Mean |dL/dz| per time step, the median over the last tenth of steps:");
    say(&table("step", &columns(History::typical_flow)));
    let (device, seconds) = (&runs[0].1.report.device, start.elapsed().as_secs_f64());
    say(&format!(
        "On {device}, in {seconds:.1} seconds. The recorded step, clip and optimizer included: wgrad tape rnn"
    ));
    Ok(runs.into_iter().map(|(_, finished)| finished.report).collect())
}

/// The settings of a stop's run.
fn config(stop: &Stop, common: &Common) -> Result<Config> {
    let args = RnnArgs { case: stop.case, fix: stop.fix, ..RnnArgs::default() };
    let failing = (stop.fix == Fix::None).then_some(FAILING_STEPS);
    Config::new(&args, common.steps.or(failing))
}
