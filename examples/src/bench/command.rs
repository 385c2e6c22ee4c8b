//! The command: what is asked for, and whether it can be done.

use super::{
    data::{File, Source},
    measure::{Losses, Timing},
    networks::{Residual, W1, W2},
    passes::{self, WORKS},
    primitives::{self, PRIMITIVES},
    profile::{self, Limits, Profile, Watched},
    recurrent::{W3, W4},
    row::{Circumstances, Row, heading},
    training,
};
use crate::{
    Error, Result,
    cli::{BenchArgs, Common},
    device::Place,
    interrupt, say,
};
use std::{cell::Cell, thread::available_parallelism, time::Duration};
use wgrad::{Session, Step, Store};

/// A workload that exists.
struct Workload {
    name: &'static str,
    /// Whether it trains on batches, which may be larger or smaller.
    trains: bool,
    results: fn() -> Vec<&'static str>,
    run: fn(&Bench<'_>, Source) -> Result<()>,
}

const WORKLOADS: [Workload; 7] = [
    Workload {
        name: "w1",
        trains: true,
        results: || vec!["w1"],
        run: |bench, source| training::run(&W1, bench, source),
    },
    Workload {
        name: "w2",
        trains: true,
        results: || vec!["w2"],
        run: |bench, source| training::run(&W2, bench, source),
    },
    Workload {
        name: "w3",
        trains: true,
        results: || vec!["w3"],
        run: |bench, source| training::run(&W3, bench, source),
    },
    Workload {
        name: "w4",
        trains: true,
        results: || vec!["w4"],
        run: |bench, source| training::run(&W4, bench, source),
    },
    Workload {
        name: "w5",
        trains: true,
        results: || vec!["w5"],
        run: |bench, source| training::run(&Residual, bench, source),
    },
    Workload { name: "w6", trains: false, results: || WORKS.iter().map(|work| work.name).collect(), run: passes::run },
    Workload {
        name: "w7",
        trains: false,
        results: || PRIMITIVES.iter().map(|p| p.name).collect(),
        run: primitives::run,
    },
];

/// What all workloads of a command share.
pub struct Bench<'a> {
    common: &'a Common,
    only: &'a [String],
    threads: usize,
    place: Place,
    /// Its name.
    device: String,
    /// The time for the timed steps of a workload.
    pub budget: Duration,
    /// Another number of examples in a batch than the workload's, if that is asked for.
    pub batch: Option<usize>,
    note: String,
    rows: Cell<usize>,
    /// Whether the time of each kernel is asked for.
    profiles: bool,
    /// What the device does best, once it has been measured.
    limits: Cell<Option<Limits>>,
}

/// `wgrad bench`.
///
/// # Errors
/// If something is asked for that does not exist, the data is not there, or the device fails.
pub fn bench(args: &BenchArgs, common: &Common) -> Result<()> {
    let workloads = workloads(args, common)?;
    let threads = match common.threads {
        0 => available_parallelism().map_or(1, usize::from),
        threads => threads.into(),
    };
    let place = Place::open(common)?;
    let device = place.name()?;
    if args.profile {
        profile::check(&place)?;
    }
    // All files before the first step: a long run is not to end in a file that was never there.
    let source = |workload: &Workload| match &args.data {
        Some(folder) => File::open(&folder.join(format!("{}.safetensors", workload.name))).map(Source::File),
        None => Ok(Source::Seed(common.seed())),
    };
    let sources: Vec<Source> = workloads.iter().map(|workload| source(workload)).collect::<Result<_>>()?;
    let batch = args.batch.map(usize::from);
    let mut note = batch.map_or(String::new(), |batch| format!("batch {batch}; "));
    if args.data.is_none() {
        note += "weights and batches of its own: losses compare with no other's";
    }
    let (budget, rows, profiles, limits) = (args.budget, Cell::new(0), args.profile, Cell::new(None));
    let bench = Bench { common, only: &args.only, threads, place, device, budget, batch, note, rows, profiles, limits };
    for (workload, source) in workloads.into_iter().zip(sources) {
        (workload.run)(&bench, source)?;
        if interrupt::requested() {
            if !common.json {
                say!("Interrupted: what had not ended by then is left out");
            }
            break;
        }
    }
    Ok(())
}

