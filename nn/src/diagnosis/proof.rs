//! Proof of a remedy: a replay of the same steps with it, compared with two controls.

use super::{
    Finding,
    rules::Remedy,
    signs::Signs,
    study::{Opened, Setup, Study, Trace},
};
use crate::train::Edit;
use wgrad::Tuning;

/// The way a run ended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// The first loss.
    pub loss_first: f64,
    /// The median loss over the last tenth of its updates.
    pub loss_last: f64,
    /// The share of the first loss by which the loss fell; 0 if it became non-finite.
    pub learned: f64,
    /// The largest finite norm of the gradient.
    pub largest_norm: f64,
    /// The first update whose loss is non-finite.
    pub died: Option<usize>,
}

/// Replays that show that a remedy cures.
#[derive(Clone, PartialEq, Debug)]
pub struct Proof {
    /// The remedy's name.
    pub remedy: &'static str,
    /// The updates of each replay.
    pub steps: usize,
    /// The run with the remedy.
    pub cured: Outcome,
    /// The run with nothing changed.
    pub unchanged: Outcome,
    /// The run with a change that does not fit the fault.
    pub unfit: Outcome,
    /// The name of that change.
    pub unfit_name: &'static str,
    /// The losses of the three runs.
    pub losses: Losses,
}

/// The loss of each update of the replays of a [`Proof`].
#[derive(Clone, PartialEq, Debug)]
pub struct Losses {
    /// The losses of the run with the remedy.
    pub cured: Vec<f64>,
    /// The losses of the run with nothing changed.
    pub unchanged: Vec<f64>,
    /// The losses of the run with a change that does not fit.
    pub unfit: Vec<f64>,
}

/// The first `steps` losses of a run.
fn losses(trace: &Trace, steps: usize) -> Vec<f64> {
    trace.updates.iter().take(steps).map(|update| update.loss).collect()
}

impl Outcome {
    /// The outcome of the first `steps` updates of a run.
    fn of(trace: &Trace, steps: usize) -> Self {
        let mut part = trace.clone();
        part.updates.truncate(steps);
        let signs = Signs::new(&part, steps);
        Self {
            loss_first: signs.first_loss(),
            loss_last: signs.last_loss(),
            learned: signs.learned(),
            largest_norm: signs.largest_norm(),
            died: signs.died(),
        }
    }

    /// True if this run is better than another by more than chance: its loss has fallen by a tenth of the first loss
    /// more, or less than half as much of it is left.
    fn beats(&self, other: &Self) -> bool {
        let (own, others) = (self.learned, other.learned.clamp(0.0, 1.0));
        self.died.is_none() && own > 0.1 && (own > others + 0.1 || (1.0 - own) < 0.5 * (1.0 - others))
    }
}

/// A control: a change that is a remedy of another fault.
fn unfit(fault: &str) -> (&'static str, Edit) {
    match fault {
        "rate-too-low" | "warmup-too-long" | "decays-too-early" | "clip-too-tight" | "agc-too-tight" => {
            ("lower-rate", Edit::Tune(Tuning::Rate(0.5)))
        }
        _ => ("raise-rate", Edit::Tune(Tuning::Rate(1.5))),
    }
}

/// The number of updates of the unchanged run that are replayed, to see that the run repeats bit for bit.
const REPEATED: usize = 10;

impl<F, E> Study<F>
where
    F: FnMut(&Setup) -> std::result::Result<Opened<E>, E>,
    E: From<crate::Error>,
{
    /// Replays the first updates of the run with each remedy of a finding, until one cures. A remedy cures if its
    /// replay does better than both controls: the same steps with nothing changed, and with a change that does not fit.
    /// If no remedy cures, the finding lists those that were tried. Nothing is replayed if the run does not repeat bit
    /// for bit; `watch` may stop the proof.
    ///
    /// # Errors
    /// The errors of the closure that opens the run, and of its device.
    pub(super) fn proof(
        &mut self,
        trace: &Trace,
        finding: &mut Finding,
        horizon: usize,
        watch: &mut dyn FnMut(&str, &Trace) -> bool,
    ) -> std::result::Result<Option<(usize, Proof)>, E> {
        let unchanged = Outcome::of(trace, horizon);
        if !finding.remedies.iter().any(|remedy| !remedy.edits.is_empty()) || !self.repeats(trace, watch)? {
            return Ok(None);
        }
        let mut control: Option<(Outcome, Vec<f64>)> = None;
        let (unfit_name, unfit_edit) = unfit(finding.rule.fault);
        for (at, Remedy { name, edits, .. }) in finding.remedies.iter().enumerate() {
            if edits.is_empty() {
                continue;
            }
            let replay = self.replay(edits, horizon, &mut |trace| watch(name, trace))?;
            if replay.stopped {
                return Ok(None);
            }
            let cured = Outcome::of(&replay, horizon);
            finding.tried.push((name, cured));
            if !cured.beats(&unchanged) {
                continue;
            }
            if control.is_none() {
                let replay =
                    self.replay(std::slice::from_ref(&unfit_edit), horizon, &mut |trace| watch("control", trace))?;
                if replay.stopped {
                    return Ok(None);
                }
                control = Some((Outcome::of(&replay, horizon), losses(&replay, horizon)));
            }
            let (unfit, unfit_losses) = control.as_ref().expect("made above");
            if cured.beats(unfit) {
                let losses = Losses {
                    cured: losses(&replay, horizon),
                    unchanged: losses(trace, horizon),
                    unfit: unfit_losses.clone(),
                };
                let (remedy, steps, unfit) = (name, horizon, *unfit);
                let proof = Proof { remedy, steps, cured, unchanged, unfit, unfit_name, losses };
                finding.tried.clear();
                return Ok(Some((at, proof)));
            }
        }
        Ok(None)
    }

    /// True if the run repeats its first losses bit for bit.
    fn repeats(&mut self, trace: &Trace, watch: &mut dyn FnMut(&str, &Trace) -> bool) -> std::result::Result<bool, E> {
        let replay = self.replay(&[], REPEATED.min(trace.updates.len()), &mut |trace| watch("repeat", trace))?;
        let bits = |trace: &Trace| -> Vec<u64> {
            trace.updates.iter().take(REPEATED).map(|update| update.loss.to_bits()).collect()
        };
        Ok(!replay.stopped && bits(&replay) == bits(trace))
    }
}
