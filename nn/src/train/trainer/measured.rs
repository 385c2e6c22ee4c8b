//! A trainer's measurements of its updates, and their times.

use super::{Inputs, Trainer, TrainerConfig};
use crate::monitor::{Measurement, Reader, Recorder, SiteMeasure};
use std::sync::Arc;
use wgrad::{Array, Param, ParamSet, Program, Store, Tape, Taps};

/// A trainer's measurements.
pub(super) struct Monitor {
    recorder: Recorder,
    /// The parameters that are trained, with path and size.
    params: Vec<(Param, String, usize)>,
    /// The number of updates that this trainer has begun.
    begun: usize,
    /// The sites of micro-batches whose update has not arrived.
    sites: Vec<SiteMeasure>,
}

impl Monitor {
    /// The measurements that a configuration asks for.
    ///
    /// # Panics
    /// If the interval is 0, or a group has parameters of another store.
    #[track_caller]
    pub fn new(store: &Store, params: &ParamSet, config: &TrainerConfig) -> Option<Self> {
        let asked = config.monitor.as_ref()?;
        assert!(asked.every > 0, "trainer: monitor.every is 0, and must be at least 1");
        for (_, group) in &asked.groups {
            store.layout().check(group);
        }
        let known = |param: Param| {
            let decl = store.layout().param(param);
            (param, decl.path.clone(), decl.shape.numel())
        };
        let prefix = format!("{}/monitor", config.name);
        let of: Arc<[Param]> = params.iter().collect();
        let recorder = Recorder { prefix, params: of, histograms: asked.histograms, detail: asked.detail };
        Some(Self { recorder, params: params.iter().map(known).collect(), begun: 0, sites: vec![] })
    }

    /// The number of updates that have begun.
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Sets the number of updates that have begun.
    pub fn go_to(&mut self, begun: usize) {
        self.begun = begun;
    }
}

impl Trainer {
    /// The measurements of the updates among these runs, oldest first, if [`TrainerConfig::monitor`] has measured them.
    /// The taps of other programs are ignored. Sites that arrive before their update are kept until it does.
    pub fn measurements(&mut self, taps: &[Taps]) -> Vec<Measurement> {
        let Some(mut monitor) = self.monitor.take() else { return vec![] };
        let mut all = vec![];
        for taps in taps {
            let groups = self.config.monitor.as_ref().map_or(&[][..], |config| &config.groups);
            let reader = Reader { prefix: &monitor.recorder.prefix, params: &monitor.params, groups };
            let sites = reader.sites(taps);
            if !sites.is_empty() {
                monitor.sites = sites;
            }
            let Some(update) = self.read(taps) else { continue };
            let sites = std::mem::take(&mut monitor.sites);
            all.extend(reader.measurement(taps, &update, sites));
        }
        self.monitor = Some(monitor);
        all
    }

    /// The sites at which a program of [`Trainer::record_micro_batch`] measures the gradient, first to last, each with
    /// the number of its time steps; 0 for a site without time steps.
    pub fn flow_sites(&self, program: &Program) -> Vec<(String, usize)> {
        self.monitor.as_ref().map_or(vec![], |monitor| monitor.recorder.flows(program))
    }

    /// Records an update of one micro-batch without measurements, as the updates run that are not measured.
    ///
    /// # Panics
    /// As [`Trainer::record_micro_batch`].
    #[track_caller]
    pub fn record_plain(&self, tape: &Tape, inputs: &[(&str, &Array)]) {
        self.record_loss(Inputs::declare(tape, inputs), None);
        if self.has_windows() {
            self.record_watched_update(tape, false, None);
        }
    }

    /// Calls a function with the monitor turned off.
    pub(crate) fn unwatched<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let monitor = self.monitor.take();
        let result = f(self);
        self.monitor = monitor;
        result
    }

    /// True if the current update is measured.
    pub(super) fn is_measured(&self) -> bool {
        let every = self.config.monitor.as_ref().map_or(1, |config| config.every);
        self.monitor.as_ref().is_some_and(|monitor| monitor.begun.is_multiple_of(every))
    }

    pub(super) fn recorder(&self, watched: bool) -> Option<&Recorder> {
        self.monitor.as_ref().map(|monitor| &monitor.recorder).filter(|_| watched)
    }

    pub(super) fn count_update(&mut self) {
        self.made += 1;
        if let Some(monitor) = &mut self.monitor {
            monitor.begun += 1;
        }
    }
}
