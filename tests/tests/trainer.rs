//! The trainer: what it records is what one would write by hand, windows are batches, and what a step did is told.

use approx::{abs_diff_eq, assert_abs_diff_eq, relative_eq};
use proptest::prelude::*;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use wgrad::{
    Array, Collective, CrossEntropy, DType, Data, InProcess, LossScaler, Optimizer, Session, Store, Tape, Weighting,
    f16,
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Builder, Init, Linear, Loss, LossScale, Precision, Trainer, TrainerConfig, Update, checkpoint,
    optim::{AdamW, AdamWConfig, Sgd, SgdConfig},
};
use wgrad_tests::same_bits;

const INPUTS: usize = 5;
const CLASSES: usize = 3;

#[derive(Clone)]
struct Mlp {
    first: Linear,
    second: Linear,
}

impl Mlp {
    fn new(store: &mut Store, dtype: DType) -> Self {
        let mut b = Builder::new(store, 3).with_dtype(dtype);
        let init = Init::XavierUniform { gain: 1.0 };
        Self {
            first: Linear::new(b.at("first"), INPUTS, 4, &init),
            second: Linear::new(b.at("second"), 4, CLASSES, &init),
        }
    }

    fn loss<'t>(&self, x: wgrad::Tensor<'t>, y: wgrad::Tensor<'t>) -> wgrad::Tensor<'t> {
        self.second.forward(self.first.forward(x).tanh()).cross_entropy(y)
    }
}

/// A session in training.
struct Run {
    trainer: Trainer,
    session: Session,
}

impl Run {
    fn new(config: TrainerConfig) -> Self {
        Self::of(config, DType::F32, |store, params| {
            Box::new(AdamW::new(store, params, AdamWConfig { lr: 0.02.into(), ..AdamWConfig::default() }))
        })
    }

    fn of(
        config: TrainerConfig,
        dtype: DType,
        optimizer: impl FnOnce(&mut Store, &wgrad::ParamSet) -> Box<dyn Optimizer>,
    ) -> Self {
        let mut store = Store::new();
        let model = Mlp::new(&mut store, dtype);
        let params = store.params();
        let optimizer = optimizer(&mut store, &params);
        let trainer = Trainer::new(&mut store, &params, optimizer, config, move |batch| {
            model.loss(batch.get("x"), batch.get("y")).into()
        });
        Self { trainer, session: session(store) }
    }

    fn step(&mut self, (x, y): &(Array, Array)) -> bool {
        self.trainer.step(&mut self.session, &[("x", x), ("y", y)]).unwrap()
    }

    fn updates(&mut self) -> Vec<Update> {
        self.trainer.updates(&self.session.taps().unwrap())
    }

    fn params(&mut self) -> Vec<f64> {
        params(&mut self.session)
    }

    fn states(&mut self) -> Vec<Array> {
        let layout = self.session.layout().clone();
        layout.states().map(|(state, _)| self.session.read(state).unwrap()).collect()
    }
}

fn session(store: Store) -> Session {
    Session::new(Box::new(CpuBackend::new(1).unwrap()), store).unwrap()
}

fn params(session: &mut Session) -> Vec<f64> {
    let layout = session.layout().clone();
    let arenas: Vec<_> = layout.states().map(|(state, _)| state).filter(|state| layout.is_arena(*state)).collect();
    arenas.into_iter().flat_map(|arena| session.read(arena).unwrap().to_f64()).collect()
}

/// Samples `from ..`, as many as are asked for: the same sample has the same values.
fn samples(from: usize, count: usize, dtype: DType) -> (Array, Array) {
    let value = |i: usize| ((i * 2654435761 + 12345) % 10007) as f64 / 5003.0 - 1.0;
    let x: Vec<f64> = (from * INPUTS..(from + count) * INPUTS).map(value).collect();
    let y: Vec<u32> = (from..from + count).map(|i| (i * i % CLASSES) as u32).collect();
    (Array::new([count, INPUTS], Data::F64(x)).cast(dtype), Array::new([count], y))
}

fn batch(from: usize, count: usize) -> (Array, Array) {
    samples(from, count, DType::F32)
}

/// What a panic says.
fn message_of(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("this must panic");
    panic
        .downcast_ref::<String>()
        .cloned()
        .or(panic.downcast_ref::<&str>().map(ToString::to_string))
        .expect("a message")
}

