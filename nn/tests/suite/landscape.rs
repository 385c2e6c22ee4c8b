//! Curvature and noise, against models where they are known in closed form.

use crate::open;
use approx::assert_relative_eq;
use proptest::prelude::*;
use wgrad::{Array, DType, Optimizer, ParamSet, Rng, Session, Store, Tensor};
use wgrad_nn::{
    Builder, Dropout, Init, Landscape, Linear, Trainer, TrainerConfig, cosine,
    optim::{Adam, AdamConfig, RmsProp, RmsPropConfig, Sgd, SgdConfig},
};

const SIZE: usize = 5;

/// A symmetric matrix with these eigenvalues: a Householder reflection of the diagonal.
fn matrix(eigenvalues: [f64; SIZE]) -> Vec<f64> {
    let u = [0.4, -1.0, 0.7, 0.3, 0.9];
    let square: f64 = u.iter().map(|u| u * u).sum();
    let reflect = |i: usize, j: usize| f64::from(i == j) - 2.0 * u[i] * u[j] / square;
    let entry = |i: usize, j: usize| (0..SIZE).map(|k| reflect(i, k) * eigenvalues[k] * reflect(j, k)).sum::<f64>();
    (0..SIZE * SIZE).map(|at| entry(at / SIZE, at % SIZE)).collect()
}

/// `p^T A p / 2` of parameters of 2 and 3 elements, where A is an input.
fn quadratic() -> (Session, Landscape) {
    let mut store = Store::new();
    let a = store.param("a", &Array::new([2], vec![0.5f64, -1.0]));
    let b = store.param("b", &Array::new([3, 1], vec![2.0f64, 0.25, -0.75]));
    let params = store.params();
    let landscape = Landscape::new(&params, move |batch| {
        let t = batch.tape();
        let p = Tensor::concat(&[t.param(a), t.param(b).reshape([3])], 0);
        ((p.unsqueeze(0).matmul(batch.get("A")).reshape([SIZE]) * p).sum() * 0.5).into()
    });
    (open(store), landscape)
}

fn of(values: Vec<f64>) -> Array {
    Array::new([SIZE, SIZE], values)
}

#[test]
fn the_gradient_and_products_are_those_of_a_quadratic() {
    let (mut session, mut landscape) = quadratic();
    let values = matrix([3.0, -1.0, 0.5, 2.0, -4.0]);
    let a = of(values.clone());
    let product =
        |v: &[f64]| -> Vec<f64> { (0..SIZE).map(|i| (0..SIZE).map(|j| values[i * SIZE + j] * v[j]).sum()).collect() };
    let gradient = landscape.gradient(&mut session, &[("A", &a)]).expect("it runs");
    assert_relative_eq!(gradient[..], product(&[0.5, -1.0, 2.0, 0.25, -0.75])[..], max_relative = 1e-12);
    let v = [1.0, -2.0, 0.0, 4.0, 0.125];
    let hv = landscape.hessian_vector(&mut session, &[("A", &a)], &v).expect("it runs");
    assert_relative_eq!(hv[..], product(&v)[..], max_relative = 1e-12);
}

#[test]
fn the_sharpness_is_the_largest_eigenvalue_also_where_another_is_larger_in_size() {
    let (mut session, mut landscape) = quadratic();
    for (eigenvalues, want) in [
        ([3.0, 1.0, 0.5, 2.0, 0.1], 3.0),
        ([3.0, 1.0, 0.5, -7.0, 0.1], 3.0),
        ([-3.0, -1.0, -0.5, -7.0, -2.0], -0.5),
        ([0.0; SIZE], 0.0),
    ] {
        let a = of(matrix(eigenvalues));
        let found = landscape.sharpness(&mut session, &[("A", &a)], 1e-9, 2000).expect("it runs");
        assert!((found.value - want).abs() < 1e-4, "{found:?} of {eigenvalues:?}");
        assert!(found.residual < 1e-2, "{found:?}");
        assert_eq!(found.highest_rate(0.5), 3.0 / found.value);
    }
}

#[test]
fn few_products_say_that_they_do_not_suffice() {
    let (mut session, mut landscape) = quadratic();
    let a = of(matrix([3.0, 2.99, 0.5, 2.0, 0.1]));
    let found = landscape.sharpness(&mut session, &[("A", &a)], 1e-12, 2).expect("it runs");
    assert!(found.products == 2 && found.residual > 1e-2, "{found:?}");
}

