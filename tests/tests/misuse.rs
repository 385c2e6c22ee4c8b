//! What a user gets wrong, and what must not go wrong however unusual the use: found by a hostile reading of the code.

use approx::{abs_diff_eq, assert_abs_diff_eq};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};
use wgrad::{
    Array, Backend, Collective, DType, Data, Error, Flat, LossScaler, Optimizer, ParamSet, Session, Store, Tape,
    Tensor,
    backend::{BufferId, Delivery, ExecutableId, SnapshotId},
    plan::Plan,
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::optim::{Adam, AdamConfig, Sgd, SgdConfig};
use wgrad_tests::{Machine, Tolerance, compare, same_bits};

/// The message of the panic that `f` must end in.
fn panics<R>(f: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("this must panic");
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| panic.downcast_ref::<&str>().expect("text").to_string())
}

/// A store with one f64 parameter `p` of two elements.
fn one_param() -> (Store, wgrad::Param) {
    let mut store = Store::new();
    let p = store.param("p", &Array::new([2], vec![1.0f64, -2.0]));
    (store, p)
}

fn tape(store: &Store) -> Tape {
    Tape::new(Arc::new(store.layout().clone()))
}

#[test]
fn a_nonlinear_hook_in_a_checkpoint_sees_the_total_in_every_order() {
    let third = |checkpointed: bool| {
        let t = Tape::default();
        let x = t.input("x", [3], DType::F64);
        let body = || {
            let h = x.sin().on_grad(|g| g * g);
            h.tanh() * h
        };
        let y = if checkpointed { t.checkpoint(body) } else { body() };
        let first = y.sum().grad_wrt(&[x])[0].expect("reached");
        let second = (y.sum() + first.sum()).grad_wrt(&[x])[0].expect("reached");
        let third = (second.sin().sum() + y.sum()).grad_wrt(&[x])[0].expect("reached");
        [("first", first), ("second", second), ("third", third)].into_iter().for_each(|(name, g)| t.tap(name, g));
        let mut machine = Machine::poisoned(1, Store::new());
        let step = machine.session.compile(t.finish()).expect("compiles");
        let x = Array::new([3], vec![0.3, -0.7, 1.1]);
        machine.run(&step, &[("x".into(), x)]).taps
    };
    let [within, plain] = [third(true), third(false)];
    assert!(same_bits(&within[0].1, &plain[0].1), "{within:?} instead of {plain:?}");
    // A value and its recomputation are two factors where a square has one: sums of other order, beyond the gradient.
    for ((name, have), (_, want)) in within.iter().zip(&plain).skip(1) {
        compare(name, &have.to_f64(), &want.to_f64(), Tolerance::F64).unwrap();
    }
}

#[test]
fn other_values_of_parameters_are_checked_and_not_assigned() {
    let (store, p) = one_param();
    let t = tape(&store);
    let arena = store.layout().param(p).arena;
    let within = |value| t.with_params(&Flat::new(vec![(arena, value)]), || t.assign(arena, t.state(arena) * 2.0));
    assert!(panics(|| within(t.state(arena) * 3.0)).contains("inside a `with_params`"));
    let t = tape(&store);
    let short = panics(|| t.with_params(&Flat::new(vec![(arena, t.full([4], 0.0, DType::F64))]), || ()));
    assert!(short.contains("f64[128]") && short.contains("f64[4]"), "{short}");
}

#[test]
fn a_parameters_hook_outlives_a_step_and_acts_within_other_values() {
    let (mut store, p) = one_param();
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 1.0.into(), ..SgdConfig::default() });
    let mut machine = Machine::poisoned(1, store);
    let record = |t: &Tape| {
        t.on_param_grad(p, |g| g * 10.0);
        let gradient = || t.param(p).sum().grad(&params);
        t.tap("first", gradient().get(p).expect("reached"));
        sgd.step(gradient());
        t.tap("after", gradient().get(p).expect("reached"));
        let within = t.with_params(&t.arenas(&params).map(|_, x| x * 2.0), || gradient().get(p).expect("reached"));
        t.tap("within", within);
        t.tap("wrt", t.param(p).sum().grad_wrt(&[t.param(p)])[0].expect("reached"));
    };
    let step = machine.session.record(record).expect("compiles");
    let out = machine.run(&step, &[]);
    for name in ["first", "after", "within", "wrt"] {
        assert_eq!(out.tap(name).to_f64(), [10.0, 10.0], "{name}");
    }
}

