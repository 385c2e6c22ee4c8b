//! Tables of wgrad's results beside those of other frameworks, from the rows that `bench/peers/run_all` writes.

use serde::Deserialize;
use std::fmt::Write;

/// One result of a framework.
#[derive(Deserialize, Clone, Debug)]
pub struct Row {
    /// The runner's name if a framework has several runners; otherwise the framework's name.
    #[serde(alias = "framework")]
    runner: String,
    workload: String,
    median_ms: Option<f64>,
    p10: Option<f64>,
    rss_mb: Option<f64>,
    #[serde(default)]
    rss_base_mb: f64,
    loss_first: Option<f64>,
    loss_last: Option<f64>,
    /// The number of processors that other processes used during the run.
    #[serde(default)]
    other_cpu: f64,
}

/// The rows of a file, one line of JSON each.
///
/// # Errors
/// The number of the first line that is not a row, and the reason.
pub fn rows(text: &str) -> std::result::Result<Vec<Row>, String> {
    let parse = |(i, line): (usize, &str)| {
        // `alias` refuses a row with both fields, so the framework is removed where a runner is named.
        let mut row: serde_json::Value =
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", i + 1))?;
        if let Some(fields) = row.as_object_mut().filter(|fields| fields.contains_key("runner")) {
            fields.remove("framework");
        }
        serde_json::from_value(row).map_err(|error| format!("line {}: {error}", i + 1))
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(parse).collect()
}

/// The workloads' names and titles, in the order of the tables.
const WORKLOADS: [(&str, &str); 17] = [
    ("w1", "w1 transformer"),
    ("w2", "w2 transformer"),
    ("w3", "w3 tanh RNN"),
    ("w4", "w4 LSTM"),
    ("w5", "w5 ResNet-20"),
    ("w6_clip", "w6 clip by global norm"),
    ("w6_agc", "w6 AGC"),
    ("w6_central", "w6 centralization"),
    ("w6_update", "w6 update"),
    ("w7_matmul512", "w7 matmul 512"),
    ("w7_matmul1024", "w7 matmul 1024"),
    ("w7_matmul2048", "w7 matmul 2048"),
    ("w7_softmax", "w7 softmax"),
    ("w7_layernorm", "w7 layer norm, forward and backward"),
    ("w7_sum16m", "w7 sum of 16M"),
    ("w7_attn", "w7 attention, forward and backward"),
    ("w7_conv", "w7 convolution, forward and backward"),
];

/// A row is marked if other processes used more processors than this; `run_all` has the same limit.
const NOISY: f64 = 0.3;

/// wgrad's column.
const OURS: &str = "wgrad";

/// The tables in Markdown: times, memory and losses.
///
/// # Errors
/// If there is no row of wgrad, or no row of a peer.
pub fn tables(rows: &[Row]) -> std::result::Result<String, String> {
    let table = Tables::new(rows)?;
    let mut out = String::new();
    table.times(&mut out);
    table.memory(&mut out);
    table.losses(&mut out);
    Ok(out)
}

/// One table in Markdown: wgrad beside the best peer of each workload, in time and memory.
///
/// # Errors
/// If there is no row of wgrad, or no row of a peer.
pub fn summary(rows: &[Row]) -> std::result::Result<String, String> {
    let table = Tables::new(rows)?;
    let mut out = "| workload | wgrad, ms | best peer, ms | | ratio | MiB | least of the peers |\n".to_string();
    out += "|---|---|---|---|---|---|---|\n";
    for (workload, title) in table.workloads() {
        let [time, memory] = [Tables::time, Tables::above].map(|figure| {
            let peers = table.runners[1..].iter().filter_map(|peer| Some((figure(&table, workload, peer)?, *peer)));
            (figure(&table, workload, OURS), peers.min_by(|a, b| a.0.total_cmp(&b.0)))
        });
        let shown = |figure: Option<f64>, show: fn(f64) -> String| figure.map(show).unwrap_or_default();
        let best = time.1.map(|best| best.0);
        let cells = [
            shown(time.0, digits),
            shown(best, digits),
            time.1.map(|best| best.1.to_string()).unwrap_or_default(),
            shown(time.0.zip(best).map(|(ours, best)| ours / best), |ratio| format!("{ratio:.2}")),
            shown(memory.0, |mib| format!("{mib:.0}")),
            shown(memory.1.map(|least| least.0), |mib| format!("{mib:.0}")),
        ];
        writeln!(out, "| {title} | {} |", cells.join(" | ")).expect("a string takes it");
    }
    Ok(out)
}

struct Tables<'a> {
    rows: &'a [Row],
    runners: Vec<&'a str>,
}