#[test]
fn the_trace_is_within_its_error_and_exact_for_a_diagonal() {
    let (mut session, mut landscape) = quadratic();
    let eigenvalues = [3.0, -1.0, 0.5, 2.0, 4.0];
    let diagonal = (0..SIZE * SIZE).map(|at| if at / SIZE == at % SIZE { eigenvalues[at % SIZE] } else { 0.0 });
    let found = landscape.trace(&mut session, &[("A", &of(diagonal.collect()))], 2, 1).expect("it runs");
    assert!((found.mean - 8.5).abs() < 1e-4 && found.error < 1e-9, "{found:?}");
    let a = of(matrix(eigenvalues));
    let found = landscape.trace(&mut session, &[("A", &a)], 400, 1).expect("it runs");
    assert!((found.mean - 8.5).abs() < 4.0 * found.error && found.error < 0.5, "{found:?}");
    assert_eq!(found, landscape.trace(&mut session, &[("A", &a)], 400, 1).expect("it runs"), "the seed decides");
}

/// `mean over rows of (x w - y)^2 / 2`, in f64.
fn linear(w: [f64; 2]) -> (Session, Landscape) {
    let mut store = Store::new();
    let w = store.param("w", &Array::new([2, 1], w.to_vec()));
    // A parameter that the loss does not reach has a gradient of 0.
    store.param("idle", &Array::zeros([3], DType::F64));
    let params = store.params();
    let landscape = Landscape::new(&params, move |batch| {
        let error = batch.get("x").matmul(batch.tape().param(w)) - batch.get("y");
        (error.square().mean() * 0.5).into()
    });
    (open(store), landscape)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn the_noise_scale_and_the_norms_are_those_of_a_linear_model(
        rows in prop::collection::vec((-2f64..2.0, -2f64..2.0, -2f64..2.0), 4..9),
        w in (-1f64..1.0, -1f64..1.0),
        examples in 1usize..3,
    ) {
        let (mut session, mut landscape) = linear([w.0, w.1]);
        // The gradient of one example is (x w - y) x.
        let of = |&(a, b, y): &(f64, f64, f64)| { let e = a * w.0 + b * w.1 - y; [e * a, e * b] };
        let count = rows.len() / examples;
        let batch = |from: usize, n: usize| {
            let part = &rows[from..from + n];
            let x: Vec<f64> = part.iter().flat_map(|row| [row.0, row.1]).collect();
            (Array::new([n, 2], x), Array::new([n, 1], part.iter().map(|row| row.2).collect::<Vec<_>>()))
        };
        let single: Vec<_> = (0..rows.len()).map(|at| batch(at, 1)).collect();
        let named: Vec<[(&str, &Array); 2]> = single.iter().map(|(x, y)| [("x", x), ("y", y)]).collect();
        let batches: Vec<&[(&str, &Array)]> = named.iter().map(|batch| &batch[..]).collect();
        let norms = landscape.norms(&mut session, &batches).expect("it runs");
        for (norm, row) in norms.iter().zip(&rows) {
            let [a, b] = of(row);
            prop_assert!((norm - a.hypot(b)).abs() < 1e-4 * (1.0 + norm));
        }

        // The covariance of micro-batches, without bias, times their examples is that of one example.
        let micro: Vec<_> = (0..count).map(|at| batch(at * examples, examples)).collect();
        let named: Vec<[(&str, &Array); 2]> = micro.iter().map(|(x, y)| [("x", x), ("y", y)]).collect();
        let batches: Vec<&[(&str, &Array)]> = named.iter().map(|batch| &batch[..]).collect();
        let means: Vec<[f64; 2]> = (0..count).map(|at| {
            let part = &rows[at * examples..][..examples];
            [0, 1].map(|i| part.iter().map(|row| of(row)[i]).sum::<f64>() / examples as f64)
        }).collect();
        let all = [0, 1].map(|i| means.iter().map(|mean| mean[i]).sum::<f64>() / count as f64);
        let spread: f64 = means.iter().map(|m| (m[0] - all[0]).powi(2) + (m[1] - all[1]).powi(2)).sum();
        let noise = spread / (count - 1) as f64 * examples as f64;
        let signal = all[0].powi(2) + all[1].powi(2) - noise / (count * examples) as f64;
        let found = landscape.noise_scale(&mut session, &batches, examples).expect("it runs");
        prop_assert!((found.noise - noise).abs() < 1e-4 * (1.0 + noise), "{:?}, {}", found, noise);
        prop_assert!((found.signal - signal).abs() < 1e-4 * (1.0 + signal.abs()), "{:?}, {}", found, signal);
        prop_assert_eq!(found.scale, found.noise / found.signal);
    }
}