#[test]
fn it_records_what_one_would_write_by_hand() {
    let config = TrainerConfig {
        clip_norm: Some(0.3),
        clip_value: Some(0.2),
        agc: Some(0.1),
        centralize: true,
        give_up: None,
        ..TrainerConfig::default()
    };
    let mut trained = Run::new(config);
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    let all = store.params();
    let adamw = AdamW::new(&mut store, &all, AdamWConfig { lr: 0.02.into(), ..AdamWConfig::default() });
    let mut by_hand = session(store);
    let (x, y) = batch(0, 6);
    let step = by_hand.record(|t| {
        let loss = model.loss(t.input_like("x", &x), t.input_like("y", &y));
        let g = LossScaler::none().scale(loss).grad(&all).unscale(&LossScaler::none());
        adamw.step(g.centralize().agc(0.1).clip_by_global_norm(0.3).clip_by_value(0.2));
    });
    let step = step.unwrap();
    for i in 0..5 {
        let (x, y) = batch(6 * i, 6);
        assert!(trained.step(&(x.clone(), y.clone())), "each micro-batch is an update");
        by_hand.run(&step, &[("x", &x), ("y", &y)]).unwrap();
    }
    assert_eq!(trained.params(), params(&mut by_hand));
    let updates = trained.updates();
    assert_eq!(updates.len(), 5);
    assert!(updates.iter().all(|u| u.taken && u.clipped.is_some() && u.loss_scale == 1.0 && u.grad_norm > 0.0));
}

#[test]
fn every_pass_is_recorded_in_the_order_that_is_right() {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    let all = store.params();
    let sgd = Sgd::new(&mut store, &all, SgdConfig::default());
    let config = TrainerConfig {
        accumulate: 4,
        precision: Precision::F16,
        noise: Some(wgrad::Noise::fixed(1e-3)),
        centralize: true,
        agc: Some(0.01),
        clip_norm: Some(1.0),
        clip_value: Some(0.5),
        ema: Some(0.99),
        ..TrainerConfig::default()
    };
    let trainer =
        Trainer::new(&mut store, &all, sgd, config, move |batch| model.loss(batch.get("x"), batch.get("y")).into());
    let layout = Arc::new(store.layout().clone());
    let names = |record: &dyn Fn(&Tape)| {
        let tape = Tape::new(layout.clone());
        record(&tape);
        tape.finish().passes().iter().map(|pass| pass.name).collect::<Vec<_>>()
    };
    let (x, y) = batch(0, 2);
    let micro_batch = names(&|tape| trainer.record_micro_batch(tape, &[("x", &x), ("y", &y)]));
    assert_eq!(micro_batch, ["check_loss", "accumulate"]);
    let update = names(&|tape| trainer.record_update(tape, false));
    let order = [
        "take_accumulated",
        "unscale",
        "skip_if_not_finite",
        "add_noise",
        "centralize",
        "agc",
        "clip_by_global_norm",
        "clip_by_value",
        "sgd",
        "ema",
        "scaler_update",
    ];
    assert_eq!(update, order);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Equal micro-batches, some of them in a window that the data cuts short: as batches of their sizes.
    #[test]
    fn micro_batches_are_a_batch(accumulate in 2..5usize, size in 1..5usize, short in 0..3usize, sizes in 1..4usize) {
        let sgd = |store: &mut Store, params: &wgrad::ParamSet| -> Box<dyn Optimizer> {
            Box::new(Sgd::new(store, params, SgdConfig { lr: 0.1.into(), momentum: 0.9, ..SgdConfig::default() }))
        };
        let config = |accumulate| TrainerConfig { accumulate, clip_norm: Some(0.5), ..TrainerConfig::default() };
        let mut parts = Run::of(config(accumulate), DType::F64, sgd);
        let mut whole = Run::of(config(1), DType::F64, sgd);
        let mut from = 0;
        let mut updates = 0;
        for window in std::iter::repeat_n(accumulate, sizes).chain((short > 0).then_some(short.min(accumulate - 1))) {
            for i in 0..window {
                let ended = parts.step(&samples(from + i * size, size, DType::F64));
                prop_assert_eq!(ended, i + 1 == accumulate);
            }
            whole.step(&samples(from, window * size, DType::F64));
            from += window * size;
            updates += 1;
        }
        prop_assert_eq!(parts.trainer.flush(&mut parts.session).unwrap(), short > 0);
        prop_assert!(!parts.trainer.flush(&mut parts.session).unwrap(), "an empty window is no update");
        let (a, b) = (parts.params(), whole.params());
        for (a, b) in a.iter().zip(&b) {
            prop_assert!(relative_eq!(a, b, epsilon = 1e-12, max_relative = 1e-12), "{a} and {b}");
        }
        let (a, b) = (parts.updates(), whole.updates());
        prop_assert_eq!((a.len(), b.len()), (updates, updates));
        for (a, b) in a.iter().zip(&b) {
            prop_assert!(relative_eq!(a.loss, b.loss, epsilon = 0.0, max_relative = 1e-6), "the mean loss of a window");
            prop_assert!(relative_eq!(a.grad_norm, b.grad_norm, epsilon = 0.0, max_relative = 1e-9));
            prop_assert_eq!(a.clipped, b.clipped);
        }
    }
}

