//! Muon: steps along nearly orthogonal matrices, whatever the size of the gradient, in every arena.

use crate::{assert_padding_is_zero, open};
use approx::relative_eq;
use wgrad::{Array, DType, Data, Optimizer, Param, Store, Tape, Tensor};
use wgrad_nn::optim::{Muon, MuonConfig, MuonScale};

/// A number that looks random, in [-1, 1].
fn number(i: usize) -> f64 {
    ((i * 2654435761 + 12345) % 10007) as f64 / 5003.0 - 1.0
}

fn matrix(shape: &[usize], salt: usize, scale: f64, dtype: DType) -> Array {
    let len = shape.iter().product();
    Array::new(shape, Data::F64((0..len).map(|i| scale * number(i + 1000 * salt)).collect())).cast(dtype)
}

/// The steps of some matrices from 0 at rate 1, for gradients that are these times `scale`.
fn steps(shapes: &[(&[usize], DType)], scale: f64, config: MuonConfig) -> Vec<Vec<f64>> {
    let mut store = Store::new();
    let declare = |(i, (shape, dtype)): (usize, &(&[usize], DType))| {
        (store.param(&format!("p{i}"), &Array::zeros(*shape, *dtype)), matrix(shape, i, scale, *dtype))
    };
    let params: Vec<(Param, Array)> = shapes.iter().enumerate().map(declare).collect();
    let all = store.params();
    let config = MuonConfig { lr: 1.0.into(), weight_decay: 0.0, ..config };
    let muon = Muon::new(&mut store, &all, config);
    let mut session = open(store);
    let record = |t: &Tape| {
        let term = |(i, (param, g)): (usize, &(Param, Array))| {
            t.param(*param).dot(t.input_like(&format!("g{i}"), g)).cast(DType::F32)
        };
        let loss = params.iter().enumerate().map(term).reduce(|a, b| a + b).expect("there are parameters");
        muon.step(loss.grad(&all).check_finite());
    };
    let step = session.record(record).expect("compiles");
    let inputs: Vec<(String, &Array)> = params.iter().enumerate().map(|(i, (_, g))| (format!("g{i}"), g)).collect();
    let inputs: Vec<(&str, &Array)> = inputs.iter().map(|(name, g)| (name.as_str(), *g)).collect();
    session.run(&step, &inputs).expect("runs");
    let values = params.iter().map(|(param, _)| session.read_param(*param).expect("readable").to_f64()).collect();
    assert_padding_is_zero(&mut session);
    values
}

const SHAPES: [(&[usize], DType); 6] = [
    (&[3, 8], DType::F32),
    (&[8, 3], DType::F64),
    (&[3, 8], DType::F64),
    (&[2, 3, 1, 2], DType::F32),
    (&[8, 3], DType::F32),
    (&[1, 7], DType::F64),
];

/// Rows and columns of a matrix by its shape.
fn extents(shape: &[usize]) -> (usize, usize) {
    (shape[0], shape[1..].iter().product())
}

/// Each unit vector of the shorter side becomes about a unit vector of the longer one, the opposite way of the gradient.
#[test]
fn a_step_is_nearly_orthogonal() {
    for nesterov in [false, true] {
        let config = MuonConfig { nesterov, scale: MuonScale::Original, ..MuonConfig::default() };
        for (i, ((shape, _), x)) in SHAPES.iter().zip(steps(&SHAPES, 1.0, config)).enumerate() {
            let (rows, columns) = extents(shape);
            let scale = (rows as f64 / columns as f64).max(1.0).sqrt();
            let at = |short: usize, long: usize| {
                if rows <= columns { x[short * columns + long] } else { x[long * columns + short] }
            };
            let (short, long) = (rows.min(columns), rows.max(columns));
            for trial in 0..20 {
                let v: Vec<f64> = (0..short).map(|j| number(j + 77 * trial)).collect();
                let norm = v.iter().map(|v| v * v).sum::<f64>().sqrt();
                let image = |j: usize| (0..short).map(|k| v[k] * at(k, j)).sum::<f64>();
                let stretched = (0..long).map(|j| image(j).powi(2)).sum::<f64>().sqrt() / norm / scale;
                assert!((0.6..1.3).contains(&stretched), "{shape:?}: {stretched}");
            }
            let g = matrix(shape, i, 1.0, DType::F64).to_f64();
            assert!(x.iter().zip(&g).map(|(x, g)| x * g).sum::<f64>() < 0.0, "{shape:?} climbs");
        }
    }
}

/// Matrices are stepped by the direction of their gradients alone, up to those whose squares overflow.
#[test]
fn the_size_of_a_gradient_does_not_matter() {
    let plain = steps(&SHAPES, 1.0, MuonConfig::default());
    for scale in [2f64.powi(-12), 2f64.powi(10), 1e18] {
        for (have, want) in steps(&SHAPES, scale, MuonConfig::default()).iter().zip(&plain) {
            assert!(
                relative_eq!(have[..], want[..], epsilon = 1e-5, max_relative = 1e-4),
                "{scale}: {have:?}, {want:?}"
            );
        }
    }
    for values in steps(&SHAPES, 3e38, MuonConfig::default()) {
        assert!(values.iter().all(|x| x.is_finite() && x.abs() < 4.0) && values.iter().any(|x| *x != 0.0));
    }
    for values in steps(&SHAPES, 0.0, MuonConfig::default()) {
        assert!(values.iter().all(|x| *x == 0.0), "no gradient, no step");
    }
}

