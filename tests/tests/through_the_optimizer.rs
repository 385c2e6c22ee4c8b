//! Gradients through training: two steps of clipping and an optimizer, differentiated by finite differences in f64; and
//! Hessian-vector products of a recurrent network.

use approx::abs_diff_eq;
use std::sync::Arc;
use wgrad::{Array, DType, Data, Flat, Optimizer, Program, Store, Tape, testing::central_difference};
use wgrad_nn::{
    Builder, Cell, Recurrent, RecurrentInit,
    optim::{
        Adagrad, AdagradConfig, AdamW, AdamWConfig, Muon, MuonConfig, MuonOthers, RmsProp, RmsPropConfig, Sam, Sgd,
        SgdConfig,
    },
};
use wgrad_tests::{Mlp, reference};

struct Unrolled {
    program: Program,
    states: Vec<Data>,
    inputs: Vec<(String, Array)>,
}

impl Unrolled {
    /// Two updates on one batch, the loss after them, and its derivatives in the bound of the clip and in the parameters
    /// before the first update.
    fn new<O: Optimizer>(optimizer: impl Fn(&mut Store, &wgrad::ParamSet) -> O) -> Self {
        Self::climbing(None, optimizer)
    }

    /// As `new`, with gradients from the end of a climb.
    fn climbing<O: Optimizer>(sam: Option<Sam>, optimizer: impl Fn(&mut Store, &wgrad::ParamSet) -> O) -> Self {
        let mut store = Store::new();
        let model = Mlp::new(&mut store, DType::F64);
        let params = model.params();
        let optimizer = optimizer(&mut store, &params);
        let t = Tape::new(Arc::new(store.layout().clone()));
        let max_norm = t.input("max_norm", [], DType::F64);
        let start = Flat::new(params.arenas(store.layout()).into_iter().map(|arena| (arena, t.state(arena))).collect());
        let (mut values, mut states) = (start.clone(), None);
        for _ in 0..2 {
            let grads = || model.loss(&t).grad(&params);
            let grads = t.with_params(&values, || sam.map_or_else(grads, |sam| sam.grad(grads)));
            let grads = grads.clip_by_global_norm(max_norm);
            let present = states.take().unwrap_or_else(|| optimizer.current(&t, grads.flat()));
            let (new, new_states) = optimizer.update(&values, &grads, &present);
            (values, states) = (new, Some(new_states));
        }
        let loss = t.with_params(&values, || model.loss(&t));
        let wrt = [max_norm, start.tensors()[0]];
        let found = loss.grad_wrt(&wrt);
        t.tap("loss", loss);
        t.tap("d max_norm", found[0].expect("the bound matters"));
        t.tap("d params", found[1].expect("the start matters"));
        let inputs = model.batch(1);
        Self { program: t.finish(), states: store.into_parts().1, inputs }
    }

    fn tap(&self, name: &str, max_norm: f64, params: &[f64]) -> Vec<f64> {
        let inputs = [self.inputs.clone(), vec![("max_norm".into(), Array::scalar(max_norm))]].concat();
        let mut states = self.states.clone();
        states[0] = Data::F64(params.to_vec());
        let out = reference(&self.program, &states, &inputs);
        out.taps.into_iter().find(|(n, ..)| n == name).expect("tapped").2
    }

    fn check(&self, max_norm: f64) {
        let start = self.states[0].to_f64();
        for (i, (.., coefficient)) in reference(
            &self.program,
            &self.states,
            &[self.inputs.clone(), vec![("max_norm".into(), Array::scalar(max_norm))]].concat(),
        )
        .taps
        .iter()
        .filter(|(name, ..)| name.ends_with("coefficient"))
        .enumerate()
        {
            assert!(coefficient[0] < 0.9, "update {i} must be clipped, or nothing is proven");
        }
        let loss_at = |h: f64, direction: &[f64]| {
            let moved: Vec<f64> = start.iter().zip(direction).map(|(p, d)| p + h * d).collect();
            self.tap("loss", max_norm, &moved)[0]
        };
        let (want, error) = central_difference(|h| self.tap("loss", max_norm + h, &start)[0], 1e-4);
        let have = self.tap("d max_norm", max_norm, &start)[0];
        assert!(have.abs() > 1e-4 && abs_diff_eq!(have, want, epsilon = 1e-8 + error), "d max_norm: {have} and {want}");
        let gradient = self.tap("d params", max_norm, &start);
        // Padding stays zero: only where a parameter lies does anything move.
        let direction: Vec<f64> =
            start.iter().enumerate().map(|(i, p)| if *p == 0.0 { 0.0 } else { (i as f64).sin() }).collect();
        let (want, error) = central_difference(|h| loss_at(h, &direction), 1e-4);
        let have: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
        assert!(have.abs() > 1e-4 && abs_diff_eq!(have, want, epsilon = 1e-8 + error), "d params: {have} and {want}");
        assert!(gradient.iter().all(|g| g.is_finite()));
    }
}