#[test]
fn token_weights_make_micro_batches_of_any_length_one_batch() {
    const IGNORED: i64 = 99;
    let run = |accumulate: usize, batches: &[(Array, Array)]| {
        let mut store = Store::new();
        let model = Mlp::new(&mut store, DType::F64);
        let all = store.params();
        let sgd = Sgd::new(&mut store, &all, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
        let config = TrainerConfig { accumulate, weighting: Weighting::TokenWeighted, ..TrainerConfig::default() };
        let mut trainer = Trainer::new(&mut store, &all, sgd, config, move |batch| {
            let (x, y) = (batch.get("x"), batch.get("y"));
            let logits = model.second.forward(model.first.forward(x).tanh());
            let options = CrossEntropy { ignore_index: Some(IGNORED), ..CrossEntropy::default() };
            let tokens = y.not_equals(IGNORED as f64).cast(DType::U32).sum();
            Loss::over_tokens(logits.cross_entropy_with(y, &options), tokens)
        });
        let mut session = session(store);
        for (x, y) in batches {
            trainer.step(&mut session, &[("x", x), ("y", y)]).unwrap();
        }
        let updates = trainer.updates(&session.taps().unwrap());
        assert_eq!(updates.len(), 1);
        (params(&mut session), updates[0].clone())
    };
    // Two of four, three of three, and none of two: the mean of nothing is NaN, and spoils nothing.
    let targets = [vec![1, 99, 0, 99], vec![2, 1, 0], vec![99, 99]];
    let mut from = 0;
    let parts: Vec<(Array, Array)> = targets
        .iter()
        .map(|y| {
            let (x, _) = samples(from, y.len(), DType::F64);
            from += y.len();
            (x, Array::new([y.len()], y.clone()))
        })
        .collect();
    let whole = (samples(0, from, DType::F64).0, Array::new([from], targets.concat()));
    let ((a, parts), (b, whole)) = (run(3, &parts), run(1, &[whole]));
    assert_abs_diff_eq!(a[..], b[..], epsilon = 1e-12);
    assert!(abs_diff_eq!(parts.loss, whole.loss, epsilon = 1e-6) && parts.taken && whole.taken, "{parts:?} {whole:?}");
}

#[test]
fn half_precision_trains_and_a_bad_batch_is_skipped() {
    let config = TrainerConfig {
        precision: Precision::F16,
        clip_norm: Some(1.0),
        check_loss: false,
        ..TrainerConfig::default()
    };
    let mut run = Run::new(config);
    for i in 0..60 {
        run.step(&batch(i % 4 * 8, 8));
    }
    let updates = run.updates();
    assert!(updates.iter().all(|u| u.taken && u.loss_scale == 65536.0), "nothing overflows");
    let (first, last) = (updates[0].loss, updates[59].loss);
    assert!(last < 0.6 * first, "from {first} to {last}");
    let before = run.params();
    let (x, y) = batch(0, 8);
    let bad = Array::new(x.shape(), Data::F32(x.to_f64().iter().map(|v| *v as f32 * f32::INFINITY).collect()));
    run.step(&(bad, y));
    let skipped = run.updates().remove(0);
    assert!(!skipped.taken && !skipped.grad_norm.is_finite() && skipped.loss_scale == 65536.0, "{skipped:?}");
    assert_eq!(run.params(), before);
    run.step(&batch(0, 8));
    let next = run.updates().remove(0);
    assert!(next.taken && next.loss_scale == 32768.0, "the scale has backed off: {next:?}");
}

#[test]
fn a_loss_that_is_not_finite_is_an_error_and_spoils_its_window() {
    for accumulate in [1, 2] {
        let mut run = Run::new(TrainerConfig { accumulate, ..TrainerConfig::default() });
        let before = run.params();
        let (x, y) = batch(0, 4);
        let bad = Array::new(x.shape(), Data::F32(vec![f32::NAN; x.shape().numel()]));
        run.trainer.step(&mut run.session, &[("x", &bad), ("y", &y)]).unwrap();
        let error = run.session.taps().unwrap_err().to_string();
        assert!(error.contains("P37") && error.contains("trainer.rs"), "{error}");
        (1..accumulate).for_each(|i| assert!(run.step(&batch(4 * i, 4)), "the run can go on"));
        assert_eq!(run.params(), before, "{accumulate} micro-batches");
        (0..accumulate).for_each(|i| assert_eq!(run.step(&batch(4 * i, 4)), i + 1 == accumulate));
        assert_ne!(run.params(), before);
        assert!(run.updates().last().unwrap().taken);
    }
}

/// The error of a micro-batch may arrive when its window is full and not yet closed: the next step closes it first.
#[test]
fn an_error_before_the_update_does_not_block_the_window() {
    for bad in 0..2 {
        let mut run = Run::new(TrainerConfig { accumulate: 2, ..TrainerConfig::default() });
        let before = run.params();
        let mut told = 0;
        for i in 0..2 {
            let (mut x, y) = batch(4 * i, 4);
            if i == bad {
                x = Array::new(x.shape(), Data::F32(vec![f32::NAN; x.shape().numel()]));
            }
            told += usize::from(run.trainer.step(&mut run.session, &[("x", &x), ("y", &y)]).is_err());
            told += usize::from(run.session.wait().is_err());
        }
        assert!(told > 0, "micro-batch {bad}");
        // One that was refused is given again, and another window follows.
        let closed = (0..3).filter(|i| run.step(&batch(4 * i, 4))).count();
        assert!(closed >= 1, "micro-batch {bad}: {closed} windows were closed");
        assert_ne!(run.params(), before);
    }
}

/// The update steps every parameter that a micro-batch has reached, whichever was recorded last.
#[test]
fn a_micro_batch_that_reaches_other_parameters_joins_the_update() {
    let mut store = Store::new();
    let [one, two] = [0, 1].map(|i| {
        let mut b = Builder::new(&mut store, i);
        Linear::new(b.at(&format!("head{i}")), INPUTS, CLASSES, &Init::XavierUniform { gain: 1.0 })
    });
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let config = TrainerConfig { accumulate: 2, ..TrainerConfig::default() };
    let (a, b) = (one.weight, two.weight);
    // Which head it is for is told by the number of samples.
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        let x = batch.get("x");
        let head = if x.shape()[0] == 4 { &one } else { &two };
        head.forward(x).cross_entropy(batch.get("y")).into()
    });
    let mut session = session(store);
    let mut step = |session: &mut Session, count| {
        let (x, y) = batch(0, count);
        trainer.step(session, &[("x", &x), ("y", &y)]).unwrap()
    };
    for _ in 0..2 {
        step(&mut session, 4);
    }
    let [a_before, b_before] = [a, b].map(|p| session.read_param(p).unwrap());
    step(&mut session, 4);
    assert!(step(&mut session, 3));
    assert!(!same_bits(&session.read_param(a).unwrap(), &a_before));
    assert!(!same_bits(&session.read_param(b).unwrap(), &b_before), "the second head has a gradient, and stood still");
}

