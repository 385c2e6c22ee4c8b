//! Runs whose values are taken at once.

use super::{Session, Step, Taps};
use crate::{Array, Tensor, error::Result, tape::Tape};

impl Session {
    /// Computes one value, once: records, compiles, runs and forgets a program.
    ///
    /// # Errors
    /// As [`Session::record`] and [`Session::run`].
    pub fn eval(&mut self, inputs: &[(&str, &Array)], f: impl FnOnce(&Tape) -> Tensor<'_>) -> Result<Array> {
        const RESULT: &str = "eval/result";
        let step = self.record(|t| {
            let result = f(t);
            t.tap(RESULT, result);
        })?;
        let taps = self.run_now(&step, inputs)?;
        drop(step);
        self.forget_dropped();
        Ok(taps.get(RESULT).expect("tapped above").clone())
    }

    /// Runs a program without commits outside the sequence of runs: its taps are taken at once, and errors of earlier runs stay until
    /// the next call reports them.
    pub(crate) fn run_aside(&mut self, step: &Step, inputs: &[(&str, &Array)]) -> Result<Taps> {
        // Faults that are known stay in front of those that this run may show.
        self.backend.wait()?;
        self.collect_taps()?;
        let late = std::mem::take(&mut self.late);
        let taps = self.run_now(step, inputs);
        self.late = late;
        taps
    }

    /// Runs a program, waits for it, and takes its taps. The taps of other runs stay until they are fetched. In a training
    /// loop use [`Session::run`], which does not wait.
    ///
    /// ```
    /// # use wgrad::{Array, DType, Session};
    /// # fn at(session: &mut Session, x: f32) -> Result<Option<f64>, wgrad::Error> {
    /// let step = session.record(|t| t.tap("square", t.input("x", [], DType::F32).square()))?;
    /// let taps = session.run_now(&step, &[("x", &Array::new([], vec![x]))])?;
    /// let square = taps.scalar("square");
    /// # Ok(square)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::run`] and [`Session::wait`]: also what this run has shown to be wrong. If that is [`crate::Error::Late`],
    /// its taps are there at the next call of [`Session::taps`].
    pub fn run_now(&mut self, step: &Step, inputs: &[(&str, &Array)]) -> Result<Taps> {
        let run = self.run(step, inputs)?;
        self.wait()?;
        let position =
            self.taps.iter().position(|taps| taps.run == run).expect("a run that has finished has delivered");
        Ok(self.taps.remove(position).expect("found above"))
    }
}
