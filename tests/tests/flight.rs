//! The flight recorder: it goes back, makes the same steps again bit for bit, names where a run broke, and leaves no trace.

use wgrad::{Array, Backend, DType, DynamicScale, Growth, Phase, Rng, Session, Store};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Activation, Builder, Dropout, FlightConfig, FlightRecorder, Init, Linear, LossScale, Mlp, MlpConfig, MonitorConfig,
    NormKind, Part, Precision, Trainer, TrainerConfig, Update,
    optim::{AdamW, AdamWConfig, Sgd, SgdConfig},
};
use wgrad_tests::gpu;
use wgrad_wgpu::WgpuBackend;

const MICRO_BATCHES: usize = 2;
const ROWS: usize = 8;
const INPUTS: usize = 6;

/// A run with all that a state may hold: dropout, running statistics, a loss scale, windows, an average.
struct Run {
    trainer: Trainer,
    session: Session,
    recorder: FlightRecorder,
    updates: Vec<Update>,
    made: usize,
}

/// An odd value at one micro-batch, among numbers of about 1.
type Odd = Option<(usize, f32)>;

fn batch(number: usize, odd: Odd) -> [(&'static str, Array); 2] {
    let value = |i: usize| ((number * ROWS * INPUTS + i) as f32 * 0.37).sin();
    let mut x: Vec<f32> = (0..ROWS * INPUTS).map(value).collect();
    if let Some((_, value)) = odd.filter(|(at, _)| *at == number) {
        x[7] = value;
    }
    let y: Vec<u32> = (0..ROWS).map(|i| ((number + i) % 4) as u32).collect();
    [("x", Array::new([ROWS, INPUTS], x)), ("y", Array::new([ROWS], y))]
}

impl Run {
    fn new(backend: Box<dyn Backend>, precision: Precision, flight: FlightConfig) -> Self {
        let mut store = Store::new();
        let dropout = Dropout::new(0.2, Rng::new(&mut store, "dropout", 3));
        let config = MlpConfig {
            inputs: INPUTS,
            width: 10,
            depth: 2,
            outputs: 4,
            activation: Activation::Tanh,
            norm: NormKind::BATCH,
            dropout: Some(dropout),
            ..MlpConfig::default()
        };
        let model = Mlp::new(Builder::new(&mut store, 5), &config);
        let params = store.params();
        let adamw = AdamW::new(&mut store, &params, AdamWConfig { lr: 1e-2.into(), ..AdamWConfig::default() });
        // The first updates overflow in half precision, and are skipped until the scale is lower.
        let init = if precision == Precision::F16 { 2f64.powi(24) } else { 1024.0 };
        let config = TrainerConfig {
            accumulate: MICRO_BATCHES,
            precision,
            loss_scale: LossScale::Dynamic(DynamicScale { init, ..DynamicScale::default() }),
            check_loss: false,
            ema: Some(0.9),
            monitor: Some(MonitorConfig { every: 3, ..MonitorConfig::default() }),
            ..TrainerConfig::default()
        };
        let trainer = Trainer::new(&mut store, &params, adamw, config, move |batch| {
            dropout.rng().advance(batch.tape());
            let x = batch.get("x");
            // A number that is too large for its square, and no other, is where this overflows.
            let loss = model.forward(x, true).cross_entropy(batch.get("y"));
            (loss + x.square().mean() * 0.01).into()
        });
        let session = Session::new(backend, store).expect("there is room");
        Self { trainer, session, recorder: FlightRecorder::new(flight), updates: vec![], made: 0 }
    }

    fn go(&mut self, updates: usize, odd: Odd) {
        for _ in 0..updates * MICRO_BATCHES {
            let batch = batch(self.made, odd);
            let named = [("x", &batch[0].1), ("y", &batch[1].1)];
            self.recorder.step(&mut self.trainer, &mut self.session, &named).expect("it runs");
            self.made += 1;
            self.session.wait().expect("it ran");
            self.updates.extend(self.trainer.updates(&self.session.taps().expect("they have arrived")));
        }
    }

    fn states(&mut self) -> Vec<(String, Vec<u64>)> {
        let layout = self.session.layout().clone();
        let mut bits = |id| self.session.read(id).expect("readable").to_f64().into_iter().map(f64::to_bits).collect();
        layout.states().map(|(id, decl)| (decl.name.clone(), bits(id))).collect()
    }
}

fn bits(updates: &[Update]) -> Vec<[u64; 4]> {
    let of = |u: &Update| [u.loss.to_bits(), u.grad_norm.to_bits(), u.loss_scale.to_bits(), u64::from(u.taken)];
    updates.iter().map(of).collect()
}

fn cpu() -> Box<dyn Backend> {
    Box::new(CpuBackend::poisoned(2).expect("threads"))
}

fn devices() -> Vec<Box<dyn Backend>> {
    let on_gpu = gpu().map(|gpu| Box::new(WgpuBackend::on(gpu).expect("it is there").poisoned()) as Box<dyn Backend>);
    [Some(cpu()), on_gpu].into_iter().flatten().collect()
}

const FLIGHT: FlightConfig = FlightConfig { every: 3, keep: 2 };

/// Goes on to the update before the odd batch, breaks, and looks back.
fn broken_by(backend: Box<dyn Backend>, precision: Precision, value: f32, what: &str, is_produced: bool) {
    let mut run = Run::new(backend, precision, FLIGHT);
    // The second micro-batch of update 7, between the snapshots of 6 and 9.
    let odd = Some((7 * MICRO_BATCHES + 1, value));
    run.go(9, odd);
    let sound = |u: &Update| u.loss.is_finite() && u.taken;
    let unsound: Vec<usize> = (0..9).filter(|&at| !run.updates[at].loss.is_finite()).collect();
    assert_eq!(unsound, [7], "{:?}", run.updates);
    assert!(sound(&run.updates[8]), "the run has recovered");

    let before = run.states();
    let replay = run.recorder.replay(&mut run.trainer, &mut run.session).expect("it can be replayed");
    assert_eq!((replay.from, replay.broken), (3, Some(7)), "{replay}");
    assert_eq!(bits(&replay.updates), bits(&run.updates[3..]), "the same steps give the same bits");
    let failure = replay.failure.expect("there is a value that is not finite");
    assert_eq!((failure.update, failure.part), (7, Part::MicroBatch(1)));
    let origin = &failure.origin;
    assert!(origin.place.what.starts_with(what) && origin.place.phase == Phase::Forward, "{origin}");
    assert_eq!(origin.is_produced(), is_produced, "{origin}");
    if is_produced {
        assert!(origin.place.site.file().ends_with("flight.rs"), "{origin}");
    }
    assert!(run.states() == before, "the present is what it was");

    // And the run goes on as one that nobody has looked back at.
    run.go(2, odd);
    let mut other = Run::new(cpu(), precision, FLIGHT);
    if run.session.device() == other.session.device() {
        other.go(11, odd);
        assert_eq!(bits(&run.updates), bits(&other.updates));
        assert!(run.states() == other.states());
    }
}

#[test]
fn data_that_is_not_finite_is_named() {
    for backend in devices() {
        broken_by(backend, Precision::F32, f32::NAN, "input \"x\"", false);
    }
}

#[test]
fn an_operation_that_overflows_is_named() {
    for backend in devices() {
        broken_by(backend, Precision::F32, 1e30, "mul", true);
    }
}

#[test]
fn updates_that_a_loss_scale_skips_are_no_failure() {
    for backend in devices() {
        let mut run = Run::new(backend, Precision::F16, FlightConfig { every: 40, keep: 1 });
        run.go(20, None);
        assert!(!run.updates[0].taken && run.updates[19].taken, "{:?}", run.updates);
        let replay = run.recorder.replay(&mut run.trainer, &mut run.session).expect("it can be replayed");
        assert_eq!(bits(&replay.updates), bits(&run.updates));
        assert_eq!((replay.broken, replay.failure), (None, None));
    }
}

#[test]
fn memory_is_bounded_and_told() {
    let mut run = Run::new(cpu(), Precision::F32, FLIGHT);
    let states: u64 =
        run.session.layout().states().map(|(_, decl)| (decl.shape.numel() * decl.dtype.size()) as u64).sum();
    let of_batch = (ROWS * INPUTS * 4 + ROWS * 4) as u64;
    for updates in 1..=20usize {
        run.go(1, None);
        let memory = run.recorder.memory();
        assert_eq!(memory.device, states * 2.min(updates.div_ceil(3)) as u64, "after {updates}");
        // The newest snapshot is of before update 3 n, and the one before it of three updates earlier.
        let since = if updates <= 3 { updates } else { (updates - 1) % 3 + 1 + 3 };
        assert_eq!(memory.host, of_batch * (since * MICRO_BATCHES) as u64, "after {updates}");
    }
}

/// A run with a state of the model's own that grows until it is infinite: at the second micro-batch, or at the end of the
/// second window. What reads it is NaN from then on.
fn grown(updates: usize, in_update: bool) -> (Trainer, Session, FlightRecorder) {
    let mut store = Store::new();
    let model = Linear::new(Builder::new(&mut store, 0).at("model"), 2, 2, &Init::Constant(0.5));
    let grows = store.state("grows", &Array::new([], vec![1f32]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.01.into(), ..SgdConfig::default() });
    let config = TrainerConfig { accumulate: MICRO_BATCHES, give_up: Some(2), ..TrainerConfig::default() };
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        let value = batch.tape().state(grows);
        if !in_update {
            batch.tape().assign(grows, value * 1e20);
        }
        (model.forward(batch.get("x")).mean() + value * 0.0).into()
    });
    if in_update {
        trainer = trainer.with_passes(move |grads| {
            let value = grads.tape().state(grows);
            grads.tape().assign(grows, value * 1e20);
            grads
        });
    }
    let mut session = Session::new(cpu(), store).expect("there is room");
    let mut recorder = FlightRecorder::new(FLIGHT);
    let x = Array::new([3, 2], vec![1f32, 0.0, 2.0, 0.0, 3.0, 0.0]);
    for _ in 0..updates * MICRO_BATCHES {
        // A late error comes once; the run goes on.
        if let Err(error) = recorder.step(&mut trainer, &mut session, &[("x", &x)]) {
            assert!(matches!(error, wgrad::Error::Late { .. }), "{error}");
        }
    }
    (trainer, session, recorder)
}

