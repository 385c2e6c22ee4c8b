//! Watching what kernels take: the same bits as without, a time for each kernel of each run, on every device.

use wgrad::{Array, DType, Error, InProcess, Optimizer, Session, Step, Store, Tape};
use wgrad_cpu::CpuBackend;
use wgrad_nn::optim::{AdamW, AdamWConfig};
use wgrad_tests::{Machine, Mlp, gpu, gpus, has_timestamps, named, same_bits, separate_gpu};
use wgrad_wgpu::{Choice, Gpu, Options};

/// What makes a machine of a store.
type Device = Box<dyn Fn(Store) -> Machine>;

/// The CPU on some numbers of threads, cut into many parts too, and the GPUs that there are.
fn devices() -> Vec<(String, Device)> {
    let mut devices: Vec<(String, Device)> = vec![
        ("cpu, 1 thread".into(), Box::new(|store| Machine::new(1, store))),
        ("cpu, 2 threads".into(), Box::new(|store| Machine::splitting(2, store))),
    ];
    for (i, gpu) in gpus().into_iter().filter(|gpu| has_timestamps(gpu)).enumerate() {
        devices.push((format!("gpu {i}"), Box::new(|store| Machine::on_gpu(gpu, store))));
    }
    devices
}

/// Updates of a perceptron: an update, and another after each time that `before` was called with its number.
fn updates(device: &Device, mut before: impl FnMut(&mut Session, &Step, usize)) -> Vec<Array> {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    let params = model.params();
    let adam = AdamW::new(&mut store, &params, AdamWConfig { lr: 0.01.into(), ..AdamWConfig::default() });
    let mut machine = device(store);
    let step = machine.session.record(|t| {
        let (x, y) = model.inputs(t);
        let loss = model.loss_of(t, x, y);
        t.tap("loss", loss);
        adam.step(loss.grad(&params).clip_by_global_norm(0.5));
    });
    let step = step.expect("the plan compiles");
    let mut losses = vec![];
    for i in 0..5 {
        before(&mut machine.session, &step, i);
        losses.push(machine.run(&step, &model.batch(i)).tap("loss").clone());
    }
    before(&mut machine.session, &step, 5);
    losses.into_iter().chain(machine.states()).collect()
}

#[test]
fn a_watched_run_gives_the_bits_of_an_unwatched_one_and_a_time_for_each_kernel() {
    for (name, device) in devices() {
        let unwatched = updates(&device, |session, step, _| {
            let times = session.kernel_times(step).expect("it is this session's");
            assert!(times.is_empty(), "{name}: nobody watches");
        });
        let mut seen = vec![];
        let watched = updates(&device, |session, step, i| {
            // From the third run on; that it is watched already changes nothing.
            if i == 2 || i == 3 {
                assert!(session.watch(step).expect("there is room"), "{name} can tell");
            }
            let (_, plan) = session.plan(step);
            let times = session.kernel_times(step).expect("it is this session's");
            assert_eq!(times.len(), usize::from(i > 2), "{name}: of each run once");
            assert!(times.iter().all(|seconds| seconds.len() == plan.kernels.len()), "{name}: {times:?}");
            seen.extend(times.concat());
        });
        assert!(unwatched.iter().zip(&watched).all(|(a, b)| same_bits(a, b)), "{name}: other bits");
        assert_eq!(unwatched.len(), watched.len());
        assert!(seen.iter().all(|seconds| *seconds >= 0.0 && seconds.is_finite()), "{name}: {seen:?}");
        assert!(seen.iter().sum::<f64>() > 0.0, "{name}: the clock stands still");
    }
}

/// Runs that are on their way when somebody begins to watch are not watched, and none after them is lost.
#[test]
fn watching_begins_with_the_next_run() {
    for (name, device) in devices() {
        let mut store = Store::new();
        let state = store.state("x", &Array::new([3], vec![1.0f32; 3]));
        let mut machine = device(store);
        let session = &mut machine.session;
        let step = session.record(|t| {
            t.tap("before", t.state(state));
            t.assign(state, t.state(state) * 2.0);
        });
        let step = step.expect("compiles");
        for i in 0..7 {
            if i == 2 {
                assert!(session.watch(&step).expect("there is room"), "{name}");
            }
            session.run(&step, &[]).expect("runs");
        }
        session.wait().expect("the runs succeed");
        assert_eq!(session.kernel_times(&step).expect("this session's").len(), 5, "{name}");
        let seen: Vec<f64> = session
            .taps()
            .expect("the runs succeed")
            .iter()
            .map(|taps| taps.get("before").expect("tapped").item(0))
            .collect();
        assert_eq!(seen, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0], "{name}");
    }
}

#[test]
fn a_run_that_fails_has_no_times() {
    for (name, device) in devices() {
        let mut machine = device(Store::new());
        let session = &mut machine.session;
        let step = session.record(|t| {
            let x = t.input("x", [4], DType::F32).gather(t.input("i", [2], DType::U32), 0);
            t.tap("x", x);
        });
        let step = step.expect("compiles");
        assert!(session.watch(&step).expect("there is room"), "{name}");
        let x = Array::new([4], vec![1.0f32, 2.0, 3.0, 4.0]);
        for (last, good) in [(3, true), (4, false), (0, true)] {
            let i = Array::new([2], vec![0u32, last]);
            let result = session.run(&step, &[("x", &x), ("i", &i)]).and_then(|_| session.wait());
            assert_eq!(result.is_ok(), good, "{name}: {result:?}");
            let times = session.kernel_times(&step).expect("this session's");
            assert_eq!(times.len(), usize::from(good), "{name}: index {last}");
        }
    }
}