impl<'a> Tables<'a> {
    fn new(rows: &'a [Row]) -> std::result::Result<Self, String> {
        let mut runners: Vec<&str> = vec![OURS];
        rows.iter().for_each(|row| {
            if !runners.contains(&row.runner.as_str()) {
                runners.push(&row.runner);
            }
        });
        if runners.len() < 2 || rows.iter().all(|row| row.runner != OURS) {
            return Err("a table needs rows of wgrad and of a peer".into());
        }
        Ok(Self { rows, runners })
    }

    /// The rows of a cell, one for each round.
    fn cell(&self, workload: &str, runner: &str) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.workload == workload && row.runner == runner)
    }

    /// The median of a figure over the rounds, if any row has the figure.
    fn median(&self, workload: &str, runner: &str, figure: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
        let mut values: Vec<f64> = self.cell(workload, runner).filter_map(figure).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            n if n % 2 == 0 => Some((values[middle - 1] + values[middle]) / 2.0),
            _ => Some(values[middle]),
        }
    }

    /// The workloads that wgrad has results of.
    fn workloads(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        WORKLOADS.into_iter().filter(|(name, _)| self.cell(name, OURS).next().is_some())
    }

    fn heading(&self, out: &mut String, more: &str) {
        let columns = self.runners.join(" | ");
        let rule = "---|".repeat(1 + self.runners.len() + usize::from(!more.is_empty()));
        writeln!(out, "| workload | {columns} |{more}\n|{rule}").expect("a string takes it");
    }

    /// The table of medians and 10th percentiles, and their ratios to the best peer's.
    fn times(&self, out: &mut String) {
        *out += "Milliseconds: the median, and in brackets the 10th percentile, each the median over the rounds. The last\n\
                 column is wgrad's time in terms of the best peer's. `~`: others used more than 0.3 processors meanwhile.\n\n";
        self.heading(out, " wgrad / best |");
        for (workload, title) in self.workloads() {
            write!(out, "| {title} |").expect("a string takes it");
            for runner in &self.runners {
                let noisy = self.cell(workload, runner).any(|row| row.other_cpu > NOISY);
                let [median, p10] = self.both(workload, runner);
                let text = median.zip(p10).map(|(median, p10)| {
                    format!(" {}{} ({})", if noisy { "~" } else { "" }, digits(median), digits(p10))
                });
                write!(out, "{} |", text.unwrap_or_default()).expect("a string takes it");
            }
            let ours = self.both(workload, OURS);
            let best = |i: usize| {
                let peers = self.runners[1..].iter().filter_map(|peer| self.both(workload, peer)[i]);
                let best = peers.min_by(f64::total_cmp)?;
                Some(format!("{:.2}", ours[i]? / best))
            };
            let ratio = best(0).zip(best(1)).map(|(median, p10)| format!(" {median} ({p10})"));
            writeln!(out, "{} |", ratio.unwrap_or_default()).expect("a string takes it");
        }
    }

    fn both(&self, workload: &str, runner: &str) -> [Option<f64>; 2] {
        [self.time(workload, runner), self.median(workload, runner, |row| row.p10)]
    }

    fn time(&self, workload: &str, runner: &str) -> Option<f64> {
        self.median(workload, runner, |row| row.median_ms)
    }

    /// The peak memory in MiB, less the memory that the process held before it made the model.
    fn above(&self, workload: &str, runner: &str) -> Option<f64> {
        self.median(workload, runner, |row| Some(row.rss_mb? - row.rss_base_mb))
    }

    /// The table of peak memory, less the memory that the process held before it made the model.
    fn memory(&self, out: &mut String) {
        *out +=
            "\nPeak memory in MiB above what the process held before the model was made, which stands in brackets.\n\n";
        self.heading(out, "");
        for (workload, title) in self.workloads() {
            write!(out, "| {title} |").expect("a string takes it");
            for runner in &self.runners {
                let above = self.above(workload, runner);
                let base = self.median(workload, runner, |row| Some(row.rss_base_mb));
                let text = above.zip(base).map(|(above, base)| format!(" {above:.0} ({base:.0})"));
                write!(out, "{} |", text.unwrap_or_default()).expect("a string takes it");
            }
            out.push('\n');
        }
    }

    /// The table of losses of steps 1 and 10; operations have mean squares, and gradient passes sums of magnitudes.
    fn losses(&self, out: &mut String) {
        *out += "\nLosses of step 1 and step 10; for operations the mean square of the output and of the first input's gradient,\n\
                 for gradient passes the sum of magnitudes after one.\n\n";
        self.heading(out, "");
        for (workload, title) in self.workloads() {
            write!(out, "| {title} |").expect("a string takes it");
            for runner in &self.runners {
                let losses = self.cell(workload, runner).next().map(|row| [row.loss_first, row.loss_last]);
                let shown: Vec<String> =
                    losses.into_iter().flatten().flatten().map(|loss| format!("{loss:.8}")).collect();
                write!(out, " {} |", shown.join(" / ")).expect("a string takes it");
            }
            out.push('\n');
        }
    }
}

