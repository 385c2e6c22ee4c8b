//! The command on each rank.

use super::{Rank, Ranks, RanksArgs};
use crate::{Error, Result, cli::Common};
use std::{panic, thread};
use wgrad::{Collective, InProcess};

/// The stack of a rank's thread, in bytes: as much as that of the main thread.
const STACK: usize = 8 << 20;

/// Runs the command as the ranks that are asked for: as all of them, if they are threads of this process. `run` gets the
/// options with the rank. Of threads that fail, those are told of that are to blame.
///
/// Beside the result comes the rank of MPI, to be kept until an error has been told: when all ranks have left, the first
/// to end has the launcher end the others.
///
/// # Errors
/// The errors of `run`, each with its rank. [`Error::Usage`] if MPI is asked for and not built in; [`Error::Mpi`] if it
/// does not start.
pub fn each(
    asked: &RanksArgs,
    common: &Common,
    run: &(dyn Fn(&Common) -> Result<u8> + Sync),
) -> (std::result::Result<u8, Vec<Error>>, Option<Rank>) {
    let mut kept = None;
    let done = match asked.ranks {
        Some(Ranks::Threads(_)) if asked.overlap => {
            Err(vec![Error::Usage("--overlap is for ranks of MPI: threads have no network between them".into())])
        }
        None => run(common).map_err(|error| vec![error]),
        Some(Ranks::Mpi) => {
            let done = connected(asked).and_then(|engine| {
                let rank = kept.insert(Rank::new(engine, asked.shard));
                as_rank(rank.clone(), common, run)
            });
            done.map_err(|error| vec![error])
        }
        Some(Ranks::Threads(number)) => in_threads(number.get(), asked.shard, common, run),
    };
    (done, kept)
}

/// The connection to the other processes that `mpirun` has started.
#[cfg(feature = "mpi")]
fn connected(asked: &RanksArgs) -> Result<Box<dyn Collective>> {
    let world = wgrad_mpi::World::connect(asked.patience).map_err(|error| Error::Mpi(Box::new(error)))?;
    Ok(Box::new(world.overlapping(asked.overlap)))
}

#[cfg(not(feature = "mpi"))]
fn connected(_asked: &RanksArgs) -> Result<Box<dyn Collective>> {
    Err(Error::Usage(
        "--ranks mpi: this command is built without MPI; build it with: cargo build --release --features mpi".into(),
    ))
}

/// Runs the command as one rank. If it fails, so do the others.
fn as_rank(rank: Rank, common: &Common, run: &dyn Fn(&Common) -> Result<u8>) -> Result<u8> {
    let common = Common { rank: rank.clone(), ..common.clone() };
    run(&common).map_err(|error| {
        rank.fail();
        rank.named(error)
    })
}

/// Runs the command as this many threads. Rank 0 is the calling thread.
fn in_threads(
    number: usize,
    shards: bool,
    common: &Common,
    run: &(dyn Fn(&Common) -> Result<u8> + Sync),
) -> std::result::Result<u8, Vec<Error>> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let own = u16::try_from((cores / number).max(1)).unwrap_or(u16::MAX);
    let common = &Common { threads: if common.threads == 0 { own } else { common.threads }, ..common.clone() };
    let mut world = InProcess::world(number).into_iter().map(|engine| Rank::new(Box::new(engine), shards));
    let first = world.next().expect("a world has at least one rank");
    let results: Vec<Result<u8>> = thread::scope(|scope| {
        let start = |rank| {
            let builder = thread::Builder::new().stack_size(STACK);
            builder.spawn_scoped(scope, move || as_rank(rank, common, run))
        };
        let others: Vec<_> = world.map(start).collect();
        let first = as_rank(first, common, run);
        let ended = others.into_iter().map(|other| match other.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => panic::resume_unwind(panic),
            Err(error) => Err(Error::Thread(error)),
        });
        std::iter::once(first).chain(ended).collect()
    });
    let (mut done, mut errors) = (0, vec![]);
    for result in results.into_iter().rev() {
        match result {
            Ok(status) => done = status,
            Err(error) => errors.insert(0, error),
        }
    }
    if errors.is_empty() { Ok(done) } else { Err(causes(errors)) }
}