/// What is exchanged with other ranks cuts a run into submissions, and its kernels are timed in all of them.
#[test]
fn kernels_are_timed_between_exchanges() {
    let sums = |rank: InProcess, on_gpu: Option<&Gpu>, watched: bool| {
        let own = wgrad::Collective::rank(&rank) as f32;
        let mut store = Store::new();
        let state = store.state("x", &Array::new([5], vec![own + 1.0; 5]));
        let machine = match on_gpu {
            Some(gpu) => Machine::on_gpu(gpu, store),
            None => Machine::new(1, store),
        };
        let mut machine = machine.as_rank(rank);
        let step = machine.session.record(|t| {
            let all = (t.state(state) * 2.0).sum_over_ranks();
            t.tap("all", all);
            t.assign(state, (all / 3.0).sum_over_ranks() + t.state(state));
        });
        let step = step.expect("compiles");
        assert_eq!(watched && machine.session.watch(&step).expect("there is room"), watched);
        let shown: Vec<Array> = (0..3).map(|_| machine.run(&step, &[]).tap("all").clone()).collect();
        let times = machine.session.kernel_times(&step).expect("this session's");
        let kernels = machine.session.plan(&step).1.kernels.len();
        assert_eq!(times.iter().map(Vec::len).collect::<Vec<_>>(), vec![kernels; if watched { 3 } else { 0 }]);
        shown.into_iter().chain(machine.states()).collect::<Vec<_>>()
    };
    for on_gpu in [None, gpu().filter(|gpu| has_timestamps(gpu))] {
        let world = |watched: bool| {
            std::thread::scope(|scope| {
                let sums = &sums;
                let start = |rank| scope.spawn(move || sums(rank, on_gpu, watched));
                let ranks: Vec<_> = InProcess::world(2).into_iter().map(start).collect();
                ranks.into_iter().flat_map(|rank| rank.join().expect("no rank panics")).collect::<Vec<_>>()
            })
        };
        assert_eq!(world(true), world(false));
    }
}

/// More dispatches than a device's smallest query sets have room for.
#[test]
fn thousands_of_dispatches_are_timed() {
    const NODES: usize = 2100;
    let Some(gpu) = separate_gpu().filter(|gpu| has_timestamps(gpu)) else { return };
    let mut machine = Machine::on_gpu(gpu, Store::new()).grouped(&wgrad::plan::Grouping::none());
    let record = |t: &Tape| {
        let last = (0..NODES).fold(t.input("x", [4], DType::F32), |x, _| x.sin());
        t.tap("x", last);
    };
    let step = machine.session.record(record).expect("compiles");
    let inputs = [("x".to_string(), Array::new([4], vec![0.5f32; 4]))];
    let want = machine.run(&step, &inputs).tap("x").clone();
    assert!(machine.session.watch(&step).expect("there is room"));
    assert!(same_bits(machine.run(&step, &inputs).tap("x"), &want));
    let times = machine.session.kernel_times(&step).expect("this session's");
    assert_eq!(times.iter().map(Vec::len).collect::<Vec<_>>(), [NODES]);
    // The last ones too.
    assert!(times[0].chunks(100).all(|some| some.iter().sum::<f64>() > 0.0), "{times:?}");
}

#[test]
fn a_device_without_timestamps_says_so_and_runs_all_the_same() {
    if gpu().is_none() {
        return;
    }
    let floor = Gpu::open(Choice::Best, Options { floor: true, ..Options::default() }).expect("it opens");
    let mut machine = Machine::on_gpu(&floor, Store::new());
    let step = machine.session.record(|t| t.tap("x", t.input("x", [2], DType::F32) + 1.0)).expect("compiles");
    assert!(!machine.session.watch(&step).expect("nothing is needed"));
    let inputs = [("x".to_string(), Array::new([2], vec![1.0f32, 2.0]))];
    assert_eq!(machine.run(&step, &inputs).tap("x").to_f64(), [2.0, 3.0]);
    assert!(machine.session.kernel_times(&step).expect("this session's").is_empty());
}

#[test]
fn a_program_of_another_session_is_refused() {
    let session = || Session::new(Box::new(CpuBackend::new(1).expect("threads")), Store::new()).expect("session");
    let (mut one, mut other) = (session(), session());
    let step = one.record(|t| t.tap("x", t.scalar(1.0, DType::F32))).expect("compiles");
    assert!(matches!(other.watch(&step), Err(Error::ForeignProgram { .. })));
    assert!(matches!(other.kernel_times(&step), Err(Error::ForeignProgram { .. })));
    assert!(one.watch(&step).expect("there is room"));
    one.run(&step, &named(&[])).expect("runs");
    assert_eq!(one.kernel_times(&step).expect("its own").len(), 1);
}
