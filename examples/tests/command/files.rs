//! Saving and resuming: a run in two halves is the run in one, and a file is whole at any time.

use crate::{command, names, numbers, saved, wait_until, wgrad_in};
use std::fs;
use tempfile::TempDir;

#[test]
fn a_run_in_two_halves_is_the_run_in_one() {
    // Plain descent and Adam, whose moments and step count are to survive; the second half also on other threads.
    for args in [
        "--case vanishing",
        "--case exploding",
        "--cell lstm --accumulate 4",
        "--task adding --cell gru --precision f16",
    ] {
        let dir = TempDir::new().expect("a directory");
        let run = |more: &str| {
            numbers(wgrad_in(dir.path(), &format!("rnn {args} --length 20 --seed 2 --json {more}")).json())
        };
        let whole = run("--threads 1 --steps 60 --save whole.st");
        let half = run("--threads 1 --steps 25 --save half.st");
        assert_eq!((&whole["steps"], &half["steps"]), (&60.into(), &25.into()), "{args}");
        let second = run("--threads 2 --steps 60 --resume half.st --save second.st");
        assert_eq!(second, whole, "{args}");
        let (whole, second, half) =
            ["whole.st", "second.st", "half.st"].map(|name| saved(&dir.path().join(name))).into();
        assert_eq!(second, whole, "{args}");
        assert_ne!(second.tensors, half.tensors, "{args}: training changes the parameters");
        assert_eq!(names(dir.path()), ["half.st", "second.st", "whole.st"], "{args}");
    }
}

#[test]
fn saving_over_the_file_that_is_resumed_goes_on_with_it() {
    let dir = TempDir::new().expect("a directory");
    let run = |more: &str| {
        numbers(wgrad_in(dir.path(), &format!("rnn --case vanishing --length 20 --threads 1 --json {more}")).json())
    };
    let whole = run("--steps 30");
    for steps in [10, 20, 30] {
        let resume = if steps == 10 { "" } else { "--resume run.st" };
        let report = run(&format!("--steps {steps} --save run.st {resume}"));
        assert_eq!(report["steps"], steps);
        assert_eq!(report == whole, steps == 30);
    }
}

#[test]
fn a_run_that_has_all_its_steps_is_judged_again() {
    let dir = TempDir::new().expect("a directory");
    let run = |more: &str| wgrad_in(dir.path(), &format!("rnn --length 20 --threads 1 --json {more}")).json();
    let first = run("--steps 10 --save run.st");
    for steps in [10, 3] {
        let again = run(&format!("--steps {steps} --resume run.st"));
        assert!(again["ms_per_step"].is_null(), "no step was made: {again:?}");
        assert_eq!(numbers(again), numbers(first.clone()));
    }
}

/// A run that is killed at any time leaves the file as one of its saves wrote it.
#[test]
fn a_killed_run_leaves_a_whole_file_that_resumes() {
    kill_and_go_on("rnn --case vanishing --length 20 --threads 1", 6);
}

/// Kills a run that is evaluated every 50 steps so many times; each time the file must be whole, and go on as one of an
/// undisturbed run.
#[track_caller]
pub fn kill_and_go_on(args: &str, kills: u64) {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("run.st");
    let flags = format!("{args} --json --save run.st");
    let mut steps = 0;
    for kill in 0..kills {
        let resume = if kill == 0 { "" } else { "--resume run.st" };
        let before = fs::read(&path).ok();
        let mut child = command(dir.path(), &format!("{flags} --steps 1000000 {resume}")).spawn().expect("starts");
        wait_until("the run has saved", || fs::read(&path).ok().is_some_and(|now| Some(now) != before));
        // Another moment each time, so that the kill may fall into a save as well as between two.
        std::thread::sleep(std::time::Duration::from_millis(7 * kill));
        child.kill().expect("the run is still there");
        child.wait().expect("the run ends");
        saved(&path);
        let made = wgrad_in(dir.path(), &format!("{args} --json --steps 1 --resume run.st")).json();
        let made = made["steps"].as_u64().expect("a number");
        assert!(made > steps, "kill {kill}: {made} steps after {steps}");
        assert_eq!(made % 50, 0, "a run is saved when it is evaluated");
        steps = made;
    }
    // And what it holds is what an undisturbed run has come to.
    let steps = steps + 5;
    wgrad_in(dir.path(), &format!("{flags} --steps {steps} --resume run.st")).json();
    let killed = saved(&path);
    fs::remove_file(&path).expect("can be removed");
    wgrad_in(dir.path(), &format!("{flags} --steps {steps}")).json();
    assert_eq!(saved(&path), killed);
}