#[test]
fn growth_that_stays_finite_is_found_where_it_begins() {
    for backend in devices() {
        let mut run = Run::new(backend, Precision::F32, FlightConfig { every: 12, keep: 1 });
        run.go(10, Some((15, 1e4)));
        let replay = run.recorder.replay(&mut run.trainer, &mut run.session).expect("it can be replayed");
        let spike = replay.spike.as_ref().expect("there is one");
        assert!((spike.update, spike.part) == (7, Part::MicroBatch(1)) && spike.since < 7, "{replay}");
        // The seventh number of 48 is 1e4, and the others are about 0.7.
        let Growth { at, operands, chain, .. } = &spike.growth;
        assert!(at.place.what == "input \"x\"" && operands.is_empty() && chain.len() > 1, "{replay}");
        assert!((at.now - 1e4 / 48f64.sqrt()).abs() < 1.0 && (0.5..1.0).contains(&at.before), "{replay}");
        let states = run.states();
        run.recorder.replay(&mut run.trainer, &mut run.session).expect("it can be replayed");
        assert_eq!(states, run.states());
        // Beside it nothing has grown.
        run.go(20, None);
        let replay = run.recorder.replay(&mut run.trainer, &mut run.session).expect("it can be replayed");
        assert!(replay.spike.is_none() && replay.to_string().ends_with("All of them are sound."), "{replay}");
    }
}

