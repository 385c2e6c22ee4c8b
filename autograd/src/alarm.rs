//! Errors that show only in values. The host does not wait for them: the device skips the step at once, and the error
//! arrives with the taps of the run, one or two runs later.

use crate::{
    Pitfall, Site, Tensor,
    range::Range,
    recorded::{Alarm, Bad},
    tape::Tape,
};

impl Tape {
    /// Taps a value that may be an error of the run.
    #[track_caller]
    pub(crate) fn alarm(&self, name: &str, value: Tensor<'_>, bad: Bad, what: String) {
        self.blame(name, value, bad, what, None, self.site());
    }

    /// Taps a coefficient as `<pass>/<name>`, unless it is tapped already. A value out of its range is an error.
    #[track_caller]
    pub(crate) fn alarm_of_coefficient(&self, name: &str, value: Tensor<'_>, range: Range) {
        let bad = Bad::Outside(range);
        let known = {
            let inner = self.inner.borrow();
            let tapped = |alarm: &Alarm| &inner.taps[alarm.tap];
            inner.training.alarms.iter().any(|a| a.bad == bad && tapped(a).node == value.id && tapped(a).name == name)
        };
        if !known {
            self.alarm(name, value, bad, name.replacen('/', ": ", 1));
        }
    }

    /// Taps a loss that is an error if it is not finite, and blames its line.
    #[track_caller]
    pub(crate) fn alarm_of_loss(&self, name: &str, loss: Tensor<'_>) {
        let pitfall = Pitfall::NonFiniteLoss;
        self.blame(name, loss, Bad::NotFinite, pitfall.to_string(), Some(pitfall), self.node(loss.id).site);
    }

    #[track_caller]
    fn blame(&self, name: &str, value: Tensor<'_>, bad: Bad, what: String, pitfall: Option<Pitfall>, site: Site) {
        self.tap_each(name, value);
        let inner = &mut *self.inner.borrow_mut();
        inner.training.alarms.push(Alarm { tap: inner.taps.len() - 1, bad, what, pitfall, site });
    }
}
