//! Errors that only values can show. Nobody waits for the device to find out: it skips the step at once, and the error
//! arrives with the taps of the run, one or two runs later.

use crate::{Pitfall, Tensor, error::Error, tape::Tape};
use std::panic::Location;

/// A tapped truth value that is an error.
#[derive(Clone, Debug)]
pub(crate) struct Alarm {
    /// Which tap.
    tap: usize,
    /// The value that is an error.
    bad: bool,
    what: String,
    pitfall: Option<Pitfall>,
    /// The line to blame.
    site: &'static Location<'static>,
}

impl Alarm {
    /// The error of a run with these taps, if there is one.
    pub fn error(&self, run: u64, taps: &[crate::Data]) -> Option<Error> {
        let raised = (taps[self.tap].to_f64()[0] != 0.0) == self.bad;
        let (what, pitfall, site) = (self.what.clone(), self.pitfall, self.site);
        raised.then_some(Error::Late { run, what, pitfall, site })
    }
}

impl Tape {
    /// Taps a truth value (bool scalar), one of whose values is an error of the run.
    #[track_caller]
    pub(crate) fn alarm(&self, name: &str, value: Tensor<'_>, bad: bool, what: String) {
        self.blame(name, value, bad, what, None, self.site());
    }

    /// Taps whether the loss is finite, and blames its line if it is not.
    #[track_caller]
    pub(crate) fn alarm_of_loss(&self, name: &str, finite: Tensor<'_>, loss: Tensor<'_>) {
        let pitfall = Pitfall::P37;
        self.blame(name, finite, false, pitfall.to_string(), Some(pitfall), self.node(loss.id).site);
    }

    #[track_caller]
    fn blame(
        &self,
        name: &str,
        value: Tensor<'_>,
        bad: bool,
        what: String,
        pitfall: Option<Pitfall>,
        site: &'static Location<'static>,
    ) {
        self.tap(name, value);
        let inner = &mut *self.inner.borrow_mut();
        inner.alarms.push(Alarm { tap: inner.taps.len() - 1, bad, what, pitfall, site });
    }
}
