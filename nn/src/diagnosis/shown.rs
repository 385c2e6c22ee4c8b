//! A diagnosis as text for a person: the finding, its numbers, its remedy, and the proof of the remedy.

use super::{Diagnosis, Finding, Proof, proof::Outcome};
use crate::train::{Failure, Spike};
use std::fmt;

/// The number of places that are named.
const PLACES: usize = 4;

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.findings.split_first() else {
            return write!(
                f,
                "healthy: nothing is found in {} steps; the loss went from {} to {}",
                self.steps,
                number(self.loss_first),
                number(self.loss_last)
            );
        };
        write!(f, "{first}")?;
        if let Some(warning) = self.warnings.first() {
            write!(f, "\nThe first sign was at step {}: {warning}", warning.step)?;
        }
        if let Some(failure) = &self.failure {
            write!(f, "\n{}", Broken(failure))?;
        }
        if let Some(Spike { update, since, growth, .. }) = self.spike.as_ref().filter(|_| self.failure.is_none()) {
            write!(f, "\nThe loss had a spike at step {update}. Compared with step {since}: {growth}")?;
        }
        if !rest.is_empty() {
            let names: Vec<&str> = rest.iter().map(|finding| finding.rule.fault).collect();
            write!(f, "\nAlso found: {}. The first finding may explain them.", names.join(", "))?;
        }
        Ok(())
    }
}

/// The place where a run broke, in a few lines: without the chain of nodes.
struct Broken<'a>(&'a Failure);

impl fmt::Display for Broken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { update, origin, .. } = self.0;
        let place = &origin.place;
        write!(
            f,
            "The first value that is not finite, at step {update} in {}: {place}\n  {}",
            place.phase, origin.value
        )?;
        for (place, range) in &origin.operands {
            write!(f, "\n  computed from {place}: {range}")?;
        }
        let given = if origin.params.is_empty() { "as data or a state" } else { "as a parameter" };
        if !origin.is_produced() {
            write!(f, "\n  the step receives this value {given}; it does not compute it")?;
        }
        match origin.chain.len() - 1 {
            0 => write!(f, "\n  and so {}", origin.reaches),
            1 => write!(f, "\n  one node later {}", origin.reaches),
            nodes => write!(f, "\n  {nodes} nodes later {}", origin.reaches),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.place.len().min(PLACES);
        let more = self.place.len() - shown;
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        writeln!(f, "{}, since step {}", self.rule.fault, self.since)?;
        writeln!(f, "  where: {}{more}", self.place[..shown].join(", "))?;
        for evidence in &self.evidence {
            let range = match (evidence.low.is_finite(), evidence.high.is_finite()) {
                _ if evidence.low == evidence.high => format!("sound: {}", number(evidence.low)),
                (true, true) => format!("sound: {} to {}", number(evidence.low), number(evidence.high)),
                (true, false) => format!("sound: at least {}", number(evidence.low)),
                _ => format!("sound: at most {}", number(evidence.high)),
            };
            writeln!(f, "  {}: {} ({range})", evidence.what, number(evidence.value))?;
        }
        if let Some(remedy) = self.remedies.first() {
            writeln!(f, "  remedy: {}: {}", remedy.name, remedy.advice)?;
        }
        match &self.proof {
            Some(proof) => write!(f, "{proof}"),
            None if self.tried.is_empty() => write!(f, "  not proven by a replay"),
            None => {
                write!(f, "  not proven: no replay does better than both controls")?;
                self.tried.iter().try_for_each(|(name, outcome)| write!(f, "\n    with {name:<16} {outcome}"))
            }
        }
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  proven: {} steps from the start, on the same batches", self.steps)?;
        writeln!(f, "    with {:<16} {}", self.remedy, self.cured)?;
        writeln!(f, "    {:<21} {}", "with nothing changed", self.unchanged)?;
        write!(f, "    with {:<16} {} (control: a change that should not help)", self.unfit_name, self.unfit)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.died {
            Some(step) => write!(f, "loss {} at first, not finite at step {step}", number(self.loss_first)),
            None => write!(f, "loss {} at first, {} at last", number(self.loss_first), number(self.loss_last)),
        }
    }
}

/// A number of four digits.
fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (0.01..10000.0).contains(&size) {
        let whole = if size < 1.0 { 0 } else { size.log10() as usize };
        let text = format!("{value:.*}", 3usize.saturating_sub(whole) + usize::from(size < 1.0));
        return if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text };
    }
    format!("{value:.1e}")
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_have_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.9995, "0.9995"),
            (0.25, "0.25"),
            (-0.0123456, "-0.0123"),
            (2.5719, "2.572"),
            (43.4400, "43.44"),
            (1130.411, "1130"),
            (9000.0, "9000"),
            (1e7, "1.0e7"),
            (3.2e-4, "3.2e-4"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
