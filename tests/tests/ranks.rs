//! Ranks over several updates: their losses, and the pieces of gradients that travel early.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use wgrad::{
    ALIGN, Array, Collective, DType, InProcess, Optimizer, Param, Store,
    collective::{Early, Exchange, Stamp, Way},
    plan::Grouping,
};
use wgrad_nn::optim::{AdamW, AdamWConfig, Sgd, SgdConfig};
use wgrad_tests::{Machine, Mlp, same_bits};

/// The result of each rank, each on a thread of its own.
fn world<R: Send>(ranks: usize, f: impl Fn(InProcess) -> R + Sync) -> Vec<R> {
    let f = &f;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = InProcess::world(ranks).into_iter().map(|rank| scope.spawn(move || f(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

/// The losses of a hundred updates, of all ranks.
fn losses(rank: InProcess, dtype: DType, shards: bool) -> Vec<f64> {
    const ROWS: usize = 7;
    let (r, n) = (rank.rank(), rank.ranks());
    let rows = ROWS * r / n..ROWS * (r + 1) / n;
    let mut store = Store::new();
    if shards {
        store.shard(n);
    }
    let model = Mlp::new(&mut store, dtype);
    let adam = AdamW::new(&mut store, &model.params(), AdamWConfig { lr: 0.01.into(), ..AdamWConfig::default() });
    let mut cpu = Machine::poisoned(1, store).as_rank(rank);
    let step = cpu.session.record(|t| {
        let (x, y) = model.inputs(t);
        let [x, y] = [x, y].map(|all| all.slice(0, rows.start, rows.len()));
        let loss = model.loss_of(t, x, y) * (rows.len() * n) as f64 / ROWS as f64;
        t.tap("loss", loss.sum_over_ranks() / n as f64);
        adam.step(loss.grad(&model.params()).all_reduce().clip_by_global_norm(0.5));
    });
    let step = step.expect("compiles");
    let loss = |salt| cpu.run(&step, &model.batch(salt)).tap("loss").item(0);
    (0..100).map(loss).collect()
}

#[test]
fn losses_agree_after_a_hundred_updates() {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-12)] {
        let alone = world(1, |rank| losses(rank, dtype, false)).remove(0);
        assert!(alone[99] < alone[0], "it learns: {alone:?}");
        for (ranks, shards) in [(2, false), (2, true), (4, false), (4, true)] {
            for all in world(ranks, |rank| losses(rank, dtype, shards)) {
                let difference = all.iter().zip(&alone).map(|(a, b)| (a - b).abs() / b.abs());
                let largest = difference.fold(0.0, f64::max);
                assert!(largest <= tolerance, "{ranks} ranks in {dtype}: {largest:e}");
            }
        }
    }
}

/// A rank of threads that is told of pieces before the exchange, and compares them with it.
struct Told {
    rank: InProcess,
    early: Vec<Early>,
    /// The number of pieces so far, of all ranks.
    begun: Arc<AtomicUsize>,
}

impl Collective for Told {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn ranks(&self) -> usize {
        self.rank.ranks()
    }

    fn piece(&self, _: DType) -> Option<usize> {
        Some(PIECE)
    }

    fn begin(&mut self, early: Early) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.early.push(early);
    }

    fn exchange(&mut self, stamp: Stamp, parts: &mut [Exchange]) -> wgrad::Result<()> {
        for (i, Early { part, index, reduce, data }) in self.early.iter().enumerate() {
            let whole = &parts[*part as usize];
            let first = *index as usize * PIECE;
            assert_eq!(whole.way, Way::Reduce(*reduce));
            let whole = whole.data.slice(first..(first + PIECE).min(whole.data.len()));
            let [begun, whole] = [data.clone(), whole].map(|data| Array::new([data.len()], data));
            assert!(same_bits(&begun, &whole), "piece {index}");
            let again = self.early[..i].iter().any(|other| (other.part, other.index) == (*part, *index));
            assert!(!again, "a piece is told of once");
        }
        self.early.clear();
        self.rank.exchange(stamp, parts)
    }

    fn abort(&mut self) {
        self.early.clear();
        self.rank.abort();
    }
}

/// The elements of a piece here.
const PIECE: usize = 16;

/// Pieces that are told of while kernels run are those of the value that is then exchanged.
#[test]
fn pieces_are_begun_when_they_are_complete() {
    const WIDTH: usize = 24;
    for (threads, grouping) in [(1, None), (2, None), (1, Some(Grouping::none()))] {
        let begun = Arc::new(AtomicUsize::new(0));
        let told = |rank: InProcess| Told { rank, early: vec![], begun: begun.clone() };
        world(2, |rank| {
            let mut store = Store::new();
            let square = |salt: usize| {
                let value = |i: usize| ((i * 7 + salt) as f32).sin() * 0.2;
                Array::new([WIDTH, WIDTH], (0..WIDTH * WIDTH).map(value).collect::<Vec<_>>())
            };
            let weights: Vec<Param> = (0..6).map(|i| store.param(&format!("w{i}"), &square(i))).collect();
            let params = store.params();
            let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
            let mut cpu = Machine::poisoned(threads, store);
            if let Some(grouping) = &grouping {
                cpu = cpu.grouped(grouping);
            }
            let salt = rank.rank();
            let mut cpu = cpu.as_rank(told(rank));
            let step = cpu.session.record(|t| {
                let x = weights
                    .iter()
                    .fold(t.input("x", [WIDTH, WIDTH], DType::F32), |x, w| x.matmul_t(t.param(*w)).tanh());
                sgd.step((x * x).mean().grad(&params).all_reduce());
            });
            let step = step.expect("compiles");
            for i in 0..3 {
                cpu.run(&step, &[("x".into(), square(100 * salt + i))]);
            }
            cpu.session.check_replicas().expect("the ranks agree");
        });
        // Of six parameters, three runs, two ranks.
        let all = (WIDTH * WIDTH).next_multiple_of(ALIGN) / PIECE * 6 * 3 * 2;
        let begun = begun.load(Ordering::Relaxed);
        assert!(begun > all / 2 && begun <= all, "{begun} of {all} with {threads} threads");
    }
}
