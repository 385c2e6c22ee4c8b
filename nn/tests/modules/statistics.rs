//! Running statistics: how they move, and when they do not.

use crate::{assert_close, declared, eval, numbers, session};
use wgrad::{Array, Collective, DType, InProcess, Session, Shape, Store, Tape};
use wgrad_nn::{
    BatchNorm, BlockKind, Buffers, Builder, ResNet, ResNetConfig, Trainer, TrainerConfig,
    optim::{Sgd, SgdConfig},
};

/// Mean and unbiased variance of each of two channels of `[3, 2, 1, 2]`.
fn moments(x: &Array) -> [Vec<f64>; 2] {
    let x = x.to_f64();
    let channel = |c: usize| (0..3).flat_map(|n| x[n * 4 + c * 2..][..2].to_vec()).collect::<Vec<f64>>();
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let means = [0, 1].map(|c| mean(&channel(c)));
    let var = |c: usize| channel(c).iter().map(|v| (v - means[c]).powi(2)).sum::<f64>() / 5.0;
    [means.to_vec(), vec![var(0), var(1)]]
}

fn batch(turn: usize) -> Array {
    numbers(Shape::from([3, 2, 1, 2]), turn)
}

/// What a training step makes of running statistics.
fn after(old: &[Vec<f64>; 2], x: &Array, momentum: f64) -> [Vec<f64>; 2] {
    let new = moments(x);
    let mix = |i: usize| (0..2).map(|c| old[i][c] * (1.0 - momentum) + new[i][c] * momentum).collect();
    [mix(0), mix(1)]
}

fn start() -> [Vec<f64>; 2] {
    [vec![0.0; 2], vec![1.0; 2]]
}

fn read(session: &mut Session, norm: &BatchNorm) -> [Vec<f64>; 2] {
    let running = session.read(norm.running).expect("readable").to_f64();
    [running[..2].to_vec(), running[2..].to_vec()]
}

#[track_caller]
fn assert_same(have: &[Vec<f64>; 2], want: &[Vec<f64>; 2]) {
    assert_close(&have.concat(), &want.concat());
}

#[test]
fn training_moves_them_and_evaluation_uses_them() {
    let (norm, mut session) = declared(|b| BatchNorm::new(b, 2).with_momentum(0.25));
    let step = session.record(|t| t.tap("y", norm.forward(t.input_like("x", &batch(0)), true))).expect("it compiles");
    let mut want = start();
    for turn in 0..3 {
        session.run(&step, &[("x", &batch(turn))]).expect("it runs");
        want = after(&want, &batch(turn), 0.25);
        assert_same(&read(&mut session, &norm), &want);
    }
    session.wait().expect("it has run");
    let taps = session.taps().expect("they have arrived");
    let x = batch(0);
    let [mean, var] = moments(&x);
    let channel = |i: usize| i / 2 % 2;
    // By the batch's own biased variance in training.
    let trained = |(i, v): (usize, f64)| (v - mean[channel(i)]) / (var[channel(i)] * 5.0 / 6.0 + 1e-5).sqrt();
    let trained: Vec<f64> = x.to_f64().into_iter().enumerate().map(trained).collect();
    assert_close(&taps[0].get("y").expect("tapped").to_f64(), &trained);
    let used = eval(&mut session, &x, |x| norm.forward(x, false)).to_f64();
    let by = |(i, v): (usize, f64)| (v - want[0][channel(i)]) / (want[1][channel(i)] + 1e-5).sqrt();
    assert_close(&used, &x.to_f64().into_iter().enumerate().map(by).collect::<Vec<f64>>());
    assert_same(&read(&mut session, &norm), &want);
}

#[test]
fn they_are_the_buffers_of_a_store() {
    let (norm, session) = declared(|mut b| BatchNorm::new(b.at("stem").at("norm"), 2));
    let buffers = Buffers::of(session.layout());
    assert_eq!(buffers.states(), [norm.running]);
    assert_eq!(session.layout().state(norm.running).name, "buffers/stem/norm/running");
}

/// A trainer of a batch normalisation with windows of this many micro-batches.
fn trainer(accumulate: usize) -> (BatchNorm, Trainer, Session) {
    let mut store = Store::new();
    let norm = BatchNorm::new(Builder::new(&mut store, 0).with_dtype(DType::F64), 2);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let module = norm.clone();
    let config = TrainerConfig { accumulate, ..TrainerConfig::default() };
    let trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        module.forward(batch.get("x"), true).sin().mean().into()
    });
    (norm, trainer, session(store))
}

/// A batch whose variance overflows, which neither the loss nor its gradient need to show.
fn overflowing() -> Array {
    let mut x = batch(1).to_f64();
    x[0] = 1e200;
    Array::new([3, 2, 1, 2], x)
}

