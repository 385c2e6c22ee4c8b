//! The programs that a trainer records: the loss of a micro-batch, its gradient, and the update with all passes.

use super::{Inputs, Loss, Precision, Trainer};
use crate::{layers::buffers::Remembered, monitor::Recorder, optim::sam, train::edit::recorded};
use wgrad::{Accumulator, Agc, Array, Centralize, DType, Grads, Scaled, Tape, Tensor, Weighting};

impl Trainer {
    /// Records a micro-batch: its loss, and its gradient, which joins the window; with `accumulate` 1 the whole update.
    /// If the configuration has a monitor, the program measures too.
    ///
    /// # Panics
    /// If the loss is no float scalar; if micro-batches are weighted by tokens and it does not give their number.
    #[track_caller]
    pub fn record_micro_batch(&self, tape: &Tape, inputs: &[(&str, &Array)]) {
        self.record_loss(Inputs::declare(tape, inputs), self.recorder(true));
    }

    /// The gradient of a scaled loss.
    #[track_caller]
    fn gradient<'t>(&self, tape: &'t Tape, loss: Loss<'t>) -> Grads<'t, Scaled> {
        let _call = tape.at(self.site);
        self.scaler.scale(loss.or_nothing()).grad(&self.params)
    }

    /// Records a micro-batch, with measurements if a recorder is given.
    #[track_caller]
    pub(super) fn record_loss<'t>(&self, mut inputs: Inputs<'t>, watched: Option<&Recorder>) {
        let tape = inputs.tape;
        let before = self.buffers.remember(tape);
        if let Some(recorder) = watched {
            let _call = tape.at(self.site);
            for (name, x) in &mut inputs.named {
                *x = recorder.site(&format!("inputs/{name}"), *x);
            }
        }
        for edit in &self.config.edits {
            inputs.edit(edit);
        }
        let record = || match self.config.precision {
            Precision::F32 => (self.loss)(&inputs),
            Precision::F16 => tape.autocast(DType::F16, || (self.loss)(&inputs)),
        };
        let record = || recorded(tape, &self.config.edits, record);
        let loss = match watched.cloned() {
            None => record(),
            Some(recorder) => tape.with_probe(move |path, x| recorder.site(path, x), record),
        };
        let mut grads = self.gradient(tape, loss);
        if let Some(sam) = self.config.sam {
            let above = {
                let _call = tape.at(self.site);
                sam.above(&grads)
            };
            grads = sam::at(tape, &above, || self.gradient(tape, record()));
        }
        {
            let _call = tape.at(self.site);
            self.record_treatment(loss, grads, before.moved(tape), watched);
        }
        if let Some(after) = &self.after {
            after(&inputs);
        }
        self.asked.borrow_mut().extend(inputs.asked.into_inner());
    }

    /// Records the steps from a micro-batch's gradient to the window or to the parameters. `moved` are the buffers that
    /// its loss has updated.
    #[track_caller]
    fn record_treatment<'t>(
        &self,
        loss: Loss<'t>,
        mut grads: Grads<'t, Scaled>,
        moved: Remembered<'t>,
        watched: Option<&Recorder>,
    ) {
        let (value, tape) = (loss.or_nothing(), loss.value.tape());
        if self.config.check_loss {
            grads = grads.check_loss();
        }
        if !moved.values().is_empty() {
            grads = grads.skip_unless(moved.all_finite(tape));
        }
        let Some((accumulator, window)) = &self.window else {
            let ranks = tape.ranks() as f64;
            return self.finish(grads, value.sum_over_ranks() / ranks, moved, watched);
        };
        self.keep(tape, accumulator, &moved);
        let value = value.cast(DType::F32);
        let one = tape.scalar(1.0, DType::F32);
        let weight = match (self.config.weighting, loss.tokens) {
            (Weighting::TokenWeighted, None) => {
                panic!("trainer: weighted by tokens, and the loss does not say how many there are: `Loss::over_tokens`")
            }
            (Weighting::TokenWeighted, Some(tokens)) => {
                accumulator.add_tokens(grads, tokens);
                tokens.cast(DType::F32)
            }
            (Weighting::Mean | Weighting::Sum, _) => {
                accumulator.add(grads);
                one
            }
        };
        let add = |state, by| tape.assign(state, tape.state(state) + by);
        add(window.loss, value * weight);
        add(window.weight, weight);
    }

    /// Keeps the values that buffers have at the beginning of a window.
    #[track_caller]
    fn keep<'t>(&self, tape: &'t Tape, accumulator: &Accumulator<Scaled>, moved: &Remembered<'t>) {
        let first = tape.state(accumulator.counter().expect("windows have a length")).equals(0.0);
        for (buffer, before) in moved.values() {
            let kept = self.kept.states[buffer];
            tape.assign(kept, first.select(*before, tape.state(kept)));
            let mut known = self.kept.moved.borrow_mut();
            if !known.contains(buffer) {
                known.push(*buffer);
            }
        }
    }

    /// Records the update at the end of a full window, or of the last one, which may be short. If the configuration has
    /// a monitor, the program measures too.
    ///
    /// # Panics
    /// If there are no windows, as each micro-batch is then an update; if no micro-batch has been recorded.
    #[track_caller]
    pub fn record_update(&self, tape: &Tape, last: bool) {
        self.record_watched_update(tape, last, self.recorder(true));
    }

    #[track_caller]
    pub(super) fn record_watched_update(&self, tape: &Tape, last: bool, watched: Option<&Recorder>) {
        let (accumulator, window) = self.window.as_ref().expect("trainer: each micro-batch is an update");
        let (sum, weight) = (tape.state(window.loss), tape.state(window.weight));
        for state in [window.loss, window.weight] {
            tape.assign(state, tape.scalar(0.0, DType::F32));
        }
        let grads = if last { accumulator.take_last(tape) } else { accumulator.take(tape) };
        let moved = self.kept.moved.borrow();
        let kept = moved.iter().map(|buffer| (*buffer, tape.state(self.kept.states[buffer])));
        let kept = Remembered::new(kept.collect());
        self.finish(grads, sum.sum_over_ranks() / weight.sum_over_ranks(), kept, watched);
    }

    /// Records the steps from the gradient of a rank's batch to the parameters. `loss` is the loss of all ranks;
    /// `before` has the values that buffers return to if the step is skipped.
    #[track_caller]
    pub(super) fn finish<'t>(
        &self,
        grads: Grads<'t, Scaled>,
        loss: Tensor<'t>,
        before: Remembered<'t>,
        watched: Option<&Recorder>,
    ) {
        let (tape, c) = (grads.tape(), &self.config);
        self.tap(tape, "loss", loss);
        if let Some((scale, _)) = self.scaler.states() {
            self.tap(tape, "loss_scale", tape.state(scale));
        }
        let mut g = grads.all_reduce().unscale(&self.scaler);
        if let Some(guard) = &self.guard {
            g = g.skip_if_not_finite(guard);
        }
        self.tap(tape, "grad_norm", g.norm());
        let measured = watched.map(|recorder| (recorder, recorder.gradients(&g)));
        if c.profile {
            self.tap(tape, "norms", g.segment_norms());
        }
        for (params, factor) in &c.scale_grad {
            g = g.scale_grad(params, *factor);
        }
        if let Some((noise, rng)) = self.noise {
            g = g.add_noise(noise, rng);
        }
        if c.centralize {
            g = g.centralize_with(&Centralize::new().exclude(&c.head));
        }
        if let Some(clipping) = c.agc {
            g = g.agc(Agc::new(clipping).exclude(&c.head));
        }
        if let Some(max_norm) = c.clip_norm {
            g = g.clip_by_global_norm(max_norm);
        }
        if let Some(bound) = c.clip_value {
            g = g.clip_by_value(bound);
        }
        if let Some(passes) = &self.passes {
            g = passes(g);
        }
        if c.profile {
            self.tap(tape, "applied_norm", g.norm());
        }
        if let Some((recorder, _)) = &measured {
            recorder.applied(&g);
        }
        let g = self.optimizer.judge(g);
        let verdict = g.verdict().expect("unscaling checks");
        self.tap(tape, "taken", verdict);
        before.settle(tape, verdict);
        self.optimizer.step(g);
        if let Some((recorder, before)) = &measured {
            recorder.updated(tape, before);
        }
        if let Some(ema) = &self.ema {
            ema.update(tape, &*self.optimizer);
        }
        self.scaler.update(tape);
    }

    #[track_caller]
    fn tap(&self, tape: &Tape, what: &str, value: Tensor<'_>) {
        tape.tap(&format!("{}/{what}", self.config.name), value);
    }
}