/// The workloads that are asked for.
fn workloads(args: &BenchArgs, common: &Common) -> Result<Vec<&'static Workload>> {
    if common.steps.is_some() {
        return Err(Error::Usage("bench makes as many steps as its time allows: give --budget, not --steps".into()));
    }
    let find = |name: &String| {
        let known = || WORKLOADS.map(|workload| workload.name);
        WORKLOADS.iter().find(|workload| workload.name == *name).ok_or_else(|| missing("workload", name, &known()))
    };
    let workloads: Vec<&Workload> = args.workloads.iter().map(find).collect::<Result<_>>()?;
    if args.batch.is_some() {
        if args.data.is_some() {
            return Err(Error::Usage("the batches of --data have the workload's size: leave out --batch".into()));
        }
        if let Some(without) = workloads.iter().find(|workload| !workload.trains) {
            let training: Vec<&str> = WORKLOADS.iter().filter(|w| w.trains).map(|w| w.name).collect();
            let (name, training) = (without.name, training.join(", "));
            return Err(Error::Usage(format!("{name} has no batches: --batch is for {training}")));
        }
    }
    let results: Vec<&str> = workloads.iter().flat_map(|workload| (workload.results)()).collect();
    match args.only.iter().find(|only| !results.iter().any(|result| is_meant(result, only))) {
        Some(name) => Err(missing("result", name, &results)),
        None => {
            Ok(workloads.into_iter().filter(|w| (w.results)().iter().any(|result| wants(&args.only, result))).collect())
        }
    }
}

/// Whether a name given with `--only` stands for a result. (An empty one stands for none.)
fn is_meant(result: &str, only: &str) -> bool {
    !only.is_empty() && result.starts_with(only)
}

/// Whether `--only` admits a result.
fn wants(only: &[String], result: &str) -> bool {
    only.is_empty() || only.iter().any(|only| is_meant(result, only))
}

fn missing(what: &str, name: &str, known: &[&str]) -> Error {
    Error::Usage(format!("there is no {what} {name:?} here; the {what}s are {}", known.join(", ")))
}

impl Bench<'_> {
    /// A session on the device.
    ///
    /// # Errors
    /// If the device has no room, or is lost.
    pub fn session(&self, store: Store) -> Result<Session> {
        self.place.session(store)
    }

    /// Whether a result is asked for.
    pub fn wants(&self, result: &str) -> bool {
        wants(self.only, result)
    }

    /// Prints a result.
    pub fn show(&self, name: &'static str, timing: &Timing, losses: Losses, rss_base: Option<f64>) {
        let (backend, threads, note) = (self.backend(), self.threads, self.note.clone());
        let row = Row::new(name, timing, losses, Circumstances { backend, threads, rss_base, note });
        if self.common.json {
            row.json();
            return;
        }
        let first = self.rows.replace(self.rows.get() + 1) == 0;
        if first && !self.common.quiet {
            say!("{}; times in milliseconds", self.device);
        }
        // A profile parts a row from the one before.
        if (first || self.profiles) && !self.common.quiet {
            heading();
        }
        row.text();
    }

    /// Makes some more steps, and prints where their time goes, if that is asked for. `run` makes one, and waits.
    ///
    /// # Errors
    /// If a step fails, or the device has no room for what its limits are measured with.
    pub fn profile(
        &self,
        name: &'static str,
        (session, step): (&mut Session, &Step),
        budget: Duration,
        run: impl FnMut(&mut Session) -> Result<()>,
    ) -> Result<()> {
        if !self.profiles {
            return Ok(());
        }
        let Some(watched) = Watched::new(session, step, budget, run)? else { return Ok(()) };
        if self.limits.get().is_none() {
            self.limits.set(Limits::measure(&self.place)?);
        }
        let Some(limits) = self.limits.get() else { return Ok(()) };
        let profile = Profile::new(name, self.backend(), self.threads, watched, limits);
        if self.common.json {
            profile.json()
        } else {
            profile.text()
        }
        Ok(())
    }

    fn backend(&self) -> String {
        match &self.place {
            Place::Cpu { .. } => "cpu".into(),
            Place::Gpu(gpu) => format!("wgpu:{}", gpu.summary().name),
        }
    }
}
