//! The `verify` command: reads a set of vectors, runs them one after another, and prints the failures.

use super::{
    Attempt, Attributes, Case, Index, KINDS, Refusal, Tensors, Trace, Vector,
    compare::{Comparison, Mismatch, compare},
    kind::TRACES,
    report::{Outcome, Row, Summary},
    traces,
};
use crate::{
    Error, Result,
    cli::{Common, VerifyArgs},
    device::Place,
    interrupt,
    output::json,
    say,
};
use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fs, panic,
    path::Path,
};

/// `wgrad verify`. Returns true if all vectors passed that the device can run.
///
/// # Errors
/// If a file is missing or damaged, there are no vectors of the kind, or the device cannot be opened.
pub fn verify(args: &VerifyArgs, common: &Common) -> Result<bool> {
    if common.steps.is_some() {
        return Err(Error::Usage("verify makes no training steps: leave --steps out".into()));
    }
    let place = Place::open(common)?;
    let device = place.name()?;
    let (rows, count) = rows(&args.dir, args.kind.as_deref(), &place, |row| {
        if let Some(why) = row.why.as_ref().filter(|_| !common.json && !common.quiet) {
            say!("{}: {why}", row.id);
        }
    })?;
    let whole = rows.len() == count;
    let summary = Summary::new(device, args.kind.clone(), rows);
    if common.json {
        json(&summary);
    } else {
        if !whole {
            say!("Interrupted: {} of {count} vectors were not run", count - summary.vectors.len());
        }
        say!("{}", summary.line());
    }
    Ok(whole && summary.failed == 0)
}

/// Runs the vectors of a directory, or those of one kind, and calls `tell` as each ends. Returns a row for each vector
/// that has run, and the number of all vectors, which is larger if the user interrupts the run.
///
/// # Errors
/// If a file is missing or damaged, or there are no vectors of the kind.
pub fn rows(dir: &Path, kind: Option<&str>, place: &Place, tell: impl Fn(&Row)) -> Result<(Vec<Row>, usize)> {
    let cases = cases(dir, kind)?;
    // All files are read before the first vector runs, because the results of half a set would be no verdict.
    let mut files = HashMap::new();
    for case in cases.iter().filter(|case| runs(case)) {
        if let Entry::Vacant(entry) = files.entry(case.file.as_str()) {
            let path = dir.join(&case.file);
            let tensors = Tensors::parse(&case.file, read(&path)?);
            entry.insert(tensors.map_err(|why| wgrad_nn::Error::Malformed { path, why })?);
        }
    }
    let mut rows = vec![];
    // A panic is reported in its vector's line, so nothing prints it on standard error.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    for case in &cases {
        if interrupt::requested() {
            break;
        }
        let row = row(case, files.get(case.file.as_str()), place);
        tell(&row);
        rows.push(row);
    }
    panic::set_hook(hook);
    Ok((rows, cases.len()))
}

/// True if this version runs vectors of this kind. The files of other kinds are not read.
fn runs(case: &Case) -> bool {
    KINDS.iter().any(|kind| kind.name == case.kind && kind.run.is_some())
}

/// The vectors of a set, or those of one kind.
fn cases(dir: &Path, kind: Option<&str>) -> Result<Vec<Case>> {
    let path = dir.join("index.json");
    let index = Index::parse(&read(&path)?).map_err(|why| Error::Golden { path, what: "index", why })?;
    let mut cases = index.cases;
    if let Some(file) = index.traces {
        let path = dir.join(&file);
        let traces = Trace::parse(&read(&path)?).map_err(|why| Error::Golden { path, what: "file of traces", why })?;
        cases.extend(traces.into_iter().map(|trace| Case {
            id: trace.id,
            kind: TRACES.into(),
            op: TRACES.into(),
            dtype: "none".into(),
            attrs: trace.attrs,
            diff: vec![],
            file: file.clone(),
            inputs: vec![],
            expect: BTreeMap::new(),
        }));
    }
    cases.retain(|case| kind.is_none_or(|kind| case.kind == kind));
    if cases.is_empty() {
        return Err(Error::NoVectors { path: dir.into(), kind: kind.map(Into::into) });
    }
    Ok(cases)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    Ok(fs::read(path).map_err(|source| wgrad_nn::Error::Io { action: "read", path: path.into(), source })?)
}

/// Runs one vector and compares its results. `tensors` is `None` for a trace, and for a kind that this version does not
/// run.
fn row(case: &Case, tensors: Option<&Tensors>, place: &Place) -> Row {
    if case.kind == TRACES {
        let why = traces::run(Attributes(&case.attrs)).unwrap_or_else(|refusal| Some(refusal.to_string()));
        return Row::new(case, if why.is_none() { Outcome::Passed } else { Outcome::Failed }, why);
    }
    if case.needs_f64() && !place.has_f64() {
        return Row::new(case, Outcome::NotForThisDevice, None);
    }
    let compared = || -> Attempt<Vec<(String, Comparison)>> {
        let tensors = tensors.ok_or_else(|| Refusal::Kind(case.kind.clone()))?;
        if case.expect.is_empty() {
            return Err(Refusal::NothingExpected);
        }
        let results = Vector { case, tensors, place }.run()?;
        let expected = case.expect.iter().map(|(name, tolerance)| {
            let want = tensors.expected(&format!("{}/{name}", case.id))?;
            let found = results.iter().find(|(result, _)| result == name);
            let missing = || Comparison { mismatch: Some(Mismatch::Missing), errors: vec![] };
            Ok((name.clone(), found.map_or_else(missing, |(_, have)| compare(have, &want, *tolerance))))
        });
        expected.collect()
    };
    match compared() {
        Ok(comparisons) => Row::compared(case, &comparisons),
        Err(refusal) => Row::new(case, Outcome::Failed, Some(refusal.to_string())),
    }
}