#[test]
fn directions_are_compared() {
    assert_eq!(cosine(&[3.0, 4.0], &[6.0, 8.0]), 1.0);
    assert_eq!(cosine(&[3.0, 4.0], &[-4.0, 3.0]), 0.0);
    assert!(cosine(&[0.0, 0.0], &[1.0, 0.0]).is_nan());
}

#[test]
#[should_panic(expected = "hessian_vector: a vector of 4 elements, and 5 parameters")]
fn a_vector_of_another_length_is_refused() {
    let (mut session, mut landscape) = quadratic();
    let a = of(vec![0.0; SIZE * SIZE]);
    let _ = landscape.hessian_vector(&mut session, &[("A", &a)], &[0.0; 4]);
}

#[test]
fn looking_leaves_the_taps_of_a_run_and_its_parameters() {
    let (mut session, mut landscape) = quadratic();
    let step = session.record(|t| t.tap("one", t.scalar(1.0, DType::F32))).expect("it compiles");
    let run = session.run(&step, &[]).expect("it runs");
    let before = crate::snapshot(&mut session);
    landscape.sharpness(&mut session, &[("A", &of(matrix([1.0; SIZE])))], 1e-6, 10).expect("it runs");
    assert_eq!(session.taps().expect("they have arrived").iter().map(|taps| taps.run).collect::<Vec<_>>(), [run]);
    assert_eq!(crate::snapshot(&mut session), before);
}

/// Declares an optimizer.
type Declare = fn(&mut Store, &ParamSet) -> Box<dyn Optimizer>;

/// A trainer of `p^T A p / 2`, and its session.
fn descent(optimizer: impl Fn(&mut Store, &ParamSet) -> Box<dyn Optimizer>) -> (Trainer, Session) {
    let mut store = Store::new();
    let p = store.param("p", &Array::new([SIZE], vec![0.5f32, -1.0, 2.0, 0.25, -0.75]));
    let params = store.params();
    let optimizer = optimizer(&mut store, &params);
    let trainer = Trainer::new(&mut store, &params, optimizer, TrainerConfig::default(), move |batch| {
        let p = batch.tape().param(p);
        ((p.unsqueeze(0).matmul(batch.get("A")).reshape([SIZE]) * p).sum() * 0.5).into()
    });
    (trainer, open(store))
}

fn halves(a: &[f64]) -> Array {
    Array::new([SIZE, SIZE], a.iter().map(|a| *a as f32).collect::<Vec<_>>())
}

#[test]
fn steps_settle_below_the_highest_rate_and_grow_above() {
    let a = halves(&matrix([3.0, 1.0, 0.5, 2.0, 0.1]));
    let plain = SgdConfig::default();
    for config in [
        plain.clone(),
        SgdConfig { momentum: 0.9, ..plain.clone() },
        SgdConfig { momentum: 0.9, nesterov: true, ..plain.clone() },
        SgdConfig { momentum: 0.8, dampening: 0.5, ..plain },
    ] {
        let with = |rate: f64| {
            descent(|store, params| Box::new(Sgd::new(store, params, SgdConfig { lr: rate.into(), ..config.clone() })))
        };
        let (mut trainer, mut session) = with(1e-6);
        let mut landscape = trainer.landscape();
        let mut look = |trainer: &Trainer, session: &mut Session| {
            landscape.stability(session, &[("A", &a)], trainer.optimizer(), 1e-9, 2000).expect("it runs")
        };
        assert_eq!(look(&trainer, &mut session), None, "no update has been made");
        trainer.step(&mut session, &[("A", &a)]).expect("it runs");
        let found = look(&trainer, &mut session).expect("it says how it steps");
        assert!((found.sharpness.value - 3.0).abs() < 1e-3 && found.rate == 1e-6, "{found:?}");
        for (share, grows) in [(0.97, false), (1.03, true)] {
            let (mut trainer, mut session) = with(share * found.highest);
            (0..100).for_each(|_| _ = trainer.step(&mut session, &[("A", &a)]).expect("it runs"));
            session.wait().expect("it ran");
            let last = trainer.updates(&session.taps().expect("it ran")).last().expect("made").loss;
            assert!(if grows { last > 1e3 } else { last < 1e-3 }, "{share} of {found:?} with {config:?}: {last}");
        }
    }
}