#[test]
fn tensors_of_another_tape_are_refused_everywhere() {
    let (store, p) = one_param();
    let (t, other) = (tape(&store), tape(&store));
    let (x, foreign) = (t.param(p), other.param(p));
    let arena = store.layout().param(p).arena;
    let uses: [(&str, &dyn Fn()); 8] = [
        ("add", &|| _ = x + foreign),
        ("grad", &|| _ = x.sum().grad_wrt(&[foreign])),
        ("vjp", &|| _ = x.vjp(foreign, &[x])),
        ("vjp", &|| _ = x.vjp(x, &[foreign])),
        ("tap", &|| t.tap("x", foreign)),
        ("on_grad_with", &|| _ = x.on_grad_with([foreign], |g, [_]| g)),
        ("assign", &|| t.assign(arena, other.state(arena))),
        ("with_params", &|| t.with_params(&Flat::new(vec![(arena, other.state(arena))]), || ())),
    ];
    for (name, misuse) in uses {
        let message = panics(misuse);
        assert!(message.starts_with(name) && message.contains("another tape"), "{name}: {message}");
    }
}

#[test]
fn numbers_that_an_integer_type_does_not_hold_are_refused() {
    let t = Tape::default();
    assert!(panics(|| t.iota(3) + -1.0).contains("constant -1: u32 does not hold it"));
    assert!(panics(|| t.iota(3) * 0.5).contains("constant 0.5"));
    assert!(panics(|| t.iota(4).mean()).contains("mean of u32[4]"));
    assert!(panics(|| t.scalar(2.0, DType::Bool)).contains("bool does not hold it"));
    assert!(panics(|| t.iota(u32::MAX as usize + 1)).contains("exceeds u32"));
}

#[test]
fn sizes_that_wrap_are_refused() {
    let t = Tape::default();
    let x = t.input("x", [10], DType::F32);
    for len in [usize::MAX, 3usize.wrapping_sub(5), isize::MAX as usize, 7] {
        assert!(panics(|| x.slice(0, 5, len)).contains("leave axis 0"), "{len}");
        assert!(panics(|| x.slice_step(0, 5, len, -1)).contains("leave axis 0"), "{len}");
    }
    assert_eq!(x.slice_step(0, 5, 6, -1).shape().numel(), 6);
    assert!(panics(|| t.full([1 << 40, 1 << 40], 0.0, DType::F32)).contains("larger than memory"));
}

#[test]
fn a_loss_scale_is_usable_in_f32_both_ways() {
    for scale in [0.0, -1.0, 1e50, 1e-50, f64::NAN, f64::INFINITY] {
        assert!(panics(|| LossScaler::fixed(scale)).contains("loss scale"), "{scale}");
    }
    assert_eq!(LossScaler::fixed(65536.0).scale_value(), Some(65536.0));
}

#[test]
fn parameters_of_two_types_train_together_and_apart() {
    for both in [true, false] {
        let mut store = Store::new();
        let a = store.param("a", &Array::new([3], vec![1.0f32, 2.0, 3.0]));
        let b = store.param("b", &Array::new([2], vec![4.0f64, 5.0]));
        let all = store.params();
        let stepped: ParamSet = if both { all.clone() } else { [a].into_iter().collect() };
        let adam = Adam::new(&mut store, &stepped, AdamConfig { lr: 0.1.into(), ..AdamConfig::default() });
        let mut machine = Machine::poisoned(1, store);
        let record = |t: &Tape| {
            let max_norm = t.scalar(0.5, DType::F32);
            let loss = t.param(a).square().sum().cast(DType::F64) + t.param(b).square().sum();
            let grads = loss.grad(&all).clip_by_global_norm(max_norm);
            t.tap("norm", grads.norm());
            adam.step(grads);
        };
        let step = machine.session.record(record).expect("compiles");
        let norm = machine.run(&step, &[]).tap("norm").item(0);
        assert!(abs_diff_eq!(norm, 0.5, epsilon = 1e-5), "one norm over both types: {norm}");
        let read = |machine: &mut Machine, p| machine.session.read_param(p).expect("reads").item(0);
        assert_abs_diff_eq!(read(&mut machine, a), 0.9, epsilon = 1e-4);
        let b = read(&mut machine, b);
        assert!(if both { abs_diff_eq!(b, 3.9, epsilon = 1e-4) } else { b == 4.0 }, "{both}: {b}");
    }
}

