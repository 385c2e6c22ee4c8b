//! Errors that only values can show. Nobody waits for the device to find out: it skips the step at once, and the error
//! arrives with the taps of the run, one or two runs later.

use crate::{DType, Data, Pitfall, Site, Tensor, coefficient::Range, error::Error, tape::Tape};

/// When a tapped value is an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bad {
    /// The value is true.
    True,
    /// An element is NaN or infinite.
    NotFinite,
    /// An element is out of the range of a coefficient, whose name the message begins with.
    Outside(Range),
}

/// A tapped value that may be an error.
#[derive(Clone, Debug)]
pub(crate) struct Alarm {
    /// The tap.
    tap: usize,
    bad: Bad,
    what: String,
    pitfall: Option<Pitfall>,
    /// The line to blame.
    site: Site,
}

impl Alarm {
    /// The error of a run with these taps, if there is one.
    pub fn error(&self, run: u64, taps: &[Data]) -> Option<Error> {
        let is_bad = |value: &f64| match self.bad {
            Bad::True => *value != 0.0,
            Bad::NotFinite => !value.is_finite(),
            Bad::Outside(range) => !range.has(*value),
        };
        let (pitfall, site) = (self.pitfall, self.site);
        let value = taps[self.tap].to_f64().into_iter().find(is_bad)?;
        let what = match self.bad {
            Bad::True | Bad::NotFinite => self.what.clone(),
            Bad::Outside(range) => {
                // With the digits that it has.
                let (wide, narrow) = (format!("{value:?}"), format!("{:?}", value as f32));
                let shown = if taps[self.tap].dtype() == DType::F64 { wide } else { narrow };
                format!("{} is {shown}, and must be {range}: the step was skipped", self.what)
            }
        };
        Some(Error::Late { run, what, pitfall, site })
    }
}

impl Tape {
    /// Taps a value that may be an error of the run.
    #[track_caller]
    pub(crate) fn alarm(&self, name: &str, value: Tensor<'_>, bad: Bad, what: String) {
        self.blame(name, value, bad, what, None, self.site());
    }

    /// Taps a coefficient that is an error where it is out of its range; `<pass>/<name>` names it. Once is enough.
    #[track_caller]
    pub(crate) fn alarm_of_coefficient(&self, name: &str, value: Tensor<'_>, range: Range) {
        let bad = Bad::Outside(range);
        let known = {
            let inner = self.inner.borrow();
            let tapped = |alarm: &Alarm| &inner.taps[alarm.tap];
            inner.alarms.iter().any(|a| a.bad == bad && tapped(a).node == value.id && tapped(a).name == name)
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
        inner.alarms.push(Alarm { tap: inner.taps.len() - 1, bad, what, pitfall, site });
    }
}
