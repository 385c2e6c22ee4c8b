//! The random numbers of a rank.

use super::Share;
use crate::Result;
use wgrad::{Array, DType, Session, StateId, random::threefry2x32};

/// The end of the name of a generator's key.
const KEY: &str = "/key";

/// The end of the name of the key of gradient noise, which is the same on all ranks.
const NOISE: &str = "/noise/key";

/// Gives a rank random numbers of its own, such as those of dropout. The session has the keys of rank 0, as they are
/// declared or loaded from a checkpoint. The key of another rank is rank 0's, scrambled with the rank's number. Counters
/// stay, so a checkpoint goes on with any number of ranks.
///
/// # Errors
/// If the device fails.
pub(crate) fn own_streams(session: &mut Session, share: Share) -> Result<()> {
    if share.rank == 0 {
        return Ok(());
    }
    let layout = session.layout().clone();
    let is_key = |name: &str| name.ends_with(KEY) && !name.ends_with(NOISE);
    let keys: Vec<StateId> = layout
        .states()
        .filter(|(_, decl)| decl.dtype == DType::U32 && decl.shape[..] == [2] && is_key(&decl.name))
        .map(|(id, _)| id)
        .collect();
    for key in keys {
        let first = session.read(key)?;
        let words = [0, 1].map(|word| first.item(word) as u32);
        session.write(key, &Array::new([2], threefry2x32(words, [share.rank as u32, 0]).to_vec()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgrad::{Rng, Store};
    use wgrad_cpu::CpuBackend;

    /// The keys of dropout, of noise, and the counter of dropout.
    fn keys(rank: usize, seed: u64) -> [Vec<f64>; 3] {
        let mut store = Store::new();
        Rng::new(&mut store, "dropout", seed);
        Rng::new(&mut store, "trainer/noise", seed);
        let mut session = Session::new(Box::new(CpuBackend::new(1).expect("threads")), store).expect("room");
        own_streams(&mut session, Share { rank, ranks: 3 }).expect("the CPU works");
        let layout = session.layout().clone();
        ["dropout/key", "trainer/noise/key", "dropout/counter"].map(|name| {
            let (id, _) = layout.states().find(|(_, decl)| decl.name == name).expect("declared");
            session.read(id).expect("the CPU works").to_f64()
        })
    }

    #[test]
    fn each_rank_has_dropout_of_its_own_and_the_noise_of_all() {
        let [first, noise, counter] = keys(0, 7);
        assert_eq!(first, [7.0, 0.0], "rank 0 has the seed's");
        let own: Vec<Vec<f64>> = (1..3).map(|rank| keys(rank, 7)[0].clone()).collect();
        assert!(own[0] != own[1] && !own.contains(&first), "{own:?}");
        for rank in 1..3 {
            assert_eq!(keys(rank, 7), [own[rank - 1].clone(), noise.clone(), counter.clone()]);
            assert_ne!(keys(rank, 8)[0], own[rank - 1], "another seed");
        }
    }
}
