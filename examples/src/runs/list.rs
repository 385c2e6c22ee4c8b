//! `wgrad runs`: the runs that a folder holds, in one table.

use super::summary::{Summary, columns, digits, read};
use crate::{Error, Result, cli::Common, output::json, say};
use clap::Args;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Options of `wgrad runs`.
#[derive(Args, Clone, Debug)]
pub struct RunsArgs {
    /// The folder, with reports in it or in its folders
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// The depth of folders that is looked into.
const DEPTH: usize = 4;

/// The folders of reports in a folder, itself among them, by name.
fn reports(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if dir.join("metrics.jsonl").is_file() {
        found.push(dir.into());
    }
    if depth == 0 {
        return Ok(());
    }
    let mut inner: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    inner.sort();
    // A folder that a link leads to may be one that is looked into already; one that cannot be read holds no run of the caller's.
    inner
        .iter()
        .filter(|path| path.is_dir() && !path.is_symlink())
        .for_each(|path| _ = reports(path, depth - 1, found));
    Ok(())
}

/// `wgrad runs`.
///
/// # Errors
/// If the folder cannot be read, or holds no run.
pub fn runs(args: &RunsArgs, common: &Common) -> Result<()> {
    let dir = &args.dir;
    let mut found = vec![];
    let io = |source| wgrad_nn::Error::Io { action: "read", path: dir.clone(), source };
    reports(dir, DEPTH, &mut found).map_err(io)?;
    if found.is_empty() {
        return Err(Error::NoRuns { path: dir.clone() });
    }
    let mut all = vec![];
    for path in &found {
        match read(path) {
            Ok(run) => all.push(Summary::new(path, &run)),
            // One file that is damaged hides no other.
            Err(error) => eprintln!("wgrad: {error}"),
        }
    }
    if common.json {
        all.iter().for_each(json);
        return Ok(());
    }
    let heading = ["run", "end", "updates", "first loss", "last loss", "metric", "", "finding or command"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for run in &all {
        let Summary { end, updates, loss_first, loss_last, metric_name, metric, finding, command, .. } = run;
        let what = finding.as_ref().or(command.as_ref()).cloned().unwrap_or_default();
        let name = if metric.is_some() { metric_name.clone() } else { String::new() };
        rows.push(vec![
            run.run.clone(),
            end.to_string(),
            updates.to_string(),
            digits(*loss_first),
            digits(*loss_last),
            digits(*metric),
            name,
            what,
        ]);
    }
    say!("{}", columns(&rows));
    if all.iter().any(|run| run.end == "no end") {
        say!("(no end: it goes on, or was killed)");
    }
    Ok(())
}