/// AdamW has no states where all parameters are matrices.
#[test]
fn states_are_those_that_are_needed() {
    let names = |shapes: &[&[usize]], exclude: &str| {
        let mut store = Store::new();
        for (i, shape) in shapes.iter().enumerate() {
            store.param(&format!("p{i}"), &Array::zeros(*shape, DType::F32));
        }
        let (params, exclude) = (store.params(), store.params_where(|path| path == exclude));
        let muon = Muon::new(&mut store, &params, MuonConfig { exclude, ..MuonConfig::default() });
        let arena = params.arenas(store.layout())[0];
        let of = |id: &wgrad::StateId| store.layout().state(*id).name.clone();
        muon.states().of(arena).expect("stepped").iter().map(of).collect::<Vec<_>>()
    };
    let adamw = ["muon/m/f32", "muon/v/f32", "muon/correction_m/f32", "muon/correction_v/f32"];
    assert_eq!(names(&[&[2, 3], &[4, 5, 6]], ""), ["muon/m/f32"]);
    assert_eq!(names(&[&[2, 3], &[4, 5, 6]], "p1"), adamw);
    assert_eq!(names(&[&[2, 3], &[4]], ""), adamw);
    assert_eq!(names(&[&[2, 3], &[0, 4]], ""), adamw);
}

/// The settings of AdamW are printed where it steps something, and tuned with those of Muon.
#[test]
fn both_halves_are_tuned() {
    use wgrad::Tuning;
    let mut store = Store::new();
    store.param("w", &Array::zeros([2, 2], DType::F32));
    store.param("b", &Array::zeros([2], DType::F32));
    let (params, matrices) = (store.params(), store.params_where(|path| path == "w"));
    let mut muon = Muon::new(&mut store, &params, MuonConfig::default());
    let mut alone = Muon::new(&mut store, &matrices, MuonConfig { name: "alone".into(), ..MuonConfig::default() });
    let printed = |muon: &Muon| format!("{:?}", muon.parameters());
    assert!(printed(&muon).contains("adamw(lr 0.001, betas (0.9, 0.999), eps 0.00000001, weight_decay 0.01)"));
    assert!(!printed(&alone).contains("adamw"), "{}", printed(&alone));
    for tuning in [Tuning::Rate(0.5), Tuning::Epsilon(1e-6), Tuning::Decay(0.3), Tuning::Momentum(0.8)] {
        assert!(muon.tune(tuning));
        assert_eq!(alone.tune(tuning), tuning != Tuning::Epsilon(1e-6));
    }
    let text = printed(&muon);
    assert!(text.contains("adamw(lr 0.0005, betas (0.9, 0.999), eps 0.000001, weight_decay 0.3)"), "{text}");
    assert!(text.contains("(\"lr\", \"0.0005\"), (\"momentum\", \"0.8\")"), "{text}");
    assert_eq!(muon.rate(3), Some(5e-4));
    let again = muon.over(&mut store, &matrices).expect("it can");
    assert_eq!(again.states().params(), &matrices);
}

/// A gradient through the steps of a matrix agrees with differences.
#[test]
fn the_steps_are_differentiated() {
    let run = |shift: f64| {
        let mut store = Store::new();
        let p = store.param("p", &matrix(&[3, 2], 1, 1.0, DType::F64));
        let params = store.params();
        let muon = Muon::new(&mut store, &params, MuonConfig { lr: 0.2.into(), ..MuonConfig::default() });
        let mut session = open(store);
        let x = matrix(&[3, 2], 2, 1.0, DType::F64);
        let step = session.record(|t| {
            let x = t.input_like("x", &x);
            let mut values = t.arenas(&params);
            let loss = || (t.param(p) * x).sin().sum();
            let mut states = muon.current(t, &values);
            for _ in 0..2 {
                let grads = t.with_params(&values, || loss().grad(&params));
                (values, states) = muon.update(&values, &grads, &states);
            }
            let after: Tensor<'_> = t.with_params(&values, || t.param(p).square().sum());
            t.tap("loss", after);
            t.tap("dx", after.grad_wrt(&[x])[0].expect("reached"));
        });
        let moved: Vec<f64> = x.to_f64().iter().enumerate().map(|(i, x)| x + shift * (i as f64 + 1.0).sin()).collect();
        session.run(&step.expect("compiles"), &[("x", &Array::new([3, 2], moved))]).expect("runs");
        let taps = session.taps().expect("ran").pop().expect("one run");
        (taps.scalar("loss").expect("tapped"), taps.get("dx").expect("tapped").to_f64())
    };
    let h = 1e-5;
    let difference = (run(h).0 - run(-h).0) / (2.0 * h);
    let slope: f64 = run(0.0).1.iter().enumerate().map(|(i, d)| d * (i as f64 + 1.0).sin()).sum();
    assert!(slope.abs() > 1e-3 && relative_eq!(slope, difference, max_relative = 1e-6), "{slope} for {difference}");
}
