//! A range test of the learning rate: from far too low to far too high within one short run, which is then undone.

use super::MicroBatch;
use crate::train::Trainer;
use crate::train::flight::stepped;
use std::fmt;
use wgrad::{Array, DType, Data, Error, Session, StateId};

/// The range of rates to try.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LrFinder {
    /// The first rate.
    pub low: f64,
    /// The last rate.
    pub high: f64,
    /// The number of updates. Each raises the rate by the same factor.
    pub steps: usize,
}

/// The test ends when the smoothed loss is above this multiple of its lowest value.
const DIVERGED: f64 = 4.0;
/// The share of the previous smoothed loss in the next one.
const SMOOTH: f64 = 0.9;

impl LrFinder {
    /// A range around a rate, from a hundredth of it to a hundred times it, in 100 updates.
    pub fn around(base: f64) -> Self {
        Self { low: base / 100.0, high: base * 100.0, steps: 100 }
    }

    /// Runs the test, and leaves the session and the trainer as they were. `rate` is a float scalar, the state that
    /// holds the [`crate::optim::Rate`] of the optimizer or of one of its groups. Each call of `batches` gives the
    /// micro-batches of the next update.
    ///
    /// ```
    /// # use wgrad::{Session, StateId};
    /// # use wgrad_nn::{LrFinder, Trainer, diagnosis::MicroBatch};
    /// # fn look(rate: StateId, trainer: &mut Trainer, session: &mut Session, data: Vec<MicroBatch>) -> Result<(), wgrad::Error> {
    /// let mut at = 0;
    /// let batches = || {
    ///     at += 1;
    ///     Ok::<_, wgrad::Error>(vec![data[at % data.len()].clone()])
    /// };
    /// let range = LrFinder::around(1e-3).run(rate, trainer, session, batches)?;
    /// println!("{range}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of `batches` and of [`Session::run`].
    ///
    /// # Panics
    /// If the range is empty or below 0; if there are no steps; if the state is no float scalar of the session's store.
    #[track_caller]
    pub fn run<E: From<Error>>(
        &self,
        rate: StateId,
        trainer: &mut Trainer,
        session: &mut Session,
        mut batches: impl FnMut() -> Result<Vec<MicroBatch>, E>,
    ) -> Result<LrRange, E> {
        let Self { low, high, steps } = *self;
        assert!(0.0 < low && low < high && high.is_finite(), "lr finder: from {low} to {high}: needs 0 < low < high");
        assert!(steps > 1, "lr finder: {steps} updates: needs at least 2");
        let decl = session.layout().state(rate).clone();
        let is_rate = decl.shape.rank() == 0 && matches!(decl.dtype, DType::F32 | DType::F64);
        assert!(is_rate, "lr finder: the rate is the state {:?}: needs a float scalar", decl.name);
        let (place, present) = (trainer.place(), session.snapshot()?);
        let range = session.rewound(&present, |session| {
            trainer.resume();
            let mut points: Vec<LrPoint> = vec![];
            for step in 0..steps {
                let lr = low * (high / low).powf(step as f64 / (steps - 1) as f64);
                let value = Array::new([0usize; 0], Data::from_f64(decl.dtype, &[lr]));
                let loss = loss_at(rate, &value, trainer, session, &batches()?)?;
                let before = points.last().map_or(loss, |point| point.smooth);
                points.push(LrPoint { lr, loss, smooth: SMOOTH * before + (1.0 - SMOOTH) * loss });
                let lowest = points.iter().map(|point| point.smooth).fold(f64::INFINITY, f64::min);
                if !loss.is_finite() || points[step].smooth > DIVERGED * lowest {
                    return Ok(LrRange { points, limit: Some(lr) });
                }
            }
            Ok(LrRange { points, limit: None })
        });
        trainer.go_to(place);
        range
    }
}

/// Makes an update with a learning rate, and gives its loss: the mean over the micro-batches.
#[track_caller]
fn loss_at<E: From<Error>>(
    rate: StateId,
    value: &Array,
    trainer: &mut Trainer,
    session: &mut Session,
    micro_batches: &[MicroBatch],
) -> Result<f64, E> {
    session.write(rate, value)?;
    let mut loss = f64::NAN;
    for micro_batch in micro_batches {
        // A non-finite loss is a result of the test, not an error.
        for update in stepped(trainer, session, micro_batch)? {
            loss = update.loss;
        }
    }
    Ok(loss)
}

/// An update of the test.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LrPoint {
    /// The learning rate.
    pub lr: f64,
    /// The loss before the update.
    pub loss: f64,
    /// The running mean of the losses.
    pub smooth: f64,
}

/// The result of a range test.
#[derive(Clone, PartialEq, Debug)]
pub struct LrRange {
    /// The updates of the test.
    pub points: Vec<LrPoint>,
    /// The rate at which the loss was non-finite, or its running mean above 4 times the lowest; `None` if no rate did
    /// so.
    pub limit: Option<f64>,
}

impl LrRange {
    /// The rate to begin with: the one at which the running mean falls most from one rate to the next (Smith 2017), but
    /// at most a tenth of the limit. `None` if the loss never falls.
    pub fn suggestion(&self) -> Option<f64> {
        let falls = self.points.windows(2).filter(|pair| pair[1].smooth < pair[0].smooth);
        let drop = |pair: &&[LrPoint]| pair[0].smooth - pair[1].smooth;
        let steepest = falls.max_by(|a, b| drop(a).total_cmp(&drop(b)))?[1].lr;
        Some(self.limit.map_or(steepest, |limit| steepest.min(limit / 10.0)))
    }
}

impl fmt::Display for LrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            Some(limit) => write!(f, "the loss diverges at a rate of {limit:.1e}")?,
            None => write!(f, "no tried rate makes the loss diverge")?,
        }
        match self.suggestion() {
            Some(lr) => write!(f, "; begin with {lr:.1e}"),
            None => write!(f, ", and no tried rate lowers the loss"),
        }
    }
}