#[test]
fn growth_is_of_the_operation_that_makes_it_or_of_the_parameters_that_have_it() {
    // Numbers that grow a little, whose exponential grows much; and weights that an update has made large.
    let run = |large: bool, rate: f64| {
        let mut store = Store::new();
        let model = Linear::new(Builder::new(&mut store, 0).at("model"), 2, 2, &Init::Constant(0.5));
        let params = store.params();
        let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: rate.into(), ..SgdConfig::default() });
        let mut trainer = Trainer::new(&mut store, &params, sgd, TrainerConfig::default(), move |batch| {
            let z = model.forward(batch.get("x"));
            (if large { z.exp() } else { z.abs() }).mean().into()
        });
        let mut session = Session::new(cpu(), store).expect("there is room");
        let mut recorder = FlightRecorder::new(FlightConfig { every: 10, keep: 1 });
        for update in 0..6 {
            let by = if large && update == 4 { 20.0 } else { 1.0 };
            let x = Array::new([1, 2], vec![0.8 * by, 0.2f32 * by]);
            recorder.step(&mut trainer, &mut session, &[("x", &x)]).expect("it runs");
        }
        let replay = recorder.replay(&mut trainer, &mut session).expect("it can be replayed");
        replay.spike.unwrap_or_else(|| panic!("there is none: {:?}", replay.updates))
    };
    let made = run(true, 1e-9);
    assert!(made.update == 4 && made.growth.at.place.what == "exp", "{made}");
    assert!(made.growth.operands.len() == 1 && made.growth.params.is_empty(), "{made}");
    // The bias is 0 at first, and of that there is no multiple.
    let given = run(false, 100.0);
    assert!(given.update % 2 == 1 && given.growth.operands.is_empty(), "{given}");
    assert_eq!(given.growth.params, ["model/weight"], "{given}");
}

