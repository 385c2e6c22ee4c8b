//! The tests of a world of processes: `mpirun -n 3 suite [exchange|left|pieces|silent|late|patience|killed|time]`.
//!
//! Each rank computes what all of them must get, by [`InProcess`], and compares bits. `cargo xtask mpi` runs all but
//! `killed`, in which a rank dies, and `time`, which measures.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use wgrad::{
    Array, Collective, DType, Data, Error, InProcess, Optimizer, Session, Store,
    collective::{Difference, Early, Exchange, Stamp, Way, exchange, judge},
    f16,
    op::Reduce,
};
use wgrad_cpu::CpuBackend;
use wgrad_mpi::World;
use wgrad_nn::optim::{Sgd, SgdConfig};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(1);

type Test = fn(&mut World);

/// The tests in a world, in their order.
const TESTS: [(&str, Test); 8] = [
    ("every way has the bits of threads", ways),
    ("several values meet at once", several_values),
    ("ranks that differ have one error and go on", differing_ranks),
    ("values that do not fit are one error", misfits),
    ("a rank that fails is an error of the others, and all go on", failing_ranks),
    ("values in pieces have the bits of threads", pieces),
    ("pieces of an exchange that fails are forgotten", lost_pieces),
    ("exchanges follow each other", many_exchanges),
];

fn main() {
    let mode = std::env::args().nth(1).unwrap_or_else(|| "exchange".into());
    match mode.as_str() {
        "exchange" => all_exchanges(),
        "left" => a_rank_leaves(),
        "pieces" => ranks_leave_after_pieces(),
        "silent" => a_rank_is_silent(),
        "late" => a_rank_is_late(),
        "patience" => patience_differs(),
        "killed" => a_rank_dies(),
        "time" => time(),
        _ => panic!("no mode {mode:?}"),
    }
}

fn connected(patience: Duration) -> World {
    World::connect(patience).expect("all ranks are there")
}

/// Says on rank 0 that a test has passed here; the others have met this rank since.
fn passed(world: &World, test: &str) {
    if world.rank() == 0 {
        println!("test {test} ... ok");
    }
}

fn all_exchanges() {
    let mut world = connected(LONG).overlapping(true);
    for (name, test) in TESTS {
        test(&mut world);
        passed(&world, name);
    }
    let again = World::connect(LONG).err().expect("a process is connected once");
    assert!(matches!(again, wgrad_mpi::Error::AlreadyConnected), "{again}");
    let (rank, ranks) = (world.rank(), world.ranks());
    // In another thread, where sessions may well be.
    let trained = std::thread::spawn(|| training(world)).join().expect("training does not panic");
    assert_eq!(trained, in_process(ranks, training)[rank]);
    if rank == 0 {
        println!("test training has the bits of threads ... ok");
    }
}

