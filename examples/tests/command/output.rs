//! What is printed where: JSON, the result alone, tables, and nothing for terminals in a pipe.

use crate::{FIELDS, command, wgrad};
#[cfg(target_os = "linux")]
use crate::{Outcome, saved};
use std::path::Path;

#[test]
fn json_is_one_object_with_the_fields_of_the_specification() {
    for args in ["", "--quiet", "--cell gru", "--task adding", "--case vanishing --fix omega"] {
        let report = wgrad(&format!("rnn --length 20 --steps 3 --threads 1 --seed 7 --json {args}")).json();
        let mut fields: Vec<&str> = report.keys().map(String::as_str).collect();
        let mut wanted = FIELDS.to_vec();
        fields.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(fields, wanted, "{args}");
        let task_metric = if args.contains("adding") { "mse" } else { "accuracy" };
        for (field, value) in [("example", "rnn"), ("metric_name", task_metric), ("device", "cpu (1 thread)")] {
            assert_eq!(report[field], value, "{args}: {report:?}");
        }
        assert_eq!((&report["seed"], &report["steps"]), (&7.into(), &3.into()), "{args}");
        assert!(report["reached"].is_boolean() && report["diverged"].is_boolean(), "{report:?}");
        let numeric =
            ["loss_first", "loss_last", "metric", "target", "grad_norm_max", "applied_norm_max", "flow_ratio"];
        for field in numeric.into_iter().chain(["ms_per_step"]) {
            assert!(report[field].is_f64(), "{field}: {report:?}");
        }
        let (case, fix) = if args.contains("vanishing") { ("vanishing", "omega") } else { ("healthy", "none") };
        assert_eq!((&report["case"], &report["fix"]), (&case.into(), &fix.into()));
    }
}

#[test]
fn quiet_prints_the_result_only() {
    let result = wgrad("rnn --length 20 --steps 3 --threads 1 --quiet").fine();
    assert_eq!(result.stdout.lines().count(), 1, "{result:#?}");
    assert!(result.stdout.contains("accuracy") && result.stdout.contains("after 3 steps"), "{result:#?}");
    // A cured run too: it is not shown beside the other.
    let result = wgrad("rnn --length 20 --steps 3 --threads 1 --quiet --case exploding --fix clip-norm").fine();
    assert_eq!(result.stdout.lines().count(), 1, "{result:#?}");
}

#[test]
fn a_run_ends_with_its_verdict_and_a_case_with_its_cure() {
    let result = wgrad("rnn --length 20 --steps 20 --threads 1 --case vanishing").fine();
    assert!(result.stdout.contains("\nverdict: vanishing\n"), "{result:#?}");
    assert!(result.stdout.trim_end().ends_with("--fix omega"), "{result:#?}");
    let cured = wgrad("rnn --length 20 --steps 20 --threads 1 --case exploding --fix clip-norm").fine();
    // Both runs side by side: two columns of numbers beside the time step.
    let rows = cured.stdout.lines().filter(|line| line.split_whitespace().count() == 3);
    let numeric = rows.filter(|line| line.split_whitespace().all(|cell| cell.parse::<f64>().is_ok()));
    assert_eq!(numeric.count(), 18, "two tables of nine rows: {cured:#?}");
}

#[test]
fn the_tour_reports_four_runs() {
    let tour = wgrad("--steps 20 --threads 1 --json").json();
    assert_eq!(tour.keys().collect::<Vec<_>>(), ["tour"]);
    let reports = tour["tour"].as_array().expect("a list");
    let runs: Vec<(&str, &str)> =
        reports.iter().map(|r| (r["case"].as_str().unwrap_or(""), r["fix"].as_str().unwrap_or(""))).collect();
    let wanted = [("exploding", "none"), ("exploding", "clip-norm"), ("vanishing", "none"), ("vanishing", "omega")];
    assert_eq!(runs, wanted);
    for report in reports {
        assert_eq!(report.as_object().expect("an object").len(), FIELDS.len(), "{report}");
        assert!(FIELDS.iter().all(|field| report.get(field).is_some()), "{report}");
    }
    assert_eq!(reports[0]["verdict"], "exploding");
    assert_eq!(reports[2]["verdict"], "vanishing");
    assert!(reports[1]["applied_norm_max"].as_f64().expect("a number") <= 1.001, "{}", reports[1]);
}

#[test]
fn the_tour_prints_its_tables() {
    let tour = wgrad("--steps 20 --threads 1").fine();
    for name in ["exploding ", "+ clip-norm ", "vanishing ", "+ omega "] {
        let row = tour.stdout.lines().find(|line| line.starts_with(name));
        assert!(row.is_some_and(|row| row.split_whitespace().any(|cell| cell == "20")), "{name}: {tour:#?}");
    }
    assert_eq!(tour.stdout.matches("Mean |dL/dz| per time step").count(), 2, "{tour:#?}");
    // The step, and a column for each run.
    let numeric = |line: &&str| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        cells.len() == 5 && cells.iter().all(|cell| cell.parse::<f64>().is_ok())
    };
    assert_eq!(tour.stdout.lines().filter(numeric).count(), 18, "{tour:#?}");
    assert!(tour.stdout.contains("wgrad tape rnn"), "{tour:#?}");
}

#[test]
fn the_quiet_tour_is_a_line_per_run() {
    let tour = wgrad("--steps 5 --threads 1 --quiet").fine();
    let starts = ["exploding none: ", "exploding clip-norm: ", "vanishing none: ", "vanishing omega: "];
    assert_eq!(tour.stdout.lines().count(), starts.len(), "{tour:#?}");
    for (line, start) in tour.stdout.lines().zip(starts) {
        assert!(line.starts_with(start), "{tour:#?}");
    }
}

/// As `wgrad tape rnn | head -1`: whoever reads may leave before the end. What is not read is not run for a long time.
#[test]
fn a_reader_that_leaves_is_no_error() {
    for args in [
        "tape rnn --dot",
        "rnn --length 20 --steps 3 --threads 1",
        "--threads 1 --steps 100000000",
        "bench w3 --threads 1 --budget 0",
    ] {
        // Nobody reads from the start: a run whose first line is still read does not notice before its next one.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = command(Path::new("."), args).stdout(writer).output().expect("the command starts");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args}");
        assert_eq!(output.status.code(), Some(0), "{args}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_the_run_is_saved_all_the_same() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let args = "rnn --length 20 --steps 3 --threads 1 --json --save run.st";
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device that is always full");
    let output = command(dir.path(), args).stdout(full).output().expect("the command starts");
    Outcome::new(args, output).fails(1, &["cannot write to standard output"]);
    saved(&dir.path().join("run.st"));
}
