//! Averages of parameters over the updates.

use super::check_rate;
use wgrad::{Array, DType, Flat, Optimizer, ParamSet, StateId, Store, Tape};

/// Settings of an [`Ema`].
#[derive(Clone, PartialEq, Debug)]
pub struct EmaConfig {
    /// The prefix of its states' names; each average of a store needs its own.
    pub name: String,
    /// The decay rate, in `[0, 1)`: the average is over about `1 / (1 - decay)` updates.
    pub decay: f64,
}

impl Default for EmaConfig {
    fn default() -> Self {
        Self { name: "ema".into(), decay: 0.999 }
    }
}

/// The exponential moving average of parameters (Polyak & Juditsky 1992; PyTorch's `AveragedModel` with an average of
/// this kind):
///
/// ```text
/// a = p after the first update, later decay * a + (1 - decay) * p
/// ```
///
/// The average follows the count of an optimizer's updates, so a skipped step leaves it as it is. A model runs on it
/// within `t.with_params(&ema.averages(t), || ..)`.
#[derive(Clone, Debug)]
pub struct Ema {
    config: EmaConfig,
    /// The average of each arena.
    averages: Vec<(StateId, StateId)>,
    /// The number of updates that the optimizer had made when the average was last updated (u32 scalar).
    seen: StateId,
}

impl Ema {
    /// Declares `<name>/average/<dtype>` and `<name>/seen`.
    ///
    /// # Panics
    /// If the decay rate is outside `[0, 1)`, or a name is taken.
    #[track_caller]
    pub fn new(store: &mut Store, params: &ParamSet, config: EmaConfig) -> Self {
        check_rate("ema", "decay", config.decay);
        let averages = store.like_arenas(&format!("{}/average", config.name), params);
        let seen = store.state(&format!("{}/seen", config.name), &Array::zeros([], DType::U32));
        Self { config, averages, seen }
    }

    /// The averages, one flat vector per arena: zeros before the first update.
    #[track_caller]
    pub fn averages<'t>(&self, tape: &'t Tape) -> Flat<'t> {
        let mut averages = Vec::with_capacity(self.averages.len());
        for &(arena, average) in &self.averages {
            averages.push((arena, tape.state(average)));
        }
        Flat::new(averages)
    }

    /// Updates the averages if the optimizer has made an update since the last call.
    #[track_caller]
    pub fn update(&self, tape: &Tape, optimizer: &dyn Optimizer) {
        let (made, seen) = (tape.state(optimizer.states().counter()), tape.state(self.seen));
        let inputs: Vec<_> = self.averages.iter().map(|(arena, _)| tape.state(*arena)).collect();
        tape.pass("ema", &[("decay", self.config.decay.to_string())], &inputs, || {
            let (first, stepped) = (seen.equals(0.0), made.not_equals(seen));
            let mut outputs = vec![];
            for &(arena, average) in &self.averages {
                let (p, old) = (tape.state(arena), tape.state(average));
                let mean = old * self.config.decay + p * (1.0 - self.config.decay);
                let new = stepped.select(first.select(p, mean), old).detach();
                tape.assign(average, new);
                outputs.push(new);
            }
            tape.assign(self.seen, made);
            outputs
        });
    }
}
