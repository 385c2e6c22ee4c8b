//! `wgrad runs`: lists the runs in a folder, in one table.

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
    /// The folder that holds reports, directly or in its subfolders
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// The depth to which subfolders are searched.
const DEPTH: usize = 4;

/// Finds the folders of reports in a folder, including the folder itself, in the order of their names.
fn reports(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if dir.join("metrics.jsonl").is_file() {
        found.push(dir.into());
    }
    if depth == 0 {
        return Ok(());
    }
    let mut inner: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    inner.sort();
    // Links are skipped, because their folders may be searched already. Subfolders that cannot be read are skipped too.
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
            // A damaged file does not hide the other runs.
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
        say!("(no end: the run is still going on, or was killed)");
    }
    Ok(())
}
