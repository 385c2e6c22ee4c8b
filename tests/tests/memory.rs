//! Memory: a step allocates the same whatever the size of the model, and 100,000 steps leave memory as it was after the
//! first few.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};
use wgrad::{Array, Cell, DType, Optimizer, Param, ParamSet, Session, Store, Tape, Tensor};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Builder, Init, Linear, Recurrent, RecurrentInit,
    optim::{Adam, AdamConfig},
};
use wgrad_tests::{Mlp, named};

/// The system's allocator, how many bytes of it are in use, and what has ever been asked of it.
///
/// What the library that multiplies matrices asks for, at every product, is left out of the latter: flags, which are
/// zeroed bytes, and buffers aligned for vectors. Nothing of wgrad's looks like that.
struct Counting;

impl Counting {
    fn count(layout: Layout, zeroed: bool) {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        let of_products = layout.align() >= 32 || zeroed && layout.align() == 1;
        if !of_products {
            CALLS.fetch_add(1, Ordering::Relaxed);
            BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        }
    }
}

static LIVE: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are handed on to the system's allocator as they come.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout, false);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout, true);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Resident memory, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: usize = statm.split(' ').nth(1).expect("the second field").parse().expect("a number");
    pages * 4096
}

/// How often, and how many bytes, something allocates.
fn allocates(f: impl FnOnce()) -> (usize, usize) {
    let read = || (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    let before = read();
    f();
    let after = read();
    (after.0 - before.0, after.1 - before.1)
}

/// How often, and how many bytes, a step on one thread allocates from its second run on.
fn cost(store: Store, x: &Array, record: impl Fn(&Tape, Tensor<'_>)) -> (usize, usize) {
    let backend = CpuBackend::new(1).expect("the thread starts");
    let mut session = Session::new(Box::new(backend), store).expect("the device has room");
    let step = session.record(|t| record(t, t.input_like("x", x))).expect("the plan compiles");
    let mut run = || {
        session.run(&step, &[("x", x)]).expect("the step runs");
        assert!(session.taps().expect("delivered")[0].scalar("loss").expect("tapped").is_finite());
    };
    run();
    // The least of several: now and then a thread pool makes room for its next 32 jobs.
    (0..8).map(|_| allocates(&mut run)).min().expect("some")
}

/// A step of Adam, and the loss as a tap.
fn learn(tape: &Tape, loss: Tensor<'_>, adam: &Adam, params: &ParamSet) {
    tape.tap("loss", loss);
    adam.step(loss.grad(params).clip_by_global_norm(1.0));
}

fn numbers(shape: &[usize]) -> Array {
    let count: usize = shape.iter().product();
    Array::new(shape, (0..count).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<f32>>())
}

/// Training a stack of softmaxes with scales.
fn softmaxes(layers: usize, width: usize) -> (usize, usize) {
    let mut store = Store::new();
    let scale = |i: usize| store.param(&format!("scale{i}"), &numbers(&[width]));
    let scales: Vec<Param> = (0..layers).map(scale).collect();
    let params = store.params();
    let adam = Adam::new(&mut store, &params, AdamConfig::default());
    cost(store, &numbers(&[32, width]), |t, x| {
        let y = scales.iter().fold(x, |x, scale| (x * t.param(*scale)).softmax(1));
        learn(t, y.square().mean(), &adam, &params);
    })
}

/// Training a perceptron.
fn perceptron(layers: usize, width: usize) -> (usize, usize) {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 1);
    let layer = |i: usize| Linear::new(b.at(&format!("layer{i}")), width, width, &Init::Normal(0.1));
    let layers: Vec<Linear> = (0..layers).map(layer).collect();
    let params = store.params();
    let adam = Adam::new(&mut store, &params, AdamConfig::default());
    cost(store, &numbers(&[32, width]), |t, x| {
        let y = layers.iter().fold(x, |x, layer| layer.forward(x).tanh());
        learn(t, y.square().mean(), &adam, &params);
    })
}

/// Training a recurrent layer.
fn recurrent(cell: Cell, time: usize) -> (usize, usize) {
    let mut store = Store::new();
    let layer = Recurrent::new(Builder::new(&mut store, 1), cell, 3, 8, &RecurrentInit::of(cell));
    let params = store.params();
    let adam = Adam::new(&mut store, &params, AdamConfig::default());
    cost(store, &numbers(&[time, 4, 3]), |t, x| learn(t, layer.forward(x).last.square().mean(), &adam, &params))
}

fn a_step_allocates_the_same_whatever_the_size() {
    // All of them have as many taps.
    let small = softmaxes(2, 32);
    assert_eq!(softmaxes(2, 128), small, "four times wider");
    assert_eq!(softmaxes(8, 32), small, "four times deeper");
    assert_eq!(perceptron(2, 16), small, "matrix products");
    assert_eq!(perceptron(2, 64), small, "four times wider");
    assert_eq!(perceptron(8, 16), small, "four times deeper");
    for cell in [Cell::Tanh, Cell::Lstm, Cell::Gru] {
        assert_eq!(recurrent(cell, 50), recurrent(cell, 5), "{cell:?}: ten times as many steps in time");
    }
}

fn steps_leave_memory_flat() {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    let params = model.params();
    let adam = Adam::new(&mut store, &params, AdamConfig::default());
    let backend = CpuBackend::new(2).expect("the threads start");
    let mut session = Session::new(Box::new(backend), store).expect("the device has room");
    let batches = [model.batch(0), model.batch(1)];
    let steps = |session: &mut Session, count: usize| {
        for k in 0..count {
            let inputs = named(&batches[k % 2]);
            let step = session.run_cached("train", &inputs, |t| learn(t, model.loss(t), &adam, &params));
            step.expect("the step runs");
            // Fetched now and then only: what nobody fetches must not pile up either.
            if k % 1000 == 999 {
                assert!(session.taps().expect("delivered").last().expect("there are some").scalar("loss").is_some());
            }
        }
    };
    steps(&mut session, 1000);
    let live = LIVE.load(Ordering::Relaxed);
    #[cfg(target_os = "linux")]
    let before = resident();
    steps(&mut session, 100_000);
    let grown = LIVE.load(Ordering::Relaxed) as isize - live as isize;
    assert!(grown.abs() < 16 * 1024, "live memory grew by {grown} bytes");
    #[cfg(target_os = "linux")]
    assert!(resident() < before + 1024 * 1024, "resident memory grew from {before} to {}", resident());
    // Values that are computed once leave nothing behind either.
    let evaluate = |session: &mut Session| {
        for _ in 0..200 {
            session.eval(&named(&batches[0]), |t| model.loss(t)).expect("evaluated");
        }
    };
    evaluate(&mut session);
    let live = LIVE.load(Ordering::Relaxed);
    evaluate(&mut session);
    let grown = LIVE.load(Ordering::Relaxed) as isize - live as isize;
    assert!(grown.abs() < 16 * 1024, "evaluations left {grown} bytes");
    // Nor do values of ever other shapes.
    let others = |session: &mut Session, sizes: std::ops::Range<usize>| {
        for n in sizes {
            let x = numbers(&[n, 3]);
            session.eval(&[("x", &x)], |t| t.input_like("x", &x).softmax(0).square().sum()).expect("evaluated");
        }
    };
    others(&mut session, 1500..1550);
    let live = LIVE.load(Ordering::Relaxed);
    others(&mut session, 1000..1500);
    let grown = LIVE.load(Ordering::Relaxed) as isize - live as isize;
    assert!(grown.abs() < 16 * 1024, "500 shapes left {grown} bytes");
}

/// Of cached programs 8 stay whatever they take, and more where there is room; one that is held runs on.
fn cached_programs_stay_within_their_bytes() {
    let backend = CpuBackend::new(1).expect("the thread starts");
    let mut session = Session::new(Box::new(backend), Store::new()).expect("the device has room");
    let mut recorded = 0;
    let mut run = |session: &mut Session, n: usize| {
        let x = numbers(&[1000, n]);
        let step = session.run_cached("cumulated", &[("x", &x)], |t| {
            recorded += 1;
            t.tap("y", t.input_like("x", &x).cumsum(0).cumsum(1));
        });
        (step.expect("it runs"), recorded)
    };
    let (held, _) = run(&mut session, 1);
    assert_eq!((2..=20).map(|n| run(&mut session, n).1).max(), Some(20));
    assert_eq!(run(&mut session, 1).1, 20, "there is room for all");
    session.set_cached_bytes(16 * 1000);
    assert_eq!(run(&mut session, 21).1, 21);
    // Those that were used last are 21, 1, and 20 down to 15.
    for n in [21, 1, 20, 19, 18, 17, 16, 15] {
        assert_eq!(run(&mut session, n).1, 21, "{n} columns");
    }
    assert_eq!(run(&mut session, 14).1, 22);
    session.run(&held, &[("x", &numbers(&[1000, 1]))]).expect("it still runs");
}

// One test only: others would allocate at the same time.
#[test]
fn memory() {
    a_step_allocates_the_same_whatever_the_size();
    steps_leave_memory_flat();
    cached_programs_stay_within_their_bytes();
}
