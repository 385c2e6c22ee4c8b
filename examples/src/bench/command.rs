//! The `bench` command: finds the workloads to run, checks the options, and prints the results.

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
    interrupt,
    ranks::Share,
    say,
};
use std::{cell::Cell, thread::available_parallelism, time::Duration};
use wgrad::{Session, Step, Store};

/// A workload of the benchmark.
struct Workload {
    name: &'static str,
    /// True if the workload trains on batches, so that `--batch` can change their size.
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

/// The settings and the device that all workloads of a command share.
pub struct Bench<'a> {
    common: &'a Common,
    only: &'a [String],
    threads: usize,
    place: Place,
    /// The device's name.
    device: String,
    /// The time for the timed steps of a workload.
    pub budget: Duration,
    /// The number of examples in a batch, if it differs from the workload's own.
    pub batch: Option<usize>,
    note: String,
    rows: Cell<usize>,
    /// True if `--profile` asks for the time of each kernel.
    profiles: bool,
    /// The device's best rates, once they have been measured.
    limits: Cell<Option<Limits>>,
}

/// `wgrad bench`.
///
/// # Errors
/// If a workload or a result does not exist, the data is missing, or the device fails.
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
    // All files are opened before the first step, so that a missing file does not end a long run halfway.
    let source = |workload: &Workload| match &args.data {
        Some(folder) => File::open(&folder.join(format!("{}.safetensors", workload.name))).map(Source::File),
        None => Ok(Source::Seed(common.seed())),
    };
    let sources: Vec<Source> = workloads.iter().map(|workload| source(workload)).collect::<Result<_>>()?;
    let batch = args.batch.map(usize::from);
    let mut note = batch.map_or(String::new(), |batch| format!("batch {batch}; "));
    if args.data.is_none() {
        note += "weights and batches drawn from the seed: losses cannot be compared with other frameworks";
    }
    let (budget, rows, profiles, limits) = (args.budget, Cell::new(0), args.profile, Cell::new(None));
    let bench = Bench { common, only: &args.only, threads, place, device, budget, batch, note, rows, profiles, limits };
    for (workload, source) in workloads.into_iter().zip(sources) {
        (workload.run)(&bench, source)?;
        if interrupt::requested() {
            if !common.json && common.rank.is_first() {
                say!("Interrupted: unfinished results are left out");
            }
            break;
        }
    }
    Ok(())
}

/// The workloads that the command line selects.
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
    if let (Some(_), Some(without)) = (args.ranks.ranks, workloads.iter().find(|workload| !workload.trains)) {
        return Err(Error::Usage(format!("{} does not train, so ranks have nothing to share", without.name)));
    }
    let results: Vec<&str> = workloads.iter().flat_map(|workload| (workload.results)()).collect();
    match args.only.iter().find(|only| !results.iter().any(|result| is_meant(result, only))) {
        Some(name) => Err(missing("result", name, &results)),
        None => {
            Ok(workloads.into_iter().filter(|w| (w.results)().iter().any(|result| wants(&args.only, result))).collect())
        }
    }
}

/// True if a name given with `--only` is a prefix of a result's name. An empty name selects no result.
fn is_meant(result: &str, only: &str) -> bool {
    !only.is_empty() && result.starts_with(only)
}

/// True if `--only` selects a result; without `--only`, every result is selected.
fn wants(only: &[String], result: &str) -> bool {
    only.is_empty() || only.iter().any(|only| is_meant(result, only))
}

fn missing(what: &str, name: &str, known: &[&str]) -> Error {
    Error::Usage(format!("there is no {what} {name:?} here; the {what}s are {}", known.join(", ")))
}

impl Bench<'_> {
    /// A store for the parameters of a workload.
    pub fn store(&self) -> Store {
        self.common.rank.store()
    }

    /// A session on the device, of this rank.
    ///
    /// # Errors
    /// If the device has too little memory, or is lost.
    pub fn session(&self, store: Store) -> Result<Session> {
        Ok(self.common.rank.join(self.place.session(store)?))
    }

    /// The share of this rank in each batch.
    pub fn share(&self) -> Share {
        self.common.rank.share()
    }

    /// True if `--only` selects a result.
    pub fn wants(&self, result: &str) -> bool {
        wants(self.only, result)
    }

    /// Prints a result.
    pub fn show(&self, name: &'static str, timing: &Timing, losses: Losses, rss_base: Option<f64>) {
        if !self.common.rank.is_first() {
            return;
        }
        let (backend, threads, note) = (self.backend(), self.threads, self.note.clone());
        let at = Circumstances { backend, threads, ranks: self.share().ranks, rss_base, note };
        let row = Row::new(name, timing, losses, at);
        if self.common.json {
            row.json();
            return;
        }
        let first = self.rows.replace(self.rows.get() + 1) == 0;
        if first && !self.common.quiet {
            say!("{}; times in milliseconds", self.device);
        }
        // A profile separates a row from the row before, so the heading is repeated.
        if (first || self.profiles) && !self.common.quiet {
            heading();
        }
        row.text();
    }

    /// With `--profile`, makes more steps and prints the time of each kernel. `run` makes one step and waits for its
    /// end.
    ///
    /// # Errors
    /// If a step fails, or the device has too little memory for the tensors that measure its limits.
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
