//! `wgrad launch`, with a script in place of mpirun: when a run is started again, and how.

use crate::{Outcome, interrupts::interrupted, wgrad, wgrad_in};
use std::{fs, path::Path};
use tempfile::TempDir;

const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/fake_mpirun.sh");

/// A directory in which the starts of the script end so.
fn ending(ends: &str) -> TempDir {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("ends"), ends.replace(' ', "\n")).expect("can be written");
    dir
}

fn launch(dir: &Path, args: &str) -> Outcome {
    wgrad_in(dir, &format!("launch --mpirun {FAKE} {args}"))
}

/// The arguments of each start, after those that name this program.
fn starts(dir: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(dir.join("starts")).expect("it was started");
    let exe = env!("CARGO_BIN_EXE_wgrad");
    let split = |line: &str| line.split_once(exe).map(|(own, run)| (own.trim().to_string(), run.trim().to_string()));
    text.lines().map(|line| split(line).expect("the arguments name this program")).collect()
}

#[track_caller]
fn assert_starts(dir: &Path, want: &[(&str, &str)]) {
    let own = |(ranks, run): &(&str, &str)| (ranks.to_string(), format!("--device cpu {run} --ranks mpi"));
    assert_eq!(starts(dir), want.iter().map(own).collect::<Vec<_>>());
}

#[test]
fn a_run_is_started_as_asked_and_its_status_is_that_of_the_command() {
    for status in ["0", "1", "2", "101", "143"] {
        let dir = ending(status);
        let outcome = launch(dir.path(), "-n 4 --mpi-arg=--hostfile --mpi-arg hosts -- train run.toml --seed 3");
        assert_eq!((outcome.status, outcome.stderr.as_str()), (status.parse().ok(), ""), "{outcome:#?}");
        assert_starts(dir.path(), &[("-n 4 --hostfile hosts", "train run.toml --seed 3")]);
    }
}

#[test]
fn a_run_that_loses_ranks_is_started_again_with_those_that_are_left() {
    let dir = ending("3 137 0");
    let outcome = launch(dir.path(), "-n 4 -- train run.toml --save run.st");
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    let run = "train run.toml --save run.st";
    assert_starts(dir.path(), &[("-n 4", run), ("-n 3", run), ("-n 2", run)]);
    let told: Vec<&str> = outcome.stderr.lines().collect();
    let [first, second] = told[..] else { panic!("{outcome:#?}") };
    assert!(
        first.contains("a rank was lost: starting again from the beginning") && first.contains("3 (restart 1 of 3)")
    );
    assert!(second.contains("signal 9 ended a rank") && second.contains("2 (restart 2 of 3)"), "{second}");
}

/// As Open MPI 4 does it when a rank dies while it connects.
#[cfg(target_os = "linux")]
#[test]
fn an_mpirun_that_does_not_answer_is_killed_and_started_again() {
    let dir = ending("stuck 0");
    let outcome = launch(dir.path(), "-n 3 -- train run.toml");
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    assert_starts(dir.path(), &[("-n 3", "train run.toml"), ("-n 2", "train run.toml")]);
    assert!(outcome.stderr.contains("mpirun did not answer after all its ranks had ended"), "{outcome:#?}");
}

#[test]
fn it_goes_on_from_its_own_checkpoint_alone() {
    let dir = ending("3 0");
    fs::write(dir.path().join("run.st"), "of an earlier run").expect("can be written");
    let run = "train run.toml --save run.st --resume first.st";
    let outcome = launch(dir.path(), &format!("-n 2 -- {run}"));
    assert!(outcome.stderr.contains("from the beginning"), "{outcome:#?}");
    assert_starts(dir.path(), &[("-n 2", run), ("-n 1", run)]);
    let dir = ending("3 0");
    fs::write(dir.path().join("saves"), "").expect("can be written");
    let outcome = launch(dir.path(), &format!("-n 2 -- {run} --report page"));
    assert!(outcome.status == Some(0) && outcome.stderr.contains("from run.st"), "{outcome:#?}");
    let again = "train run.toml --save run.st --resume run.st --report page-2";
    assert_starts(dir.path(), &[("-n 2", &format!("{run} --report page")), ("-n 1", again)]);
}

#[test]
fn it_gives_up_when_it_may_not_or_cannot_go_on() {
    for (args, ends, count, holds) in [
        ("-n 4 --restarts 1", "3 3", 2, "this was restart 1 of 1"),
        ("-n 4 --restarts 0", "3", 1, "--restarts 0"),
        ("-n 1", "3", 1, "no rank is left"),
    ] {
        let dir = ending(ends);
        let outcome = launch(dir.path(), &format!("{args} -- train run.toml"));
        assert_eq!((outcome.status, starts(dir.path()).len()), (Some(3), count), "{outcome:#?}");
        assert!(outcome.stderr.lines().last().is_some_and(|line| line.contains(holds)), "{outcome:#?}");
    }
}

#[test]
fn ctrl_c_is_passed_on_and_ends_it() {
    let dir = ending("wait 0");
    let waiting = dir.path().join("waiting");
    let args = format!("launch --mpirun {FAKE} -n 2 -- train run.toml");
    let outcome = interrupted(dir.path(), &args, || waiting.exists());
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(130), ""), "{outcome:#?}");
    assert_eq!(starts(dir.path()).len(), 1);
}

#[test]
fn what_cannot_be_started_is_told_in_one_sentence() {
    let train = "train run.toml";
    wgrad(&format!("launch --mpirun /nowhere/mpirun -n 2 -- {train}"))
        .fails(1, &["/nowhere/mpirun is not there", "openmpi-bin"]);
    for (run, holds) in [
        ("doctor", "only runs that train"),
        ("train run.toml --ranks threads:2", "--ranks threads:2"),
        ("train run.toml --diagnose", "--diagnose"),
        ("transformer --sample 9", "--steps"),
        ("train --print-defaults mlp", "--print-defaults"),
    ] {
        wgrad(&format!("launch --mpirun {FAKE} -n 2 -- {run}")).fails(2, &[holds]);
    }
    for args in ["-n 0 -- train run.toml", "-- train run.toml", "-n 2", "-n 2 -- train run.toml --no-such-flag"] {
        let outcome = wgrad(&format!("launch --mpirun {FAKE} {args}"));
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(2), ""), "{outcome:#?}");
    }
}