/// Milliseconds with three significant digits, as far as four decimals allow.
fn digits(ms: f64) -> String {
    let decimals = (2 - ms.max(1e-9).log10().floor() as i32).clamp(0, 4);
    format!("{ms:.*}", decimals as usize)
}

/// The lines of a text that enclose the tables.
const MARKS: [&str; 2] = ["<!-- Made by `cargo xtask peers`. -->\n", "<!-- The end of what it made. -->"];

/// Replaces the tables in a text by new ones.
///
/// # Errors
/// If the text does not have both lines that enclose the tables.
pub fn replaced(text: &str, tables: &str) -> std::result::Result<String, String> {
    let place = text.split_once(MARKS[0]).and_then(|(before, rest)| Some((before, rest.split_once(MARKS[1])?.1)));
    let (before, after) =
        place.ok_or_else(|| format!("there is no {:?} and {:?} after it", MARKS[0].trim(), MARKS[1]))?;
    Ok(format!("{before}{}{tables}{}{after}", MARKS[0], MARKS[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = r#"
{"framework":"torch","runner":"torch-compile","workload":"w1","median_ms":50.0,"p10":40,"rss_mb":700,"rss_base_mb":500,"loss_first":4.5,"loss_last":3.25,"threads":2}
{"framework":"torch","runner":"torch","workload":"w1","median_ms":60.0,"p10":39,"rss_mb":700,"rss_base_mb":500,"loss_first":4.5,"loss_last":3.25,"other_cpu":0.4}
{"framework":"wgrad","workload":"w1","median_ms":30.0,"p10":20,"rss_mb":100,"rss_base_mb":60,"loss_first":4.5,"loss_last":3.25}
{"framework":"wgrad","workload":"w1","median_ms":50.0,"p10":28,"rss_mb":100,"rss_base_mb":60,"loss_first":4.5,"loss_last":3.25}
{"framework":"torch","runner":"torch","workload":"w6_update_forloop","median_ms":60.0,"p10":39}
{"framework":"wgrad","workload":"w7_sum16m","median_ms":1.25,"p10":1.0,"rss_mb":null,"loss_first":988.1,"loss_last":null}
"#;

    #[test]
    fn every_cell_is_a_median_and_is_compared_with_the_best_peer() {
        let tables = tables(&rows(ROWS).unwrap()).unwrap();
        let lines: Vec<&str> = tables.lines().filter(|line| line.starts_with("| w")).collect();
        assert_eq!(lines[0], "| workload | wgrad | torch-compile | torch | wgrad / best |");
        assert_eq!(lines[1], "| w1 transformer | 40.0 (24.0) | 50.0 (40.0) | ~60.0 (39.0) | 0.80 (0.62) |");
        assert_eq!(lines[2], "| w7 sum of 16M | 1.25 (1.00) | | | |");
        assert_eq!(lines[4], "| w1 transformer | 40 (60) | 200 (500) | 200 (500) |");
        assert_eq!(
            lines[7],
            "| w1 transformer | 4.50000000 / 3.25000000 | 4.50000000 / 3.25000000 | 4.50000000 / 3.25000000 |"
        );
    }

    #[test]
    fn the_summary_names_the_best_peer_of_each_workload() {
        let summary = summary(&rows(ROWS).unwrap()).unwrap();
        let lines: Vec<&str> = summary.lines().skip(2).collect();
        assert_eq!(lines[0], "| w1 transformer | 40.0 | 50.0 | torch-compile | 0.80 | 40 | 200 |");
        assert_eq!(lines[1], "| w7 sum of 16M | 1.25 |  |  |  |  |  |");
    }

    #[test]
    fn what_is_no_result_is_named_by_its_line() {
        assert!(rows("{\"framework\":\"x\",\"workload\":\"w1\"}\n\n{").unwrap_err().starts_with("line 3: "));
        assert!(rows("{\"framework\":\"x\"}").unwrap_err().contains("workload"));
        assert!(tables(&rows("{\"framework\":\"wgrad\",\"workload\":\"w1\"}").unwrap()).is_err());
    }

    #[test]
    fn tables_take_the_place_of_others() {
        let text = format!("a\n{}old\n{}\nb", MARKS[0], MARKS[1]);
        assert_eq!(replaced(&text, "new\n").unwrap(), format!("a\n{}new\n{}\nb", MARKS[0], MARKS[1]));
        assert!(replaced("a", "new").is_err());
    }
}