#[test]
fn a_run_resumes_in_the_middle_of_a_window_bit_for_bit() {
    let config = || TrainerConfig { accumulate: 3, ema: Some(0.9), clip_norm: Some(0.2), ..TrainerConfig::default() };
    let file = std::env::temp_dir().join(format!("wgrad-trainer-{}.safetensors", std::process::id()));
    let mut whole = Run::new(config());
    for i in 0..4 {
        whole.step(&batch(3 * i, 3));
    }
    checkpoint::save(&mut whole.session, &file, &Default::default()).unwrap();
    let mut resumed = Run::new(config());
    resumed.step(&batch(100, 3));
    checkpoint::load(&mut resumed.session, &file).unwrap();
    resumed.trainer.resume();
    std::fs::remove_file(&file).unwrap();
    for i in 4..9 {
        let (a, b) = (whole.step(&batch(3 * i, 3)), resumed.step(&batch(3 * i, 3)));
        assert_eq!((a, b), (i % 3 == 2, i % 3 == 2));
    }
    let (a, b) = (whole.states(), resumed.states());
    assert!(a.iter().zip(&b).all(|(a, b)| same_bits(a, b)));
}

#[test]
fn ranks_are_micro_batches() {
    let config = |accumulate| TrainerConfig { accumulate, clip_norm: Some(0.3), ..TrainerConfig::default() };
    let mut alone = Run::new(config(4));
    for i in 0..12 {
        alone.step(&batch(4 * i, 4));
    }
    let train = |rank: InProcess| {
        std::thread::spawn(move || {
            let at = rank.rank();
            let mut run = Run::new(config(2));
            run.session = run.session.with_collective(Box::new(rank));
            // The windows hold the same samples: the ranks take turns at them.
            for i in 0..6 {
                run.step(&batch(4 * (2 * i + at), 4));
            }
            (run.params(), run.updates())
        })
    };
    let ranks: Vec<_> = InProcess::world(2).into_iter().map(train).collect();
    let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    assert_eq!(ranks[0].0, ranks[1].0, "the ranks stay together, bit for bit");
    let (want, updates) = (alone.params(), alone.updates());
    assert_abs_diff_eq!(ranks[0].0[..], want[..], epsilon = 1e-5);
    for ((a, b), want) in ranks[0].1.iter().zip(&ranks[1].1).zip(&updates) {
        assert_eq!((a.loss, a.grad_norm, a.taken), (b.loss, b.grad_norm, b.taken));
        assert_abs_diff_eq!([a.loss, a.grad_norm][..], [want.loss, want.grad_norm][..], epsilon = 1e-6);
    }
    assert_eq!((ranks[0].1.len(), updates.len()), (3, 3));
}