#[test]
fn what_an_update_leaves_to_the_next_is_found_where_it_was_made() {
    for (in_update, update, part) in [(false, 0, Part::MicroBatch(1)), (true, 1, Part::Update)] {
        let (mut trainer, mut session, recorder) = grown(4, in_update);
        let replay = recorder.replay(&mut trainer, &mut session).expect("it can be replayed");
        // The loss of that update is finite; that of the next is not.
        assert_eq!((replay.from, replay.broken), (0, Some(update + 1)), "{replay}");
        let failure = replay.failure.expect("there is one");
        assert_eq!((failure.update, failure.part), (update, part), "{}", failure.origin);
        assert!(failure.origin.is_produced() && failure.origin.place.what == "mul", "{}", failure.origin);
    }
}

#[test]
fn what_broke_before_the_oldest_snapshot_came_with_a_state() {
    let (mut trainer, mut session, recorder) = grown(24, false);
    let replay = recorder.replay(&mut trainer, &mut session).expect("it can be replayed");
    assert!(replay.from > 0 && replay.broken == Some(replay.from), "{replay}");
    let origin = replay.failure.expect("there is one").origin;
    assert!(!origin.is_produced() && origin.place.what == "state \"grows\"", "{origin}");
}

#[test]
fn a_snapshot_brings_back_every_state_and_the_taps_of_before_stay() {
    for backend in devices() {
        let mut store = Store::new();
        let types: Vec<_> = [DType::F32, DType::F16, DType::U32, DType::I32]
            .into_iter()
            .flat_map(|t| [(t, 0), (t, 1), (t, 5000)])
            .collect();
        let value = |dtype, n: usize, by: usize| {
            Array::new([n], wgrad::Data::from_f64(dtype, &(0..n).map(|i| ((i + by) % 97) as f64).collect::<Vec<_>>()))
        };
        let states: Vec<_> =
            types.iter().map(|&(dtype, n)| store.state(&format!("{dtype:?} {n}"), &value(dtype, n, 0))).collect();
        let mut session = Session::new(backend, store).expect("there is room");
        let step = session.record(|t| {
            for (state, (dtype, _)) in states.iter().zip(&types) {
                let x = t.state(*state);
                if *dtype == DType::F32 {
                    t.assign(*state, x + 1.0);
                }
            }
            t.tap("one", t.scalar(1.0, DType::F32));
        });
        let step = step.expect("it compiles");
        let all = |session: &mut Session| -> Vec<Array> {
            states.iter().map(|state| session.read(*state).expect("readable")).collect()
        };
        let first = all(&mut session);
        let snapshot = session.snapshot().expect("there is room");
        let run = session.run(&step, &[]).expect("it runs");
        for (state, (dtype, n)) in states.iter().zip(&types).filter(|(_, (dtype, _))| *dtype != DType::F32) {
            session.write(*state, &value(*dtype, *n, 50)).expect("it fits");
        }
        let present = all(&mut session);
        assert!(first.iter().zip(&present).all(|(a, b)| a != b || a.shape().numel() == 0));
        let then = session.rewound::<_, wgrad::Error>(&snapshot, |session| {
            let then = all(session);
            session.run(&step, &[])?;
            Ok(then)
        });
        assert!(then.expect("it goes back") == first && all(&mut session) == present);
        let seen: Vec<u64> = session.taps().expect("they have arrived").iter().map(|taps| taps.run).collect();
        assert_eq!(seen, [run], "taps of the past are left there");
        session.restore(&snapshot).expect("it goes back");
        assert!(all(&mut session) == first);
    }
}
