//! The cases of an example, and the cures of each case.

use crate::{Error, Result};
use clap::ValueEnum;

/// A case and its cures, the default one first. In a table of cases, the first entry is the healthy case, which has no
/// cures.
pub type Cure<C, F> = (C, &'static [F]);

/// The name of a flag's value on the command line.
pub(crate) fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().expect("every value has a name").get_name().to_string()
}

/// A case of an example by name, with its cures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// The example.
    pub example: &'static str,
    /// The case.
    pub case: String,
    /// The cures, the default one first; the healthy case has none.
    pub cures: Vec<String>,
}

/// The cases of an example.
pub fn cases<C: ValueEnum + Copy, F: ValueEnum + Copy>(example: &'static str, table: &[Cure<C, F>]) -> Vec<Case> {
    let of = |(case, cures): &Cure<C, F>| Case {
        example,
        case: name_of(*case),
        cures: cures.iter().map(|fix| name_of(*fix)).collect(),
    };
    table.iter().map(of).collect()
}

/// The cures of a case, the default one first. `fix` must be one of them, or the default value, which means no cure.
///
/// # Errors
/// [`Error::Usage`] if `fix` is not a cure of the case.
pub fn cured<C, F>(table: &[Cure<C, F>], case: C, fix: F) -> Result<&'static [F]>
where
    C: ValueEnum + Copy + PartialEq,
    F: ValueEnum + Copy + PartialEq + Default,
{
    let cures = table.iter().find(|(of, _)| *of == case).map_or(&[][..], |(_, cures)| cures);
    if fix == F::default() || cures.contains(&fix) {
        return Ok(cures);
    }
    let fix = name_of(fix);
    let or = |names: Vec<String>| match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    };
    Err(Error::Usage(if cures.is_empty() {
        let cases = table.iter().filter(|(_, cures)| !cures.is_empty()).map(|(case, _)| name_of(*case));
        format!("--fix {fix} needs a case to cure: --case {}", or(cases.collect()))
    } else {
        let allowed = cures.iter().map(|fix| name_of(*fix)).collect();
        format!("--fix {fix} does not cure --case {}: use {}", name_of(case), or(allowed))
    }))
}
