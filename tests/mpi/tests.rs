//! Ranks that are processes of MPI, on one machine: the suite of `suite.rs` with 2, 3 and 4 of them.

use std::{
    fs::File,
    io::Read,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// The longest that a world may take.
const LONGEST: Duration = Duration::from_secs(120);

/// The end of a world.
#[derive(Debug)]
struct Ended {
    status: Option<i32>,
    stdout: String,
    stderr: String,
    took: Duration,
}

/// Starts a world of this many ranks, and waits for its end.
fn world(ranks: usize, mode: &str) -> Ended {
    let dir = tempfile::TempDir::new().expect("a directory");
    let [out, err] = ["out", "err"].map(|name| dir.path().join(name));
    let file = |path| Stdio::from(File::create(path).expect("can be written"));
    let start = Instant::now();
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string(), env!("CARGO_BIN_EXE_mpi_suite"), mode]);
    // Open MPI refuses more ranks than cores, and to be started by root, unless it is told that both are meant.
    for allowed in ["ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"] {
        command.env(format!("OMPI_{allowed}"), "1");
    }
    // A directory of its own: Open MPI fails when one run removes what another is about to use.
    command.env("OMPI_MCA_orte_tmpdir_base", dir.path());
    let mut child = command.stdin(Stdio::null()).stdout(file(&out)).stderr(file(&err)).spawn().expect("mpirun starts");
    let status = loop {
        match child.try_wait().expect("it can be waited for") {
            Some(status) => break status.code(),
            None if start.elapsed() > LONGEST => {
                child.kill().expect("it can be killed");
                break child.wait().expect("it has been killed").code();
            }
            None => sleep(Duration::from_millis(10)),
        }
    };
    let text = |path| {
        let mut bytes = vec![];
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ended { status, stdout: text(out), stderr: text(err), took: start.elapsed() }
}

/// Asserts that worlds of 2, 3 and 4 ranks end well, and that rank 0 has told of this many tests.
#[track_caller]
fn passes(mode: &str, tests: usize) {
    for ranks in 2..=4 {
        let ended = world(ranks, mode);
        assert_eq!(ended.status, Some(0), "{ranks} ranks: {ended:#?}");
        assert_eq!(ended.stdout.matches(" ... ok\n").count(), tests, "{ranks} ranks: {ended:#?}");
    }
}

/// Asserts that worlds whose last rank stays away end with the error of a lost rank, on the first rank too.
#[track_caller]
fn loses(mode: &str) {
    for ranks in 2..=4 {
        let ended = world(ranks, mode);
        assert_eq!(ended.status, Some(3), "{ranks} ranks: {ended:#?}");
        let told = format!("rank {} has left", ranks - 1);
        assert!(ended.stderr.contains(&told) && !ended.stderr.contains("panicked"), "{ranks} ranks: {ended:#?}");
    }
}

#[test]
fn every_exchange_has_the_bits_of_threads() {
    passes("exchange", 9);
}

#[test]
fn a_rank_that_leaves_is_an_error_of_the_others_at_once() {
    passes("left", 1);
}

#[test]
fn ranks_may_leave_directly_after_an_exchange_in_pieces() {
    passes("pieces", 1);
}

#[test]
fn ranks_of_another_patience_do_not_connect() {
    passes("patience", 1);
}

#[test]
fn a_rank_that_is_silent_is_lost() {
    loses("silent");
}

#[test]
fn a_rank_that_is_late_is_lost() {
    loses("late");
}

/// `mpirun` itself ends the others.
#[test]
fn a_rank_that_is_killed_ends_all() {
    for ranks in 2..=4 {
        let ended = world(ranks, "killed");
        assert!(ended.status != Some(0) && ended.took < Duration::from_secs(10), "{ranks} ranks: {ended:#?}");
    }
}

#[test]
fn a_process_that_no_launcher_has_started_is_told_so() {
    let output = Command::new(env!("CARGO_BIN_EXE_mpi_suite")).env_remove("OMPI_COMM_WORLD_RANK").output();
    let output = output.expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("NotStarted"), "{told}");
}