/// The errors without those that only tell of another rank's, if there are others; and each cause once.
fn causes(errors: Vec<Error>) -> Vec<Error> {
    let all_follow = errors.iter().all(Error::is_of_another_rank);
    let mut causes: Vec<Error> = vec![];
    for error in errors.into_iter().filter(|error| all_follow || !error.is_of_another_rank()) {
        if causes.iter().all(|known| known.without_rank().to_string() != error.without_rank().to_string()) {
            causes.push(error);
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgrad::{Session, Store};
    use wgrad_cpu::CpuBackend;

    fn asked(ranks: &str) -> RanksArgs {
        RanksArgs { ranks: Some(ranks.parse().expect("ranks")), ..RanksArgs::default() }
    }

    fn common() -> Common {
        use clap::Parser;
        crate::cli::Cli::parse_from(["wgrad"]).common
    }

    /// An exchange of all ranks.
    fn meet(common: &Common) -> Result<()> {
        let session = Session::new(Box::new(CpuBackend::new(1)?), Store::new())?;
        Ok(common.rank.join(session).check_replicas()?)
    }

    fn told(errors: Vec<Error>) -> Vec<(u8, String)> {
        errors.into_iter().map(|error| (error.status(), error.to_string())).collect()
    }

    #[test]
    fn all_ranks_run_and_the_first_gives_the_status() {
        for (ranks, number) in [("threads:1", 1), ("threads:3", 3)] {
            let (done, _) = each(&asked(ranks), &common(), &|common| {
                assert_eq!(common.rank.share().ranks, number);
                assert!(common.threads > 0, "the cores are shared");
                meet(common)?;
                Ok(10 + common.rank.share().rank as u8)
            });
            assert_eq!(done.map_err(told), Ok(10));
        }
    }

    #[test]
    fn a_rank_that_fails_is_named_and_the_others_end() {
        for failing in 0..3 {
            let (fails, _) = each(&asked("threads:3"), &common(), &|common| {
                if common.rank.share().rank == failing {
                    return Err(Error::Metrics { path: "m.jsonl".into(), why: "the disk is full".into() });
                }
                let error = meet(common).expect_err("one does not come");
                assert!(error.to_string().contains(&format!("failed on rank {failing}")), "{error}");
                assert_eq!(error.status(), 1, "a rank that says that it has failed is not lost");
                Err(error)
            });
            let want = format!("rank {failing}: m.jsonl: the disk is full");
            assert_eq!(fails.map_err(told), Err(vec![(1, want)]));
        }
    }

    #[test]
    fn an_error_of_all_is_told_of_once() {
        let (fails, _) = each(&asked("threads:3"), &common(), &|_| Err(Error::Usage("no such flag".into())));
        assert_eq!(fails.map_err(told), Err(vec![(2, "rank 0: no such flag".into())]));
        let (fails, _) = each(&asked("threads:1"), &common(), &|_| Err(Error::Usage("no such flag".into())));
        assert_eq!(fails.map_err(told), Err(vec![(2, "no such flag".into())]));
    }

    #[test]
    fn a_rank_that_leaves_without_a_word_is_lost() {
        let (fails, _) = each(&asked("threads:2"), &common(), &|common| match common.rank.is_first() {
            true => meet(common).map(|()| 0),
            false => Ok(0),
        });
        let (status, text) = told(fails.expect_err("rank 1 has left")).remove(0);
        assert_eq!(status, 3, "{text}");
        assert!(text.starts_with("rank 0: rank 1 has left"), "{text}");
    }

    #[cfg(not(feature = "mpi"))]
    #[test]
    fn without_mpi_the_way_to_build_it_is_told() {
        let (status, text) = told(each(&asked("mpi"), &common(), &|_| Ok(0)).0.expect_err("it is not there")).remove(0);
        assert!(status == 2 && text.contains("cargo build --release --features mpi"), "{text}");
    }
}