#[test]
fn a_program_over_another_store_is_refused() {
    let (store, p) = one_param();
    let t = tape(&store);
    t.tap("p", t.param(p));
    let mut machine = Machine::poisoned(1, Store::new());
    assert!(matches!(machine.session.compile(t.finish()), Err(Error::ForeignProgram { .. })));
}

#[test]
fn a_path_with_a_colon_is_refused() {
    let message = panics(|| Store::new().param("state:c", &Array::scalar(0.0)));
    assert!(message.contains("without colons"), "{message}");
}

#[test]
fn a_value_computed_once_leaves_the_taps_of_earlier_runs() {
    let mut machine = Machine::poisoned(1, Store::new());
    let session = &mut machine.session;
    let step = session.record(|t| t.tap("x", t.scalar(1.0, DType::F64))).expect("compiles");
    let runs = [0, 1].map(|_| session.run(&step, &[]).expect("runs"));
    assert_eq!(session.eval(&[], |t| t.scalar(7.0, DType::F64)).expect("runs").item(0), 7.0);
    let last = session.run(&step, &[]).expect("runs");
    let seen: Vec<u64> = session.taps().expect("delivered").iter().map(|taps| taps.run).collect();
    assert_eq!(seen, [runs[0], runs[1], last]);
}

/// The CPU, counting what is compiled or kept and not released.
struct Counting(CpuBackend, Arc<Mutex<i64>>);

impl Backend for Counting {
    fn name(&self) -> String {
        self.0.name()
    }
    fn alloc(&mut self, data: &Data) -> wgrad::Result<BufferId> {
        self.0.alloc(data)
    }
    fn write(&mut self, buffer: BufferId, data: &Data) -> wgrad::Result<()> {
        self.0.write(buffer, data)
    }
    fn read(&mut self, buffer: BufferId) -> wgrad::Result<Data> {
        self.0.read(buffer)
    }
    fn keep(&mut self, buffers: &[BufferId]) -> wgrad::Result<SnapshotId> {
        *self.1.lock().expect("not poisoned") += 1;
        self.0.keep(buffers)
    }
    fn restore(&mut self, snapshot: SnapshotId, buffers: &[BufferId]) -> wgrad::Result<()> {
        self.0.restore(snapshot, buffers)
    }
    fn forget(&mut self, snapshot: SnapshotId) {
        *self.1.lock().expect("not poisoned") -= 1;
        self.0.forget(snapshot);
    }
    fn compile(&mut self, plan: &Plan, states: &[BufferId]) -> wgrad::Result<ExecutableId> {
        *self.1.lock().expect("not poisoned") += 1;
        self.0.compile(plan, states)
    }
    fn release(&mut self, executable: ExecutableId) {
        *self.1.lock().expect("not poisoned") -= 1;
        self.0.release(executable);
    }
    fn wait(&mut self) -> wgrad::Result<()> {
        self.0.wait()
    }
    fn run(
        &mut self,
        executable: ExecutableId,
        inputs: &[&Data],
        run: u64,
        collective: &mut dyn Collective,
    ) -> wgrad::Result<()> {
        self.0.run(executable, inputs, run, collective)
    }
    fn deliveries(&mut self) -> wgrad::Result<Vec<Delivery>> {
        self.0.deliveries()
    }
}