#[test]
fn two_steps_of_clip_and_sgd() {
    Unrolled::new(|store, params| {
        Sgd::new(store, params, SgdConfig { lr: 0.2.into(), momentum: 0.9, ..SgdConfig::default() })
    })
    .check(0.3);
    Unrolled::new(|store, params| {
        let config =
            SgdConfig { lr: 0.2.into(), momentum: 0.8, nesterov: true, weight_decay: 0.1, ..SgdConfig::default() };
        Sgd::new(store, params, config)
    })
    .check(0.3);
}

#[test]
fn two_steps_of_clip_and_adamw() {
    // A large eps, so that the step depends on the size of the gradient, and with it on the bound.
    Unrolled::new(|store, params| {
        AdamW::new(store, params, AdamWConfig { lr: 0.05.into(), eps: 0.1, ..AdamWConfig::default() })
    })
    .check(0.3);
}

#[test]
fn two_steps_of_clip_and_rmsprop() {
    Unrolled::new(|store, params| {
        RmsProp::new(store, params, RmsPropConfig { lr: 0.05.into(), eps: 0.1, ..RmsPropConfig::default() })
    })
    .check(0.3);
}

#[test]
fn two_steps_of_clip_and_amsgrad() {
    Unrolled::new(|store, params| {
        let config = AdamWConfig { lr: 0.05.into(), eps: 0.1, amsgrad: true, ..AdamWConfig::default() };
        AdamW::new(store, params, config)
    })
    .check(0.3);
}

#[test]
fn two_steps_of_clip_and_adagrad() {
    Unrolled::new(|store, params| {
        let config = AdagradConfig { lr: 0.05.into(), eps: 0.1, lr_decay: 0.3, ..AdagradConfig::default() };
        Adagrad::new(store, params, config)
    })
    .check(0.3);
}

/// The step of a matrix does not depend on the size of its gradient, but that of a vector does.
#[test]
fn two_steps_of_clip_and_muon() {
    Unrolled::new(|store, params| {
        let others = MuonOthers { lr: 0.05.into(), eps: 0.1, ..MuonOthers::default() };
        Muon::new(store, params, MuonConfig { lr: 0.05.into(), others, ..MuonConfig::default() })
    })
    .check(0.3);
}

#[test]
fn two_climbs_and_steps() {
    Unrolled::climbing(Some(Sam::new(0.2)), |store, params| {
        Sgd::new(store, params, SgdConfig { lr: 0.2.into(), momentum: 0.9, ..SgdConfig::default() })
    })
    .check(0.3);
}

#[test]
fn hessian_vector_products_of_a_recurrent_network() {
    for cell in [Cell::Tanh, Cell::Lstm, Cell::Gru] {
        let mut store = Store::new();
        let init = RecurrentInit::of(cell);
        let net = Recurrent::new(Builder::new(&mut store, 3).with_dtype(DType::F64).at("rnn"), cell, 2, 3, &init);
        let params = store.params();
        let t = Tape::new(Arc::new(store.layout().clone()));
        let x = t.input("x", [4, 3, 2], DType::F64);
        let loss = net.forward(x).stacked().sin().square().sum();
        let arena = params.arenas(store.layout())[0];
        let g = loss.grad_wrt(&[t.state(arena)])[0].expect("reached");
        let v = t.input("v", g.shape(), DType::F64);
        t.tap("g", g);
        t.tap("hv", (g * v).sum().grad_wrt(&[t.state(arena)])[0].expect("reached"));
        let (program, states) = (t.finish(), store.into_parts().1);
        let values = states[0].to_f64();
        let len = values.len();
        let v: Vec<f64> = (0..len).map(|i| (i as f64 * 1.3).cos()).collect();
        let x: Vec<f64> = (0..24).map(|i| (i as f64 * 0.9).sin()).collect();
        let inputs = [("x".to_string(), Array::new([4, 3, 2], x)), ("v".to_string(), Array::new([len], v.clone()))];
        let tap = |h: f64, name: &str| {
            let mut states = states.clone();
            states[0] = Data::F64(values.iter().zip(&v).map(|(p, v)| p + h * v).collect());
            let out = reference(&program, &states, &inputs);
            out.taps.into_iter().find(|(n, ..)| n == name).expect("tapped").2
        };
        let have = tap(0.0, "hv");
        let (ahead, behind) = (tap(1e-5, "g"), tap(-1e-5, "g"));
        let want: Vec<f64> = ahead.iter().zip(behind).map(|(a, b)| (a - b) / 2e-5).collect();
        assert!(want.iter().any(|v| v.abs() > 1e-3));
        wgrad_tests::compare(&format!("{cell:?}"), &have, &want, wgrad_tests::Tolerance(1e-7)).unwrap();
    }
}
