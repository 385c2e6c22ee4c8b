//! Two runs side by side as one page that opens from disk.

use super::{
    assemble,
    data::{MEASUREMENTS, Series, Updates},
};
use crate::track::{Run, Setting, json::number};
use serde_json::{Map, Value, json};
use std::{fs, io, path::Path};

const SCRIPT: &str = concat!(include_str!("charts.js"), include_str!("comparison.js"));

/// A row of a table: its name, and the value of each run in words.
pub type Row = (String, [String; 2]);

/// Two runs side by side: `index.html` in a folder, one file that needs no network. It shows the runs' losses, norms
/// and flows, and the rows of a table that the caller has made.
///
/// ```
/// # use wgrad_nn::track::{Run, SideBySide};
/// # fn look(before: Run, after: Run) -> std::io::Result<()> {
/// let rows = vec![("updates".to_string(), [&before, &after].map(|run| run.updates.len().to_string()))];
/// let runs = [("before", &before), ("after", &after)];
/// SideBySide { title: "a clip", runs, rows, changes: vec![] }.write("report")
/// # }
/// ```
#[derive(Debug)]
pub struct SideBySide<'a> {
    /// The title.
    pub title: &'a str,
    /// The runs, each with its name.
    pub runs: [(&'a str, &'a Run); 2],
    /// The table.
    pub rows: Vec<Row>,
    /// The differences of the second run from the first, in words.
    pub changes: Vec<String>,
}

fn of_run(name: &str, run: &Run) -> Value {
    let mut updates = Updates::default();
    run.updates.iter().for_each(|(step, update)| updates.push(*step, update));
    let values: Map<String, Value> = run
        .values
        .iter()
        .map(|(name, all)| {
            let mut series = Series::default();
            all.iter().for_each(|(step, value)| series.push(*step, *value));
            (name.clone(), series.json())
        })
        .collect();
    let stride = run.flow.len().div_ceil(MEASUREMENTS).max(1);
    let flow = run.flow.iter().step_by(stride);
    let flow: Vec<Value> = flow
        .map(|(step, all)| json!({ "step": step, "flow": all.iter().map(|v| number(*v)).collect::<Vec<_>>() }))
        .collect();
    let settings: Map<String, Value> =
        run.settings.iter().map(|(name, setting)| (name.clone(), Setting::json(setting))).collect();
    json!({
        "name": name,
        "end": run.end.map(super::super::End::name),
        "count": run.updates.len(),
        "updates": updates.json(),
        "values": values,
        "rows": run.flow_rows,
        "flow": flow,
        "finding": run.finding,
        "settings": settings,
    })
}

impl SideBySide<'_> {
    /// Writes the page, under another name first.
    ///
    /// # Errors
    /// If the folder has a page already, which stays as it is; if it cannot be written.
    pub fn write(&self, folder: impl AsRef<Path>) -> io::Result<()> {
        fs::create_dir_all(&folder)?;
        let path = folder.as_ref().join("index.html");
        if path.try_exists()? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let data = json!({
            "title": self.title,
            "runs": self.runs.iter().map(|(name, run)| of_run(name, run)).collect::<Vec<_>>(),
            "rows": self.rows,
            "changes": self.changes,
        });
        assemble(&path, self.title, &data, SCRIPT)
    }
}