/// The result of each rank among threads.
fn in_process<R: Send>(ranks: usize, f: impl Fn(InProcess) -> R + Sync) -> Vec<R> {
    let f = &f;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = InProcess::world(ranks).into_iter().map(|rank| scope.spawn(move || f(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

fn bits(data: &Data) -> Vec<u8> {
    match data {
        Data::F64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::F16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::U32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::Bool(v) => v.iter().map(|x| u8::from(*x)).collect(),
    }
}

/// Elements of a rank: numbers of many sizes whose sum depends on the order, and a few special ones.
fn elements(dtype: DType, len: usize, rank: usize) -> Data {
    let word = |i: usize| {
        let mut x =
            (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (rank as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
        x = (x ^ (x >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x ^ (x >> 29)
    };
    let number = |i: usize| match word(i) % 97 {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => f64::NEG_INFINITY,
        3 => -0.0,
        size => (word(i) >> 11) as f64 * (-(size as f64) / 4.0).exp2() / 2.0_f64.powi(40),
    };
    match dtype {
        DType::F64 => Data::F64((0..len).map(number).collect()),
        DType::F32 => Data::F32((0..len).map(|i| number(i) as f32).collect()),
        DType::F16 => Data::F16((0..len).map(|i| f16::from_f64(number(i))).collect()),
        DType::U32 => Data::U32((0..len).map(|i| word(i) as u32).collect()),
        DType::I32 => Data::I32((0..len).map(|i| word(i) as i32).collect()),
        DType::Bool => Data::Bool((0..len).map(|i| word(i).is_multiple_of(3)).collect()),
    }
}

fn part(way: Way, data: Data) -> Exchange {
    Exchange { way, data }
}

/// Exchanges these values of each rank here and among threads, and compares the bits.
fn as_threads(world: &mut World, parts: impl Fn(usize) -> Vec<Exchange> + Sync) {
    let met = |collective: &mut dyn Collective| {
        let mut parts = parts(collective.rank());
        exchange(collective, &mut parts).expect("all ranks exchange");
        parts
    };
    let here = met(world);
    let there = in_process(world.ranks(), |mut rank| met(&mut rank)).swap_remove(world.rank());
    assert_eq!(here.len(), there.len());
    for (here, there) in here.iter().zip(&there) {
        assert_eq!((here.way, here.data.dtype(), here.data.len()), (there.way, there.data.dtype(), there.data.len()));
        // A whole vector in a message would be too much.
        assert!(bits(&here.data) == bits(&there.data), "{:?} {} {}", here.way, here.data.dtype(), here.data.len());
    }
}

fn ways(world: &mut World) {
    let ranks = world.ranks();
    // Empty, one, odd, around the most that is in a message, and more bytes than MPI sends without asking.
    for len in [0, 1, 7, 255, 256, 257, 511, 512, 513, 1024, 1025, 2048, 2049, 40_001] {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::U32, DType::I32, DType::Bool] {
            let one = |way, len| move |rank| vec![part(way, elements(dtype, len, rank))];
            let adds = !matches!(dtype, DType::Bool | DType::F16);
            if adds || dtype == DType::F16 {
                as_threads(world, one(Way::Reduce(Reduce::Sum), len));
                as_threads(world, one(Way::Scatter(ranks), len * ranks));
            }
            if adds || dtype == DType::Bool {
                as_threads(world, one(Way::Reduce(Reduce::Max), len));
            }
            as_threads(world, one(Way::Gather(ranks), len));
        }
    }
    // 5 MB.
    for way in [Way::Reduce(Reduce::Sum), Way::Gather(ranks), Way::Scatter(ranks)] {
        as_threads(world, |rank| vec![part(way, elements(DType::F32, 1_250_000 / ranks * ranks, rank))]);
    }
    // A rank that has nothing of a value to reduce.
    as_threads(world, |rank| (0..300).map(|_| part(Way::Reduce(Reduce::Sum), elements(DType::F64, 1, rank))).collect());
}

fn several_values(world: &mut World) {
    let ranks = world.ranks();
    as_threads(world, |_| vec![]);
    as_threads(world, |rank| {
        vec![
            part(Way::Reduce(Reduce::Sum), elements(DType::F32, 100_001, rank)),
            part(Way::Reduce(Reduce::Max), elements(DType::Bool, 3, rank)),
            part(Way::Gather(ranks), elements(DType::F16, 5000, rank)),
            part(Way::Scatter(ranks), elements(DType::F64, 1000 * ranks, rank)),
            part(Way::Reduce(Reduce::Sum), elements(DType::U32, 1, rank)),
            part(Way::Reduce(Reduce::Max), elements(DType::Bool, 9999, rank)),
            part(Way::Scatter(ranks), elements(DType::I32, ranks, rank)),
            part(Way::Gather(ranks), elements(DType::Bool, 0, rank)),
        ]
    });
}

fn sum(data: impl Into<Data>) -> Vec<Exchange> {
    vec![part(Way::Reduce(Reduce::Sum), data.into())]
}

/// The world still adds up.
fn goes_on(world: &mut World) {
    as_threads(world, |rank| sum(vec![rank as f32, 0.1]));
    as_threads(world, |rank| sum(vec![rank as f64; 1000]));
}

fn differing_ranks(world: &mut World) {
    let last = world.ranks() - 1;
    for (difference, len) in Difference::ALL.into_iter().zip([1, 5000].into_iter().cycle()) {
        let mut stamps = vec![Stamp([1; Difference::ALL.len()]); world.ranks()];
        stamps[last].set(difference, 2);
        let mut parts = sum(vec![1.0_f32; len]);
        let error = world.exchange(stamps[world.rank()], &mut parts).expect_err("a rank differs");
        assert_eq!(error.to_string(), judge(&stamps).expect_err("a rank differs").to_string());
        assert_eq!(parts, sum(vec![1.0_f32; len]), "no value is replaced");
        goes_on(world);
    }
    // As a backend stamps it.
    let len = if world.rank() == last { 5001 } else { 3 };
    let error = exchange(world, &mut sum(vec![1.0_f32; len])).expect_err("the lengths differ");
    assert_eq!(error.to_string(), format!("rank {last} exchanges values of other types or lengths than rank 0"));
    goes_on(world);
}

fn misfits(world: &mut World) {
    let (last, ranks) = (world.ranks() - 1, world.ranks());
    let is_last = world.rank() == last;
    let odd = [
        (last, sum(vec![1.0_f32; if is_last { 1 } else { 9000 }])),
        (last, if is_last { sum(vec![1_u32]) } else { sum(vec![1_i32]) }),
        (last, if is_last { vec![] } else { sum(vec![1_i32]) }),
        (0, sum(vec![true; 9000])),
        (0, sum(vec![true])),
        (0, vec![part(Way::Scatter(ranks), Data::F32(vec![0.0; ranks * 3000 + 1]))]),
    ];
    for (failed, mut parts) in odd {
        let error = world.exchange(Stamp::default(), &mut parts).expect_err("the values do not fit");
        assert!(matches!(error, Error::RankFailed { rank } if rank == failed), "{error}");
        goes_on(world);
    }
}

fn failing_ranks(world: &mut World) {
    let last = world.ranks() - 1;
    for len in [1, 100_000] {
        if world.rank() == last {
            world.abort();
        } else {
            let mut parts = sum(vec![1.0_f32; len]);
            let error = exchange(world, &mut parts).expect_err("a rank fails");
            assert!(matches!(error, Error::RankFailed { rank } if rank == last), "{error}");
            assert_eq!(parts, sum(vec![1.0_f32; len]), "no value is replaced");
        }
        goes_on(world);
    }
    // All fail, at once and in turn.
    world.abort();
    world.abort();
    goes_on(world);
    for failing in 0..world.ranks() {
        if world.rank() == failing {
            world.abort();
        } else {
            exchange(world, &mut sum(vec![1.0_f32])).expect_err("a rank fails");
        }
    }
    goes_on(world);
}

/// Begins some pieces of the values that a rank is about to exchange, the last first: those that a number selects.
fn begin(world: &mut World, parts: &[Exchange], chosen: impl Fn(usize) -> bool) {
    for (p, part) in parts.iter().enumerate() {
        let Way::Reduce(reduce) = part.way else { continue };
        let piece = world.piece(part.data.dtype()).expect("this world begins early");
        for index in (0..part.data.len().div_ceil(piece)).rev().filter(|index| chosen(*index)) {
            let data = part.data.slice(index * piece..((index + 1) * piece).min(part.data.len()));
            world.begin(Early { part: p as u32, index: index as u32, reduce, data });
            world.progress();
        }
    }
}

fn pieces(world: &mut World) {
    let ranks = world.ranks();
    let values = |rank: usize| {
        vec![
            part(Way::Reduce(Reduce::Sum), elements(DType::F32, 150_001, rank)),
            part(Way::Reduce(Reduce::Max), elements(DType::Bool, 1, rank)),
            part(Way::Reduce(Reduce::Sum), elements(DType::F16, 70_000, rank)),
            part(Way::Gather(ranks), elements(DType::F32, 5000, rank)),
            part(Way::Reduce(Reduce::Max), elements(DType::Bool, 99_999, rank)),
            part(Way::Reduce(Reduce::Sum), elements(DType::U32, 3000, rank)),
        ]
    };
    let own = values(world.rank());
    // All pieces, none on some ranks, some of them, and others on each rank.
    let choices: [fn(usize, usize) -> bool; 4] =
        [|_, _| true, |rank, _| rank == 1, |_, index| index % 2 == 0, |rank, index| (rank + index) % 2 == 0];
    for chosen in choices {
        let rank = world.rank();
        begin(world, &own, |index| chosen(rank, index));
        as_threads(world, values);
        // And one that nobody begins.
        as_threads(world, values);
    }
}

fn lost_pieces(world: &mut World) {
    let last = world.ranks() - 1;
    let value = |salt| move |rank| vec![part(Way::Reduce(Reduce::Sum), elements(DType::F32, 150_001, rank + salt))];
    for (salt, aborts) in [(10, true), (20, false)] {
        let mut own = value(salt)(world.rank());
        begin(world, &own, |_| true);
        if aborts && world.rank() == last {
            world.abort();
        } else {
            let mut stamp = Stamp::default();
            stamp.set(Difference::Program, u64::from(world.rank() == last));
            world.exchange(stamp, &mut own).expect_err("a rank fails, or differs");
        }
        // Pieces of other values, at the same places.
        own = value(salt + 1)(world.rank());
        begin(world, &own, |index| index % 2 == 1);
        as_threads(world, value(salt + 1));
        goes_on(world);
    }
}

fn many_exchanges(world: &mut World) {
    let ranks = world.ranks() as f32;
    for i in 0..2000 {
        let len = 1 + (i * 37) % 3000;
        // Some ranks are late.
        if i % 100 == 0 && i % world.ranks() == world.rank() {
            sleep(Duration::from_millis(3));
        }
        let mut parts = sum(vec![i as f32; len]);
        exchange(world, &mut parts).expect("all ranks exchange");
        assert_eq!(parts, sum(vec![i as f32 * ranks; len]));
    }
}

/// The parameters after some steps of gradient descent on batches of each rank's own, as bits.
fn training(collective: impl Collective + 'static) -> Vec<u8> {
    let rank = collective.rank();
    let values = |len, salt| Array::new([len], (0..len).map(|i| ((i * 7 + salt) as f32).sin()).collect::<Vec<_>>());
    let mut store = Store::new();
    let (weight, bias) = (store.param("weight", &values(3000, 1)), store.param("bias", &values(1, 2)));
    let params = store.params();
    let config = SgdConfig { lr: 0.01.into(), momentum: 0.9, ..SgdConfig::default() };
    let sgd = Sgd::new(&mut store, &params, config);
    let backend = CpuBackend::new(1).expect("a thread");
    let session = Session::new(Box::new(backend), store).expect("there is room");
    let mut session = session.with_collective(Box::new(collective));
    let step = session.record(|t| {
        let y = t.param(weight).dot(t.input("x", [3000], DType::F32)) + t.param(bias).sum();
        sgd.step((y * y).grad(&params).all_reduce().clip_by_global_norm(0.5));
    });
    let step = step.expect("the program compiles");
    for i in 0..100 {
        session.run(&step, &[("x", &values(3000, 100 * rank + i))]).expect("all ranks run");
    }
    session.check_replicas().expect("the ranks agree");
    [weight, bias].iter().flat_map(|param| bits(session.read_param(*param).expect("it is there").data())).collect()
}

/// The other ranks get it that the last one has left, at once and from then on.
fn a_rank_leaves() {
    let mut world = connected(LONG);
    let last = world.ranks() - 1;
    goes_on(&mut world);
    if world.rank() == last {
        sleep(Duration::from_millis(200));
        return;
    }
    let start = Instant::now();
    for len in [1, 100_000] {
        let error = exchange(&mut world, &mut sum(vec![1.0_f32; len])).expect_err("a rank has left");
        assert!(matches!(error, Error::RankLost { rank } if rank == last), "{error}");
        world.abort();
    }
    assert!(start.elapsed() < SHORT, "not only after its patience: {:?}", start.elapsed());
    passed(&world, "a rank that leaves is lost at once, and all end in order");
}

/// Ranks leave directly after an exchange in pieces, in which the last one is late: it and the others have all of it.
fn ranks_leave_after_pieces() {
    let mut world = connected(LONG).overlapping(true);
    let (rank, ranks) = (world.rank(), world.ranks());
    let value = |rank: usize| sum(vec![rank as f32; 150_001]);
    let own = value(rank);
    begin(&mut world, &own, |_| rank == 0);
    if rank + 1 == ranks {
        sleep(Duration::from_millis(300));
    }
    let mut parts = own;
    exchange(&mut world, &mut parts).expect("all ranks exchange");
    assert_eq!(parts, sum(vec![(0..ranks).sum::<usize>() as f32; 150_001]));
    passed(&world, "ranks may leave directly after an exchange in pieces");
}

/// The last rank does not answer: the others lose it within their patience, and tell so before the launcher ends all.
fn a_rank_is_silent() {
    let mut world = connected(SHORT);
    let (rank, last) = (world.rank(), world.ranks() - 1);
    goes_on(&mut world);
    if rank == last {
        sleep(20 * SHORT);
        panic!("the launcher ends this rank before");
    }
    let start = Instant::now();
    let error = exchange(&mut world, &mut sum(vec![1.0_f32; 5000])).expect_err("a rank is silent");
    assert!(matches!(error, Error::RankLost { rank } if rank == last), "{error}");
    assert!((SHORT..2 * SHORT).contains(&start.elapsed()), "{:?}", start.elapsed());
    drop(world);
    eprintln!("rank {rank}: {error}");
    std::process::exit(3);
}

/// The last rank answers too late: it is lost to the others, and they to it.
fn a_rank_is_late() {
    let mut world = connected(SHORT);
    let (rank, last) = (world.rank(), world.ranks() - 1);
    goes_on(&mut world);
    if rank == last {
        sleep(2 * SHORT);
    }
    // It finds what the others have said before they lost it.
    let first = exchange(&mut world, &mut sum(vec![1.0_f32]));
    let error = exchange(&mut world, &mut sum(vec![1.0_f32])).expect_err("nobody is left");
    if rank == last {
        first.expect("what the others have said is there");
        assert!(matches!(error, Error::RankLost { rank } if rank != last), "{error}");
    } else {
        assert!(matches!(error, Error::RankLost { rank } if rank == last), "{error}");
    }
    drop(world);
    eprintln!("rank {rank}: {error}");
    std::process::exit(3);
}

fn patience_differs() {
    let rank = std::env::var("OMPI_COMM_WORLD_RANK").or_else(|_| std::env::var("PMI_RANK"));
    let is_first = rank.expect("a launcher gives ranks") == "0";
    let error = World::connect(if is_first { LONG } else { SHORT }).err().expect("the patience differs");
    assert_eq!(error.to_string(), "rank 1 has another patience than rank 0");
    if is_first {
        println!("test another patience is an error of all ranks ... ok");
    }
}

/// The last rank is killed.
fn a_rank_dies() {
    let mut world = connected(3 * SHORT);
    let (rank, last) = (world.rank(), world.ranks() - 1);
    goes_on(&mut world);
    if rank == last {
        let id = std::process::id().to_string();
        std::process::Command::new("kill").args(["-9", &id]).status().expect("kill");
        sleep(LONG);
    }
    let error = exchange(&mut world, &mut sum(vec![1.0_f32; 5000])).expect_err("a rank has died");
    eprintln!("rank {rank}: {error}");
    drop(world);
    eprintln!("rank {rank} ends");
    std::process::exit(3);
}

/// Prints the median time of an exchange.
fn time() {
    let mut world = connected(LONG);
    for (bytes, times) in [(4, 5000), (2048, 5000), (4096, 5000), (65_536, 2000), (4 << 20, 100)] {
        let mut all: Vec<Duration> = (0..times)
            .map(|_| {
                let mut parts = sum(vec![1.0_f32; bytes / 4]);
                let start = Instant::now();
                exchange(&mut world, &mut parts).expect("all ranks exchange");
                start.elapsed()
            })
            .collect();
        all.sort();
        if world.rank() == 0 {
            let [low, median, high] = [0.1, 0.5, 0.9].map(|share| all[(share * times as f64) as usize]);
            println!("{bytes:8} bytes: median {median:?}, from {low:?} to {high:?} in four of five");
        }
    }
}