#[test]
fn a_step_not_taken_leaves_them_as_they_were() {
    let (norm, mut trainer, mut session) = trainer(1);
    let mut want = start();
    for (x, good) in [(batch(0), true), (overflowing(), false), (batch(2), true)] {
        trainer.step(&mut session, &[("x", &x)]).expect("it runs");
        if good {
            want = after(&want, &x, 0.1);
        }
        assert_same(&read(&mut session, &norm), &want);
    }
    session.wait().expect("it has run");
    let taken: Vec<bool> = trainer.updates(&session.taps().expect("arrived")).iter().map(|u| u.taken).collect();
    assert_eq!(taken, [true, false, true]);
}

#[test]
fn a_window_not_taken_leaves_them_as_they_were_before_it() {
    let (norm, mut trainer, mut session) = trainer(3);
    let good = [batch(0), batch(1), batch(2)];
    let bad = [batch(3), overflowing(), batch(4)];
    let mut want = start();
    for (window, taken) in [(&good, true), (&bad, false), (&bad, false), (&good, true)] {
        for x in window {
            trainer.step(&mut session, &[("x", x)]).expect("it runs");
        }
        if taken {
            want = window.iter().fold(want, |want, x| after(&want, x, 0.1));
        }
        assert_same(&read(&mut session, &norm), &want);
    }
    // One that the data cuts short.
    for x in &bad[..2] {
        trainer.step(&mut session, &[("x", x)]).expect("it runs");
    }
    assert!(trainer.flush(&mut session).expect("it runs"));
    assert_same(&read(&mut session, &norm), &want);
}

/// Ranks that train together have the mean of their statistics, and leave them all as they were where one has none.
#[test]
fn ranks_share_their_statistics() {
    for accumulate in [1, 2] {
        let run = |rank: InProcess| {
            let own = rank.rank();
            let (norm, mut trainer, session) = trainer(accumulate);
            let mut session = session.with_collective(Box::new(rank));
            for turn in 0..accumulate {
                trainer.step(&mut session, &[("x", &batch(own + 3 * turn))]).expect("it runs");
            }
            let first = read(&mut session, &norm);
            for turn in 0..accumulate {
                let x = if own == 1 && turn == 0 { overflowing() } else { batch(own) };
                trainer.step(&mut session, &[("x", &x)]).expect("it runs");
            }
            (first, read(&mut session, &norm))
        };
        let ranks = std::thread::scope(|scope| {
            let ranks: Vec<_> = InProcess::world(2).into_iter().map(|rank| scope.spawn(|| run(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Vec<_>>()
        });
        let of = |own: usize| (0..accumulate).fold(start(), |old, turn| after(&old, &batch(own + 3 * turn), 0.1));
        let (a, b) = (of(0), of(1));
        let mean = |i: usize| (0..2).map(|c| (a[i][c] + b[i][c]) / 2.0).collect();
        for (first, second) in ranks {
            assert_same(&first, &[mean(0), mean(1)]);
            assert_same(&second, &first);
        }
    }
}

/// A normalisation more is a kernel more that settles.
#[test]
fn settling_takes_a_kernel_each() {
    let config = ResNetConfig::small(20, BlockKind::Basic, 1, 10).expect("20 is a depth");
    let mut store = Store::new();
    let model = ResNet::new(Builder::new(&mut store, 1), &config);
    let (params, buffers) = (store.params(), Buffers::of(store.layout()));
    let session = session(store);
    let kernels = |settled: bool| {
        let t = Tape::new(session.layout().clone());
        let before = buffers.remember(&t);
        let (x, y) = (t.input("x", [4, 1, 8, 8], DType::F32), t.input("y", [4], DType::U32));
        let mut grads = model.forward(x, true).cross_entropy(y).grad(&params);
        let moved = before.moved(&t);
        if settled {
            grads = grads.skip_unless(moved.all_finite(&t));
        }
        let grads = grads.check_finite();
        if settled {
            moved.settle(&t, grads.verdict().expect("checked"));
        }
        t.tap("norm", grads.norm());
        t.tap("verdict", grads.verdict().expect("checked"));
        session.plan(&t.finish()).1.kernels.len()
    };
    let norms = buffers.states().len();
    assert_eq!(norms, 21);
    let (plain, settled) = (kernels(false), kernels(true));
    assert!(settled <= plain + norms + 2, "{plain} and {settled}");
}

#[test]
#[should_panic(expected = "momentum is 0, and must be in (0, 1]")]
fn a_momentum_of_0_is_refused() {
    declared(|b| BatchNorm::new(b, 2).with_momentum(0.0));
}

#[test]
fn rows_of_features_are_normalised_as_images_of_one_pixel() {
    let norm_of = |shape: &[usize]| {
        let (norm, mut session) = declared(|b| BatchNorm::new(b, 2));
        let y = eval(&mut session, &numbers(Shape::from(shape), 0), |x| norm.forward(x, true));
        y.to_f64()
    };
    assert_close(&norm_of(&[6, 2]), &norm_of(&[6, 2, 1, 1]));
}
