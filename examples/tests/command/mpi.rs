//! Runs on ranks that are processes of MPI, under a real `mpirun` on this machine.

use crate::{Json, Outcome, command, numbers, saved, wait_until, wgrad_in};
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The longest time from the death of a rank to the end of all.
const AT_MOST: Duration = Duration::from_secs(10);

/// The number of moments at which a rank is killed, unless `WGRAD_KILLS` says how many.
const KILLS: u32 = 3;

/// A directory with a run file.
fn with(text: &str) -> TempDir {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("run.toml"), text).expect("can be written");
    dir
}

/// A small run that saves every now and then.
fn small(steps: usize) -> TempDir {
    with(&format!("model = \"mlp\"\nsteps = {steps}\nbatch = 8\n[mlp]\nwidth = 32\ndepth = 2\ndropout = 0.1\n"))
}

/// A run that never ends, and saves every 50 steps.
const ENDLESS: &str = "rnn --case vanishing --length 30 --steps 100000000 --save run.st";

/// `mpirun`, or this command, which starts it; allowed to start more ranks than there are cores, and as root.
fn allowed(mut command: Command) -> Command {
    for allowed in ["ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"] {
        command.env(format!("OMPI_{allowed}"), "1");
    }
    command
}

/// The worlds of `mpirun`, each a number of ranks and the arguments of the command on them.
fn mpirun(dir: &Path, worlds: &[(usize, &str)]) -> Command {
    let mut command = allowed(Command::new("mpirun"));
    for (i, (ranks, args)) in worlds.iter().enumerate() {
        command.args((i > 0).then_some(":")).args(["-n", &ranks.to_string(), env!("CARGO_BIN_EXE_wgrad")]);
        command.args(["--device", "cpu"]).args(args.split_whitespace()).args(["--threads", "1", "--ranks", "mpi"]);
    }
    // A directory of its own: Open MPI fails when one run removes what another is about to use.
    command.env("OMPI_MCA_orte_tmpdir_base", dir);
    command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn on_ranks(dir: &Path, ranks: usize, args: &str) -> Outcome {
    Outcome::new(args, mpirun(dir, &[(ranks, args)]).output().expect("mpirun starts"))
}

/// The processes that a process has started.
fn children(of: u32) -> Vec<u32> {
    let output = Command::new("pgrep").args(["-P", &of.to_string()]).output().expect("pgrep starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| line.trim().parse().expect("the number of a process")).collect()
}

fn signal(name: &str, process: u32) {
    // It fails if the process has ended meanwhile.
    Command::new("kill").args([name, &process.to_string()]).stderr(Stdio::null()).status().expect("kill starts");
}

/// Waits for the end of a process.
fn ended(args: &str, child: Child) -> Outcome {
    Outcome::new(args, child.wait_with_output().expect("it ends"))
}

#[test]
fn processes_have_the_bits_of_threads() {
    for ranks in [1, 2, 3] {
        let dir = small(8);
        let run = "train run.toml --json";
        let threads = format!("{run} --threads 1 --ranks threads:{ranks} --save threads.st");
        let threads = wgrad_in(dir.path(), &threads).json();
        let threads_saved = saved(&dir.path().join("threads.st"));
        for more in ["", "--overlap", "--shard", "--overlap --shard"] {
            let processes = on_ranks(dir.path(), ranks, &format!("{run} --save processes.st {more}")).json();
            assert_eq!(numbers(threads.clone()), numbers(processes), "{ranks} ranks {more}");
            assert!(threads_saved == saved(&dir.path().join("processes.st")), "{ranks} ranks {more}");
        }
    }
}

#[test]
fn a_wrong_world_is_refused_by_name_before_the_first_update() {
    let dir = small(8);
    let text = fs::read_to_string(dir.path().join("run.toml")).expect("it is there");
    for (name, change) in [
        ("rate.toml", text.clone() + "[optimizer]\nlr = 0.5\n"),
        ("width.toml", text.replace("width = 32", "width = 33")),
        ("depth.toml", text.replace("depth = 2", "depth = 3")),
    ] {
        fs::write(dir.path().join(name), change).expect("can be written");
    }
    for (other, holds) in [
        ("train run.toml --seed 9", "rank 1 has other values of parameters than rank 0"),
        ("train rate.toml", "rank 1 runs another program than rank 0"),
        ("train width.toml", "rank 1 declares other parameters than rank 0"),
        ("train depth.toml", "rank 1 declares other parameters than rank 0"),
        ("train run.toml --patience 7", "rank 1 has another patience than rank 0"),
    ] {
        let worlds = [(1, "train run.toml --save run.st"), (1, other)];
        let outcome = Outcome::new(other, mpirun(dir.path(), &worlds).output().expect("mpirun starts"));
        assert!(outcome.status == Some(1) && outcome.stderr.contains(holds), "{outcome:#?}");
        assert!(!dir.path().join("run.st").exists(), "nothing was trained: {outcome:#?}");
    }
}

#[test]
fn a_rank_that_fails_ends_all() {
    let dir = small(8);
    let outcome = on_ranks(dir.path(), 3, "train run.toml --resume missing.st");
    assert!(outcome.status == Some(1) && outcome.stderr.contains("cannot read missing.st"), "{outcome:#?}");
    // The first rank alone writes, so it alone has this error.
    let outcome = on_ranks(dir.path(), 3, "train run.toml --save nowhere/run.st");
    assert!(outcome.status == Some(1) && outcome.stderr.contains("rank 0: "), "{outcome:#?}");
    assert!(outcome.stderr.contains("cannot write nowhere/run.st"), "{outcome:#?}");
}

/// A rank that does not answer, such as one on a machine that hangs.
#[test]
fn a_rank_that_hangs_is_lost() {
    let dir = TempDir::new().expect("a directory");
    let args = &format!("{ENDLESS} --patience 2");
    let child = mpirun(dir.path(), &[(3, args)]).spawn().expect("mpirun starts");
    wait_until("the run has saved", || dir.path().join("run.st").exists());
    let rank = *children(child.id()).last().expect("it has started ranks");
    let start = Instant::now();
    signal("-STOP", rank);
    let outcome = ended(args, child);
    assert!(outcome.status == Some(3) && start.elapsed() < AT_MOST, "{:?}: {outcome:#?}", start.elapsed());
    assert!(outcome.stderr.contains("has left: the others cannot go on without it"), "{outcome:#?}");
    saved(&dir.path().join("run.st"));
}

/// At moments all over the run, so also while it starts and while it saves. It then goes on from its checkpoint, with the
/// bits of a run that nothing has happened to. `wgrad launch` starts it, as `mpirun` alone may not end when a rank is
/// killed while it connects.
#[test]
fn a_rank_that_is_killed_ends_all_and_the_run_can_go_on() {
    let kills = std::env::var("WGRAD_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number"));
    let dir = small(600);
    let (path, whole) = (dir.path().join("run.st"), dir.path().join("whole.st"));
    let run = "train run.toml --json --save";
    let launch = |args: &str| {
        let args = format!("launch -n 2 --restarts 0 -- {args} --threads 1");
        (allowed(command(dir.path(), &args)), args)
    };
    let start = Instant::now();
    let report: Json = on_ranks(dir.path(), 2, &format!("{run} whole.st")).json();
    let (whole, takes) = (saved(&whole), start.elapsed());
    let (mut saves, mut killed, mut longest) = (0, 0, Duration::ZERO);
    for kill in 0..kills {
        drop(fs::remove_file(&path));
        let (mut first, args) = launch(&format!("{run} run.st"));
        let mut child = first.spawn().expect("the command starts");
        // All over the run, and every other time after a save.
        if kill % 2 == 1 {
            wait_until("it has saved, or has ended", || {
                path.exists() || child.try_wait().expect("it can be waited for").is_some()
            });
            std::thread::sleep(takes * kill / kills / 8);
        } else {
            std::thread::sleep(takes * kill / kills);
        }
        let mut ranks = vec![];
        wait_until("both ranks have started, or the run has ended", || {
            ranks = children(child.id()).first().map_or(vec![], |mpirun| children(*mpirun));
            ranks.len() == 2 || child.try_wait().expect("it can be waited for").is_some()
        });
        let start = Instant::now();
        ranks.get(kill as usize % 2).into_iter().for_each(|rank| signal("-KILL", *rank));
        let outcome = ended(&args, child);
        longest = longest.max(start.elapsed());
        assert!(start.elapsed() < AT_MOST, "{:?}: {outcome:#?}", start.elapsed());
        if outcome.status == Some(0) {
            // It was faster than the first run, and had ended before.
            assert!(saved(&path) == whole, "kill {kill}: other bits");
            continue;
        }
        assert!(outcome.status == Some(3) && outcome.stderr.contains("not started again"), "kill {kill}: {outcome:#?}");
        killed += 1;
        let resume = if path.exists() {
            saved(&path);
            saves += 1;
            "--resume run.st"
        } else {
            ""
        };
        let (mut again, args) = launch(&format!("{run} run.st {resume}"));
        let again = Outcome::new(&args, again.output().expect("the command starts")).json();
        assert_eq!(numbers(again), numbers(report.clone()), "kill {kill}");
        assert!(saved(&path) == whole, "kill {kill}: other bits");
    }
    assert!(saves > 0, "no run has saved before");
    assert!(killed > kills / 2, "{killed} of {kills} runs were there to be killed");
    println!("{killed} of {kills} killed, {saves} after a save; all had ended within {longest:?}");
}

#[test]
fn a_launch_goes_on_with_the_ranks_that_are_left() {
    let dir = TempDir::new().expect("a directory");
    let args = &format!("launch -n 3 -- {ENDLESS} --threads 1 --json");
    let mut launch = allowed(command(dir.path(), args));
    let child = launch.spawn().expect("the command starts");
    let path = dir.path().join("run.st");
    wait_until("the run has saved", || path.exists());
    let ranks = || children(child.id()).first().map_or(vec![], |mpirun| children(*mpirun));
    signal("-KILL", *ranks().last().expect("mpirun has started ranks"));
    wait_until("it has started again", || ranks().len() == 2);
    let before = fs::metadata(&path).and_then(|file| file.modified()).expect("it is there");
    wait_until("it has saved again", || {
        fs::metadata(&path).is_ok_and(|file| file.modified().is_ok_and(|at| at > before))
    });
    signal("-INT", child.id());
    let outcome = ended(args, child);
    let told = "signal 9 ended a rank: starting again from run.st with the ranks that are left, 2 (restart 1 of 3)";
    assert!(outcome.stderr.contains(told), "{outcome:#?}");
    saved(&path);
}

#[test]
fn without_a_launcher_the_way_to_start_is_told() {
    let dir = small(8);
    wgrad_in(dir.path(), "train run.toml --ranks mpi").fails(1, &["MPI does not start", "mpirun -n"]);
}