#[test]
fn the_sharpness_that_an_adaptive_step_sees_is_divided_as_its_gradient_is() {
    let values = matrix([3.0, 1.0, 0.5, 2.0, 0.1]);
    let a = halves(&values);
    let start = [0.5, -1.0, 2.0, 0.25, -0.75];
    let gradient: Vec<f64> =
        (0..SIZE).map(|i| (0..SIZE).map(|j| values[i * SIZE + j] * start[j]).sum::<f64>()).collect();
    // After one step Adam divides by the gradient, and RMSprop by a tenth of it.
    let adam: (Declare, f64, f64) = (
        |store, params| Box::new(Adam::new(store, params, AdamConfig { lr: 1e-6.into(), ..AdamConfig::default() })),
        1.0,
        38.0,
    );
    let rmsprop: (Declare, f64, f64) = (
        |store, params| {
            let config = RmsPropConfig { lr: 1e-6.into(), momentum: 0.5, ..RmsPropConfig::default() };
            Box::new(RmsProp::new(store, params, config))
        },
        0.1,
        3.0,
    );
    for (optimizer, share, limit) in [adam, rmsprop] {
        let scaled: Vec<f64> = (0..SIZE * SIZE)
            .map(|at| values[at] / (share * (gradient[at / SIZE] * gradient[at % SIZE]).abs().sqrt()))
            .collect();
        // The same by another way: the quadratic of the divided matrix.
        let (mut own, mut quadratic) = quadratic();
        let want = quadratic.sharpness(&mut own, &[("A", &of(scaled))], 1e-9, 4000).expect("it runs").value;
        let (mut trainer, mut session) = descent(optimizer);
        trainer.step(&mut session, &[("A", &a)]).expect("it runs");
        let mut landscape = trainer.landscape();
        let found = landscape.stability(&mut session, &[("A", &a)], trainer.optimizer(), 1e-7, 4000).expect("it runs");
        let found = found.expect("it says how it steps");
        assert_relative_eq!(found.sharpness.value, want, max_relative = 1e-3);
        assert_relative_eq!(found.highest, limit / want, max_relative = 1e-3);
    }
}

#[test]
fn looking_changes_no_state() {
    let mut store = Store::new();
    let dropout = Dropout::new(0.5, Rng::new(&mut store, "dropout", 1));
    let model = Linear::new(Builder::new(&mut store, 0), 4, 2, &Init::Constant(0.5));
    let params = store.params();
    let adam = Adam::new(&mut store, &params, AdamConfig::default());
    let mut trainer = Trainer::new(&mut store, &params, adam, TrainerConfig::default(), move |batch| {
        dropout.rng().advance(batch.tape());
        dropout.forward(model.forward(batch.get("x")), true).square().mean().into()
    });
    let mut session = open(store);
    let x = Array::new([3, 4], (0..12).map(|i| i as f32).collect::<Vec<_>>());
    trainer.step(&mut session, &[("x", &x)]).expect("it runs");
    let states = |session: &mut Session| -> Vec<Vec<f64>> {
        let layout = session.layout().clone();
        layout.states().map(|(id, _)| session.read(id).expect("readable").to_f64()).collect()
    };
    let before = states(&mut session);
    let mut landscape = trainer.landscape();
    landscape.sharpness(&mut session, &[("x", &x)], 1e-3, 5).expect("it runs");
    landscape.stability(&mut session, &[("x", &x)], trainer.optimizer(), 1e-3, 5).expect("it runs");
    assert_eq!(before, states(&mut session));
}
