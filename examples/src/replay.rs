//! `wgrad replay`: runs the step in a capsule again, on any device, and checks each value.

use crate::{
    Result,
    cli::Common,
    device::Place,
    output::json,
    run::{Kept, Metrics, QUEUE, measured},
    say,
};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use wgrad::{Array, Data, Origin, Parting, Program};
use wgrad_cpu::{CpuBackend, reference};
use wgrad_nn::{
    Capsule,
    track::{End, Setting},
};

/// Options of `wgrad replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The capsule, as `wgrad diagnose --capsule` writes it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The arithmetic that the device is compared with, operation by operation
    #[arg(long, value_enum, default_value_t = Against::Reference, value_name = "WHAT")]
    pub against: Against,
    /// Show the step on a page that opens from disk, DIR/index.html, with the path from the first non-finite value to
    /// the loss. A folder that already holds such a page is refused
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// The other side of a comparison with a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Against {
    /// The interpreter in f64 that defines every operation
    #[default]
    Reference,
    /// The kernels of the CPU
    Cpu,
}

/// A replay as JSON.
#[derive(Serialize)]
struct Replayed {
    device: String,
    against: &'static str,
    recorded_on: String,
    version: String,
    nodes: usize,
    /// The first node with a non-finite value.
    origin: Option<Node>,
    produced: bool,
    /// The first node on which the two sides differ.
    parting: Option<Node>,
    /// True if the device agrees with the other side.
    agrees: bool,
}

/// A node as JSON.
#[derive(Serialize)]
struct Node {
    node: usize,
    what: String,
    scope: String,
    site: String,
    phase: String,
}

impl Node {
    fn of(place: &wgrad::NodePlace) -> Self {
        Self {
            node: place.node.index(),
            what: place.what.clone(),
            scope: place.scope.clone(),
            site: place.site.to_string(),
            phase: place.phase.to_string(),
        }
    }
}

/// `wgrad replay`.
///
/// # Errors
/// If the file cannot be read or is no capsule of this version, if a report exists already, or if a device fails.
pub fn replay(args: &ReplayArgs, common: &Common) -> Result<()> {
    let capsule = Capsule::load(&args.file)?;
    let kept = Kept { metrics: None, report: args.report.as_deref() };
    let place = Place::open(common)?;
    let metrics = Metrics::open(kept, false, QUEUE)?;
    let (mut session, step) = capsule.open(place.backend()?)?;
    let inputs = capsule.inputs();
    let origin = session.first_non_finite(&step, &inputs)?;
    let parting = match args.against {
        Against::Reference => {
            let states: Vec<Data> = capsule.states().iter().map(|array| array.data().clone()).collect();
            session.parting(&step, &inputs, &mut |program: &Program, inputs: &[(&str, &Array)]| {
                let outcome = reference::run(program, &states, inputs)?;
                Ok(outcome.taps.into_iter().map(|(_, _, values)| values).collect())
            })?
        }
        Against::Cpu => {
            let (mut cpu, _) = capsule.open(Box::new(CpuBackend::new(common.threads.into())?))?;
            session.parting(&step, &inputs, &mut |program: &Program, inputs: &[(&str, &Array)]| {
                let step = cpu.compile(program.clone())?;
                Ok(cpu.run_now(&step, inputs)?.iter().map(|(_, value)| value.to_f64()).collect())
            })?
        }
    };
    let device = session.device();
    let said = told(origin.as_ref(), parting.as_ref(), args.against);
    if let Some(mut metrics) = metrics {
        let text = |name: &str, value: String| (name.to_string(), Setting::Text(value));
        let mut all = vec![text("device", device.clone()), text("recorded on", capsule.device.clone())];
        all.push(text("version", capsule.version.clone()));
        all.extend(capsule.notes.iter().map(|(name, value)| text(name, value.clone())));
        metrics.settings(all);
        metrics.finding(0, &said);
        let recorded = measured(&mut session, &step, &inputs, "in this replay", &place)?;
        let chain = origin.iter().flat_map(|origin| &origin.chain).map(|place| place.node);
        metrics.recorded(0, recorded.with_chain(chain));
        metrics.finish(0, End::of(origin.is_none()))?;
    }
    if common.json {
        json(&Replayed {
            against: match args.against {
                Against::Reference => "reference",
                Against::Cpu => "cpu",
            },
            recorded_on: capsule.device.clone(),
            version: capsule.version.clone(),
            nodes: step.nodes().len(),
            produced: origin.as_ref().is_some_and(Origin::is_produced),
            origin: origin.as_ref().map(|origin| Node::of(&origin.place)),
            agrees: parting.is_none(),
            parting: parting.as_ref().map(|parting| Node::of(&parting.place)),
            device,
        });
        return Ok(());
    }
    if !common.quiet {
        let note = |key: &str| capsule.notes.get(key).cloned();
        let of = note("update").zip(note("part"));
        let of = of.map_or(String::new(), |(update, part)| format!("update {update}, {part}, "));
        say!(
            "{}: {of}{} nodes, recorded on {} with wgrad {}; run on {device}",
            args.file.display(),
            step.nodes().len(),
            capsule.device,
            capsule.version
        );
    }
    say!("{said}");
    if !common.quiet {
        Metrics::told(kept);
    }
    Ok(())
}

/// Describes the outcome in words.
fn told(origin: Option<&Origin>, parting: Option<&Parting>, against: Against) -> String {
    let other = match against {
        Against::Reference => "the reference in f64",
        Against::Cpu => "the CPU",
    };
    let origin = origin.map_or("Every value is finite.".to_string(), ToString::to_string);
    let parting = match parting {
        None => format!("Each operation agrees with {other}: the model or its data is to blame, and not the device."),
        Some(parting) => format!("The device is to blame. Compared with {other}: {parting}"),
    };
    format!("{origin}\n{parting}")
}