#[test]
fn programs_are_forgotten_with_their_last_step_and_the_cache_is_bounded() {
    let live = Arc::new(Mutex::new(0));
    let backend = Counting(CpuBackend::new(1).expect("threads"), live.clone());
    let mut session = Session::new(Box::new(backend), Store::new()).expect("session");
    let count = || *live.lock().expect("not poisoned");
    for i in 0..100 {
        let step = session.record(|t| t.tap("x", t.scalar(i as f64, DType::F64))).expect("compiles");
        session.run(&step.clone(), &[]).expect("runs");
        session.eval(&[], |t| t.scalar(i as f64, DType::F64)).expect("runs");
        assert!(count() <= 3, "{} programs live", count());
    }
    fn double<'t>(t: &'t Tape, x: &Array) -> Tensor<'t> {
        t.input_like("x", x) * 2.0
    }
    for round in 0..2 {
        for n in 0..100 {
            let x = Array::zeros([n], DType::F32);
            session.run_cached("double", &[("x", &x)], |t| t.tap("y", double(t, &x))).expect("runs");
            assert!(count() <= 66, "round {round}: {} programs live", count());
        }
    }
}

#[test]
fn snapshots_are_forgotten_when_they_are_dropped() {
    let live = Arc::new(Mutex::new(0));
    let backend = Counting(CpuBackend::new(1).expect("threads"), live.clone());
    let mut store = Store::new();
    store.state("x", &Array::zeros([3], DType::F32));
    let mut session = Session::new(Box::new(backend), store).expect("session");
    let held = session.snapshot().expect("kept");
    for _ in 0..10 {
        assert_eq!(session.snapshot().expect("kept").bytes(), 12);
        session.rewound::<_, wgrad::Error>(&held, |_| Ok(())).expect("there and back");
    }
    drop(held);
    drop(session.snapshot().expect("kept"));
    drop(session.snapshot().expect("kept"));
    assert_eq!(*live.lock().expect("not poisoned"), 1, "the last is forgotten at the next");
}

#[test]
fn a_snapshot_serves_its_own_session() {
    let machine = || Machine::poisoned(1, Store::new()).session;
    let foreign = machine().snapshot().expect("kept");
    let message = panics(|| machine().restore(&foreign).expect("never"));
    assert!(message.starts_with("restore: the snapshot is another session's"), "{message}");
}

#[test]
fn operands_that_only_broadcast_are_refused_where_they_must_match() {
    let t = Tape::default();
    let x = |shape: &[usize], dtype| t.full(shape, 1.0, dtype);
    let (column, row) = (x(&[3, 1], DType::F32), x(&[3], DType::F32));
    let rows = x(&[4, 3], DType::F32);
    let uses: [(&str, &dyn Fn()); 7] = [
        ("mse of f32[3, 1] and f32[3]", &|| _ = column.mse(row)),
        ("bce_with_logits of f32[3, 1]", &|| _ = column.bce_with_logits(row, wgrad::Reduction::Mean)),
        ("layer_norm of f32[3]: weight and bias have the shape of the last 1 dimensions, not f32[4, 3]", &|| {
            _ = row.layer_norm(1, Some(rows), None, 1e-5)
        }),
        ("rms_norm of f32[3, 1]: weight and bias", &|| _ = column.rms_norm(1, Some(row), 1e-5)),
        ("running of f32[4, 3] and f32[3]", &|| _ = rows.batch_norm(None, None, 1e-5).running(rows, row, 0.1)),
        ("layer_norm of i32[3]: cast it to floats first", &|| _ = x(&[3], DType::I32).layer_norm(1, None, None, 1e-5)),
        ("avg_pool2d of u32", &|| _ = x(&[1, 1, 2, 2], DType::U32).avg_pool2d(&wgrad::Pool2d::square(2), true)),
    ];
    for (start, misuse) in uses {
        let message = panics(misuse);
        assert!(message.starts_with(start) && message.contains("misuse.rs"), "{message}");
    }
    let empty = wgrad::Pool2d { padding: [1, 1], ..wgrad::Pool2d::square(2) };
    assert!(panics(|| x(&[1, 1, 0, 2], DType::F32).max_pool2d(&empty)).contains("windows that fit"));
}
