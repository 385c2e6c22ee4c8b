//! Ctrl-C: the run stops at the next step, saves, reports, and can be gone on with.

use crate::{Json, Outcome, command, numbers, saved, wait_until, wgrad_in};
use std::{
    path::Path,
    process::{Child, Command},
};
use tempfile::TempDir;

/// A run that does not end by itself: it never solves its task, and has more steps than a test has time.
const ENDLESS: &str = "rnn --case vanishing --length 30 --threads 1";
const STEPS: &str = "--steps 100000000";

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill starts");
    assert!(status.success());
}

/// Starts a run, waits until it is under way, interrupts it, and waits for its end.
pub fn interrupted(dir: &Path, args: &str, mut under_way: impl FnMut() -> bool) -> Outcome {
    let child = command(dir, args).spawn().expect("the command starts");
    wait_until("the run is under way", || under_way() && listens(&child));
    interrupt(&child);
    Outcome::new(args, child.wait_with_output().expect("the command ends"))
}

/// Whether a process has asked for the signal, so that it does not just die of it.
fn listens(child: &Child) -> bool {
    if !cfg!(target_os = "linux") {
        std::thread::sleep(std::time::Duration::from_secs(1));
        return true;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("the process is there");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask of signals");
    u64::from_str_radix(caught.trim(), 16).expect("a number in hexadecimal") & 0b10 != 0
}

fn steps(report: &Json) -> u64 {
    report["steps"].as_u64().expect("a number")
}

#[test]
fn an_interrupted_run_saves_reports_and_resumes() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("run.st");
    let outcome = interrupted(dir.path(), &format!("{ENDLESS} {STEPS} --json --save run.st"), || path.exists());
    let report = outcome.json();
    assert!(steps(&report) >= 50, "{report:?}");
    assert_eq!(report["verdict"], "vanishing");
    // The file holds the very step at which the run stopped.
    let again = wgrad_in(dir.path(), &format!("{ENDLESS} --json --steps 1 --resume run.st")).json();
    assert_eq!(numbers(again), numbers(report.clone()));
    let steps = steps(&report) + 5;
    wgrad_in(dir.path(), &format!("{ENDLESS} --json --steps {steps} --resume run.st --save run.st")).json();
    wgrad_in(dir.path(), &format!("{ENDLESS} --json --steps {steps} --save whole.st")).json();
    assert_eq!(saved(&path), saved(&dir.path().join("whole.st")));
}

#[test]
fn an_interrupted_run_says_how_to_go_on() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("run.st");
    let outcome = interrupted(dir.path(), &format!("{ENDLESS} {STEPS} --save run.st"), || path.exists()).fine();
    let line = outcome.stdout.lines().find(|line| line.starts_with("Interrupted after ")).expect("a line");
    assert!(line.contains("--resume run.st"), "{outcome:#?}");
    assert!(outcome.stdout.contains("verdict: vanishing"), "{outcome:#?}");
}

#[test]
fn an_interrupted_run_without_a_file_says_that_nothing_is_saved() {
    let dir = TempDir::new().expect("a directory");
    let outcome = interrupted(dir.path(), &format!("{ENDLESS} {STEPS}"), || true).fine();
    let line = outcome.stdout.lines().find(|line| line.starts_with("Interrupted after ")).expect("a line");
    assert!(line.contains("nothing is saved") && line.contains("--save"), "{outcome:#?}");
    let report = interrupted(dir.path(), &format!("{ENDLESS} {STEPS} --json"), || true).json();
    assert!(steps(&report) >= 1, "{report:?}");
}

#[test]
fn an_interrupted_tour_leaves_out_the_rest() {
    let dir = TempDir::new().expect("a directory");
    let tour = interrupted(dir.path(), &format!("--threads 1 {STEPS} --json"), || true).json();
    assert_eq!(tour["tour"].as_array().expect("a list").len(), 1, "{tour:?}");
    let tour = interrupted(dir.path(), &format!("--threads 1 {STEPS}"), || true).fine();
    assert!(tour.stdout.contains("Interrupted: the rest of the tour is left out"), "{tour:#?}");
}

/// What is half measured is no result.
#[test]
fn an_interrupted_benchmark_leaves_out_what_has_not_ended() {
    let dir = TempDir::new().expect("a directory");
    let outcome = interrupted(dir.path(), "bench w4 w3 --threads 1 --budget 1000 --json", || true).fine();
    assert_eq!(outcome.stdout, "", "{outcome:#?}");
    let outcome = interrupted(dir.path(), "bench w7 --threads 1 --budget 1000", || true).fine();
    assert_eq!(outcome.stdout, "Interrupted: unfinished results are left out\n", "{outcome:#?}");
}
