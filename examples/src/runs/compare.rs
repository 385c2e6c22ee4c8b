//! `wgrad compare`: compares two runs, such as before and after a cure.

use super::summary::{Summary, columns, digits, read};
use crate::{Error, Result, cli::Common, output::json, say};
use clap::Args;
use serde::Serialize;
use std::{io, path::PathBuf};
use wgrad_nn::{
    RunHistory,
    track::{Row, Run, SideBySide},
};

/// Options of `wgrad compare`.
#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    /// The first run: the folder of a report, or a file that --metrics has written
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,
    /// The second run, as a folder or a file
    #[arg(value_name = "AFTER")]
    pub after: PathBuf,
    /// Show both runs on a page that opens from disk, DIR/index.html. A folder that already holds such a page is
    /// refused
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// A comparison as JSON.
#[derive(Serialize)]
struct Compared {
    before: Summary,
    after: Summary,
    /// The mean and the standard deviation of the gradient norms, the mean of the last 10 losses, and the slope of the
    /// last 50, for each of the two runs.
    norm_mean: [f64; 2],
    norm_std: [f64; 2],
    loss_mean: [f64; 2],
    loss_slope: [f64; 2],
    changes: Vec<String>,
}

/// `wgrad compare`.
///
/// # Errors
/// If a run cannot be read or has fewer than 2 updates, or the page cannot be written.
pub fn compare(args: &CompareArgs, common: &Common) -> Result<()> {
    let paths = [&args.before, &args.after];
    let mut runs: Vec<Run> = vec![];
    for path in paths {
        let run = read(path)?;
        if run.updates.len() < 2 {
            return Err(Error::ShortRun { path: path.clone(), updates: run.updates.len() });
        }
        runs.push(run);
    }
    let runs = <[Run; 2]>::try_from(runs).expect("two were read");
    let columns_of = runs.each_ref().map(|run| {
        let numbers = run.updates.iter().map(|(_, update)| (update.loss, update.grad_norm));
        numbers.unzip::<f64, f64, Vec<f64>, Vec<f64>>()
    });
    let [before, after] = columns_of.each_ref().map(|(losses, norms)| RunHistory { losses, norms });
    let compared = wgrad_nn::compare(before, after);
    let changes: Vec<String> = compared.changes.iter().map(ToString::to_string).collect();
    let [first, second] = [0, 1].map(|at| Summary::new(paths[at], &runs[at]));
    let rows = rows(&[&first, &second], &runs, &compared);
    if let Some(folder) = &args.report {
        let page = folder.join("index.html");
        let title = format!("{} and {}", first.run, second.run);
        let named = [(&*first.run, &runs[0]), (&*second.run, &runs[1])];
        let comparison = SideBySide { title: &title, runs: named, rows: rows.clone(), changes: changes.clone() };
        comparison.write(folder).map_err(|error| {
            let is_there = error.kind() == io::ErrorKind::AlreadyExists;
            let why = if is_there {
                "it exists already: choose another name, or remove it".into()
            } else {
                error.to_string()
            };
            Error::Metrics { path: page, why }
        })?;
    }
    if common.json {
        json(&Compared {
            before: first,
            after: second,
            norm_mean: compared.norm,
            norm_std: compared.std,
            loss_mean: compared.loss,
            loss_slope: compared.slope,
            changes,
        });
        return Ok(());
    }
    let heading = vec![String::new(), first.run.clone(), second.run.clone()];
    let lines: Vec<Vec<String>> =
        [heading].into_iter().chain(rows.into_iter().map(|(what, [a, b])| vec![what, a, b])).collect();
    say!("{}", columns(&lines));
    if !changes.is_empty() {
        say!("{}, beside {}: {}", second.run, first.run, changes.join("; "));
    }
    if let Some(folder) = args.report.as_ref().filter(|_| !common.quiet) {
        say!("The report: {}", folder.join("index.html").display());
    }
    Ok(())
}

/// The rows of the table: the numbers of both runs, and the settings that differ.
fn rows(summaries: &[&Summary; 2], runs: &[Run; 2], compared: &wgrad_nn::Comparison) -> Vec<Row> {
    let both = |of: fn(&Summary) -> String| summaries.map(of);
    let number = |of: [f64; 2]| of.map(|value| digits(Some(value)));
    let mut rows: Vec<(&str, [String; 2])> = vec![
        ("end", both(|run| run.end.into())),
        ("updates", both(|run| run.updates.to_string())),
        ("first loss", both(|run| digits(run.loss_first))),
        ("median loss of the last tenth", both(|run| digits(run.loss_last))),
        ("mean of the last 10 losses", number(compared.loss)),
        ("slope of the last 50 losses", number(compared.slope)),
    ];
    let name = &summaries[1].metric_name;
    if summaries.iter().any(|run| run.metric.is_some()) {
        rows.push((name, both(|run| digits(run.metric))));
    }
    rows.extend([
        ("mean norm of gradients", number(compared.norm)),
        ("standard deviation of norms", number(compared.std)),
        ("largest norm", both(|run| digits(run.norm_max))),
        ("updates clipped", both(|run| run.clipped.map_or(String::new(), |share| format!("{:.1} %", 100.0 * share)))),
        ("updates skipped", both(|run| run.skipped.to_string())),
        ("flow: first third over last third", both(|run| digits(run.flow_ratio))),
    ]);
    rows.retain(|(_, cells)| cells.iter().any(|cell| !cell.is_empty()));
    let mut rows: Vec<Row> = rows.into_iter().map(|(what, cells)| (what.to_string(), cells)).collect();
    let names = runs.iter().flat_map(|run| run.settings.iter().map(|(name, _)| name));
    let mut known: Vec<&String> = vec![];
    for name in names.filter(|name| *name != "command") {
        if known.contains(&name) {
            continue;
        }
        known.push(name);
        let cells = runs.each_ref().map(|run| run.setting(name).map_or(String::new(), ToString::to_string));
        if cells[0] != cells[1] {
            rows.push((format!("setting {name}"), cells));
        }
    }
    rows
}
