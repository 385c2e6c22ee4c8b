//! What replaying a program costs on a GPU: nothing is created, one submission, no value read, little time on the calling
//! thread. With `--nocapture` the time is printed; it means something in a release build.

use approx::assert_abs_diff_eq;
use std::{sync::Arc, time::Instant};
use wgrad::{
    Accumulator, Array, Backend, DynamicScale, InProcess, LossScaler, Optimizer, Program, Store, Tape, Weighting,
    backend::{BufferId, ExecutableId},
    plan::{Grouping, Plan},
};
use wgrad_nn::optim::{AdamW, AdamWConfig};
use wgrad_tests::{gpu, has_timestamps, separate_gpu};
use wgrad_wgpu::{Counters, Gpu, WgpuBackend};

/// A program compiled by hand, so that the backend's counters can be read.
struct Replayed {
    backend: WgpuBackend,
    executable: ExecutableId,
    buffers: Vec<BufferId>,
    runs: u64,
    /// The plan as text.
    plan: String,
}

impl Replayed {
    fn new(gpu: &Gpu, store: Store, program: &Program, grouping: Option<Grouping>) -> Self {
        let mut backend = WgpuBackend::on(gpu).expect("the device is there");
        let grouping = grouping.unwrap_or_else(|| backend.grouping());
        let (_, values) = store.into_parts();
        let buffers: Vec<_> = values.iter().map(|value| backend.alloc(value).expect("there is room")).collect();
        let lowered = program.lowered(grouping.simplify, |op, dtype| backend.claims(op, dtype));
        let plan = Plan::with(&lowered, &grouping);
        let described = plan.describe(&lowered).to_string();
        let executable = backend.compile(&plan, &buffers).expect("the plan compiles");
        Self { backend, executable, buffers, runs: 0, plan: described }
    }

    fn run(&mut self) {
        let world = &mut InProcess::world(1).remove(0);
        self.backend.run(self.executable, &[], self.runs, world).expect("the run is enqueued");
        self.runs += 1;
    }

    /// What so many runs add to the counters, after as many as may be on their way at once.
    fn counted(&mut self, runs: u64) -> [u64; 5] {
        (0..4).for_each(|_| self.run());
        self.backend.wait().expect("the runs succeed");
        let before = self.backend.counters();
        (0..runs).for_each(|_| self.run());
        let after = self.backend.counters();
        let all = |c: Counters| [c.dispatches, c.submits, c.buffers, c.bind_groups, c.pipelines];
        let (before, after) = (all(before), all(after));
        std::array::from_fn(|i| after[i] - before[i])
    }
}

#[test]
fn five_hundred_tiny_dispatches_create_nothing_and_are_one_submission() {
    let mut store = Store::new();
    let state = store.state("x", &Array::new([4], vec![0.5f32; 4]));
    let tape = Tape::new(Arc::new(store.layout().clone()));
    let last = (0..500).fold(tape.state(state), |x, _| x.sin());
    tape.tap("x", last);
    let program = tape.finish();
    // A kernel for each node, and a dispatch for each kernel.
    let Some(separate) = separate_gpu() else { return };
    let mut replayed = Replayed::new(separate, store, &program, Some(Grouping::none()));
    assert_eq!(replayed.counted(20), [20 * 500, 20, 0, 0, 0]);
    let mut times = vec![];
    for _ in 0..100 {
        // Nothing is on its way, so that the call does not wait: it takes no more time on a core than by the clock.
        replayed.backend.wait().expect("the runs succeed");
        let start = Instant::now();
        replayed.run();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    println!("500 dispatches take the calling thread {:?}, in the median {:?}", times[0], times[times.len() / 2]);
    // It has computed what it should.
    let x = replayed.backend.read(replayed.buffers[0]).expect("the device is there").to_f64();
    assert_eq!(x, [0.5; 4], "the state stays");
    let delivered = replayed.backend.deliveries().expect("the runs succeed");
    let want = (0..500).fold(0.5f64, |x, _| x.sin());
    let have = delivered.last().expect("each run delivers").values[0].to_f64();
    assert_abs_diff_eq!(have[..], [want; 4][..], epsilon = 1e-4);
}

#[test]
fn a_watched_program_is_one_submission_that_creates_nothing() {
    let mut store = Store::new();
    let state = store.state("x", &Array::new([4], vec![0.5f32; 4]));
    let tape = Tape::new(Arc::new(store.layout().clone()));
    tape.tap("x", (0..50).fold(tape.state(state), |x, _| x.sin()));
    let program = tape.finish();
    let Some(separate) = separate_gpu().filter(|gpu| has_timestamps(gpu)) else { return };
    let mut replayed = Replayed::new(separate, store, &program, Some(Grouping::none()));
    let unwatched = replayed.counted(5);
    let created = replayed.backend.counters().buffers;
    assert!(replayed.backend.watch(replayed.executable).expect("there is room"));
    assert_eq!(replayed.counted(5), unwatched);
    // Where the timestamps go, and what is shown of two runs on their way.
    assert_eq!(replayed.backend.counters().buffers - created, 1 + 2);
    replayed.backend.wait().expect("the runs succeed");
    let times = replayed.backend.times(replayed.executable);
    assert_eq!(times.iter().map(Vec::len).collect::<Vec<_>>(), vec![50; replayed.runs as usize / 2]);
}

/// Accumulation has been done; what follows is the whole update.
#[test]
fn a_full_update_over_two_hundred_tensors_is_one_submission_that_creates_and_reads_nothing() {
    let mut store = Store::new();
    let shapes: [(usize, &[usize]); 4] = [(40, &[8, 8]), (40, &[8, 4]), (4, &[2, 4, 3, 3]), (116, &[16])];
    for (i, shape) in shapes.iter().flat_map(|&(count, shape)| std::iter::repeat_n(shape, count)).enumerate() {
        store.param(&format!("p{i:03}"), &Array::new(shape, vec![0.1f32; shape.iter().product()]));
    }
    let params = store.params();
    assert_eq!(params.len(), 200);
    let adamw = AdamW::new(&mut store, &params, AdamWConfig::default());
    let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
    let accumulator = Accumulator::new(&mut store, &params, "window", Weighting::Mean);
    let layout = Arc::new(store.layout().clone());
    let micro = Tape::new(layout.clone());
    let loss = micro.arenas(&params).tensors()[0].square().sum();
    accumulator.add(scaler.scale(loss).grad(&params));
    let tape = Tape::new(layout);
    let grads = accumulator.take(&tape).unscale(&scaler).check_finite().centralize().agc(0.01);
    adamw.step(grads.clip_by_global_norm(1.0));
    scaler.update(&tape);
    let Some(gpu) = gpu() else { return };
    let mut replayed = Replayed::new(gpu, store, &tape.finish(), None);
    let [dispatches, submits, created @ ..] = replayed.counted(10);
    println!("{} dispatches of {}", dispatches / 10, replayed.plan);
    assert!(dispatches <= 10 * 8, "{dispatches} in 10 runs of {}", replayed.plan);
    assert_eq!((submits, created), (10, [0; 3]), "one submission each, and nothing is created");
}