#[test]
fn two_trainers_share_a_session() {
    let mut store = Store::new();
    let [one, two] = [0, 1].map(|i| {
        let mut b = Builder::new(&mut store, i);
        Linear::new(b.at(&format!("model{i}")), INPUTS, CLASSES, &Init::XavierUniform { gain: 1.0 })
    });
    let mut trainer = |model: Linear, name: &str, accumulate| {
        let own = [Some(model.weight), model.bias].into_iter().flatten().collect();
        let sgd = Sgd::new(&mut store, &own, SgdConfig { name: format!("sgd-{name}"), ..SgdConfig::default() });
        let config = TrainerConfig { name: name.into(), accumulate, ..TrainerConfig::default() };
        Trainer::new(&mut store, &own, sgd, config, move |batch| {
            model.forward(batch.get("x")).cross_entropy(batch.get("y")).into()
        })
    };
    let (mut a, mut b) = (trainer(one, "a", 1), trainer(two, "b", 2));
    let mut session = session(store);
    let (x, y) = batch(0, 4);
    for _ in 0..4 {
        a.step(&mut session, &[("x", &x), ("y", &y)]).unwrap();
        b.step(&mut session, &[("x", &x), ("y", &y)]).unwrap();
    }
    let taps = session.taps().unwrap();
    assert_eq!((a.updates(&taps).len(), b.updates(&taps).len()), (4, 2), "each knows its own");
}

#[test]
fn lints_name_the_line_that_made_the_trainer() {
    for accumulate in [1, 2] {
        let config = TrainerConfig { accumulate, clip_value: Some(1.0), ..TrainerConfig::default() };
        let mut run = Run::new(config);
        (0..accumulate).for_each(|i| assert_eq!(run.step(&batch(4 * i, 4)), i + 1 == accumulate));
        let lints = run.trainer.lints();
        let alone =
            lints.iter().find(|lint| lint.pitfall == wgrad::Pitfall::ClipByValueAlone).expect("a clip by value alone");
        assert_eq!(alone.site.unwrap().file(), file!(), "{alone}");
    }
}

#[test]
fn misuse_is_named() {
    let refused = |config: TrainerConfig| message_of(|| drop(Run::new(config)));
    let message = refused(TrainerConfig { accumulate: 0, ..TrainerConfig::default() });
    assert_eq!(message, "trainer: accumulate is 0, and must be at least 1");
    let message = refused(TrainerConfig { ema: Some(1.0), ..TrainerConfig::default() });
    assert!(message.contains("decay is 1, and must be in [0, 1)"), "{message}");
    let message = refused(TrainerConfig { loss_scale: LossScale::Fixed(0.0), ..TrainerConfig::default() });
    assert!(message.contains("loss scale: 0"), "{message}");
    let mut run = Run::new(TrainerConfig::default());
    let (x, _) = batch(0, 4);
    let message = message_of(|| drop(run.trainer.step(&mut run.session, &[("x", &x)])));
    assert!(message.contains("the micro-batch has no input \"y\": it has x"), "{message}");
    let mut run = Run::new(TrainerConfig { weighting: Weighting::TokenWeighted, ..TrainerConfig::default() });
    let (x, y) = batch(0, 4);
    let message = message_of(|| drop(run.trainer.step(&mut run.session, &[("x", &x), ("y", &y)])));
    assert!(message.contains("Loss::over_tokens"), "{message}");
    let wrong = Array::new([4], vec![f16::ONE; 4]);
    let message = message_of(|| drop(run.trainer.step(&mut run.session, &[("x", &wrong), ("y", &y)])));
    assert!(message.contains("linear of f16[4] and f32[4, 5]"), "{message}");
}
