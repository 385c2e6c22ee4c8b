//! Gradients through training: random small models, two updates with everything that the passes have, differentiated by
//! bounds, learning rate, weights of losses and first parameters, and held to differences in f64.

use proptest::{prelude::*, sample::select, strategy::ValueTree, test_runner::TestRunner};
use std::collections::BTreeMap;
use wgrad::{
    Accumulator, Array, DType, DynamicScale, Flat, Grads, LossScaler, Optimizer, ParamSet, Scaled, Session, StateId,
    Store, Tape, Tensor, Weighting,
    testing::{Gradcheck, GradcheckError},
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Builder, Init, Linear,
    optim::{Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, AdamWConfig, RmsProp, RmsPropConfig, Sgd, SgdConfig},
};

const F64: DType = DType::F64;

/// Optimizers whose step depends on the size of the gradient: a large `eps`, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Momentum,
    Nesterov,
    Adam,
    AdamW,
    RmsProp,
    AmsGrad,
    Adagrad,
}

/// A model with its data, and what happens to its gradients.
#[derive(Clone, Debug)]
struct Case {
    /// Inputs, hidden units of each layer, outputs.
    widths: Vec<usize>,
    rows: usize,
    seed: u64,
    kind: Kind,
    scaled: bool,
    accumulated: bool,
    centralized: bool,
    agc: bool,
    /// Relative to the norm of the first gradient.
    bound: f64,
    /// Whether the second update's bound is out of the gradient's way: the negative control.
    detached: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let kinds = [Kind::Momentum, Kind::Nesterov, Kind::Adam, Kind::AdamW, Kind::RmsProp, Kind::AmsGrad, Kind::Adagrad];
    let kind = select(kinds.to_vec());
    let sizes = (prop::collection::vec(1..4usize, 2..4), 1..4usize, any::<u64>());
    (sizes, kind, any::<[bool; 4]>(), select(vec![0.3, 0.8, 0.999, 1.001, 1.3, 1e3])).prop_map(
        |((widths, rows, seed), kind, [scaled, accumulated, centralized, agc], bound)| Case {
            widths,
            rows: 2 * rows,
            seed,
            kind,
            scaled,
            accumulated,
            centralized,
            agc,
            bound,
            detached: false,
        },
    )
}

/// What a case declares.
struct World {
    layers: Vec<Linear>,
    params: ParamSet,
    lr: StateId,
    optimizer: Box<dyn Optimizer>,
    scaler: LossScaler,
    accumulator: Accumulator<Scaled>,
}

/// The inputs, in order: bound of the norm, adaptive clipping, learning rate, weights of the two losses, and data.
const SCALARS: [&str; 5] = ["max_norm", "clipping", "lr", "first weight", "second weight"];

impl Case {
    /// A session and what it declares.
    fn world(&self) -> (Session, World) {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, self.seed).with_dtype(F64);
        let layer = |(i, w): (usize, &[usize])| Linear::new(b.at(&format!("{i}")), w[0], w[1], &Init::Normal(0.8));
        let layers: Vec<Linear> = self.widths.windows(2).enumerate().map(layer).collect();
        let params = store.params();
        let lr = store.state("lr", &Array::scalar(0.0));
        let (rate, eps) = (lr.into(), 0.1);
        let optimizer: Box<dyn Optimizer> = match self.kind {
            Kind::Momentum | Kind::Nesterov => {
                let nesterov = self.kind == Kind::Nesterov;
                let config = SgdConfig { lr: rate, momentum: 0.9, nesterov, weight_decay: 0.1, ..SgdConfig::default() };
                Box::new(Sgd::new(&mut store, &params, config))
            }
            Kind::Adam => {
                let config = AdamConfig { lr: rate, eps, weight_decay: 0.1, ..AdamConfig::default() };
                Box::new(Adam::new(&mut store, &params, config))
            }
            Kind::AmsGrad => {
                let config = AdamConfig { lr: rate, betas: (0.9, 0.5), eps, amsgrad: true, ..AdamConfig::default() };
                Box::new(Adam::new(&mut store, &params, config))
            }
            Kind::Adagrad => {
                let config = AdagradConfig { lr: rate, eps, weight_decay: 0.1, ..AdagradConfig::default() };
                Box::new(Adagrad::new(&mut store, &params, config))
            }
            Kind::AdamW => {
                Box::new(AdamW::new(&mut store, &params, AdamWConfig { lr: rate, eps, ..AdamWConfig::default() }))
            }
            Kind::RmsProp => {
                let config = RmsPropConfig { lr: rate, eps, momentum: 0.5, ..RmsPropConfig::default() };
                Box::new(RmsProp::new(&mut store, &params, config))
            }
        };
        let scaler = match self.scaled {
            true => LossScaler::dynamic(&mut store, DynamicScale { init: 512.0, ..DynamicScale::default() }),
            false => LossScaler::none(),
        };
        let accumulator = Accumulator::new(&mut store, &params, "acc", Weighting::Mean);
        let backend = Box::new(CpuBackend::new(1).expect("the thread starts"));
        let mut session = Session::new(backend, store).expect("it fits");
        // Zeros are a kink of adaptive clipping.
        for bias in layers.iter().filter_map(|layer| layer.bias) {
            let len = session.layout().param(bias).shape.numel();
            let value = (0..len).map(|i| 0.4 + 0.1 * i as f64).collect::<Vec<f64>>();
            session.write_param(bias, &Array::new([len], value)).expect("it fits");
        }
        (session, World { layers, params, lr, optimizer, scaler, accumulator })
    }

    /// Two terms with their weights, of some rows: the error, and how large the outputs are.
    fn loss<'t>(&self, layers: &[Linear], x: Tensor<'t>, y: Tensor<'t>, weights: [Tensor<'t>; 2]) -> Tensor<'t> {
        let t = x.tape();
        let (last, hidden) = layers.split_last().expect("at least one layer");
        let h = hidden.iter().fold(x, |h, layer| layer.forward(h).tanh());
        let out = t.scoped("out", || last.forward(h));
        weights[0] * out.mse(y) + weights[1] * (out * out * 0.5 + out).sin().mean()
    }

    /// The gradient of one update, before the clip of the norm.
    fn gradient<'t>(&self, t: &'t Tape, x: &[Tensor<'t>], world: &World) -> Grads<'t> {
        let World { layers, params, scaler, accumulator, .. } = world;
        let (data, wanted) = (x[5], x[6]);
        let half = self.rows / 2;
        let of = |start, len| {
            let loss = self.loss(layers, data.slice(0, start, len), wanted.slice(0, start, len), [x[3], x[4]]);
            scaler.scale(loss).grad(params)
        };
        let grads = if self.accumulated {
            accumulator.add(of(0, half));
            accumulator.add(of(half, half));
            accumulator.take(t)
        } else {
            of(0, self.rows)
        };
        let mut grads = grads.unscale(scaler);
        if self.centralized {
            grads = grads.centralize();
        }
        if self.agc {
            grads = grads.agc(x[1]);
        }
        grads
    }

    /// The loss after two updates; inputs as [`SCALARS`] say.
    fn unrolled<'t>(&self, t: &'t Tape, x: &[Tensor<'t>], world: &World) -> Tensor<'t> {
        let World { layers, params, lr, optimizer, .. } = world;
        let mut values = t.arenas(params);
        let mut states = None;
        for k in 0..2 {
            let bound = if self.detached && k == 1 { x[0].detach() } else { x[0] };
            let rebound = Flat::new(values.parts().iter().copied().chain([(*lr, x[2])]).collect());
            let (new, new_states) = t.with_params(&rebound, || {
                let grads = self.gradient(t, x, world).clip_by_global_norm(bound);
                let present = states.take().unwrap_or_else(|| optimizer.current(t, grads.flat()));
                optimizer.update(&values, &grads, &present)
            });
            (values, states) = (new, Some(new_states));
        }
        t.with_params(&values, || self.loss(layers, x[5], x[6], [x[3], x[4]]))
    }

    /// The values of the inputs, the bound relative to the norm of the first gradient.
    fn inputs(&self, session: &Session, world: &World) -> Vec<Array> {
        let numbers = |columns: usize, phase: f64| {
            let value = |i: usize| 1.5 * (1.9 * i as f64 + phase + (self.seed % 1000) as f64).sin();
            Array::new([self.rows, columns], (0..self.rows * columns).map(value).collect::<Vec<f64>>())
        };
        let (first, last) = (self.widths[0], *self.widths.last().expect("two at least"));
        let mut inputs: Vec<Array> = [1.0, 0.2, 0.05, 0.7, 0.4].map(Array::scalar).to_vec();
        inputs.extend([numbers(first, 0.3), numbers(last, 1.1)]);
        let step =
            self.record(session, world, &inputs, |case, t, x, world| t.tap("norm", case.gradient(t, x, world).norm()));
        let norm = self.taps(&step, &inputs, "norm")[0];
        inputs[0] = Array::scalar(self.bound * norm);
        inputs
    }

    fn record(
        &self,
        session: &Session,
        world: &World,
        inputs: &[Array],
        f: impl for<'t> FnOnce(&Self, &'t Tape, &[Tensor<'t>], &World),
    ) -> wgrad::Program {
        let t = Tape::new(session.layout().clone());
        let x: Vec<Tensor<'_>> = inputs.iter().enumerate().map(|(i, x)| t.input_like(&format!("{i}"), x)).collect();
        f(self, &t, &x, world);
        t.finish()
    }

    /// All values tapped under a name; the states stay.
    fn taps(&self, program: &wgrad::Program, inputs: &[Array], name: &str) -> Vec<f64> {
        let named: Vec<(String, Array)> = inputs
            .iter()
            .enumerate()
            .map(|(i, x)| (i.to_string(), x.clone()))
            .filter(|(name, _)| program.inputs().iter().any(|input| input.name == *name))
            .collect();
        let (mut session, _) = self.world();
        let states: Vec<wgrad::Data> = {
            let ids: Vec<StateId> = session.layout().states().map(|(id, _)| id).collect();
            ids.into_iter().map(|id| session.read(id).expect("readable").data().clone()).collect()
        };
        let out = wgrad_tests::reference(program, &states, &named);
        let own = |tap: &str| tap.split_once('#').map_or(tap, |(own, _)| own) == name;
        out.taps.into_iter().filter(|(n, ..)| own(n)).map(|(.., value)| value[0]).collect()
    }

    /// Which of the two updates are clipped, and what the check compares.
    fn check(&self) -> Result<([bool; 2], usize), (bool, String)> {
        let (mut session, world) = self.world();
        let inputs = self.inputs(&session, &world);
        let program =
            self.record(&session, &world, &inputs, |case, t, x, world| t.tap("loss", case.unrolled(t, x, world)));
        let clipped = self.taps(&program, &inputs, "clip_by_global_norm/clipped");
        let check = Gradcheck::new().random_directions(2);
        // The root of a first squared gradient is its magnitude: a kink that no comparison shows, near which differences
        // are worse.
        let magnitudes = !matches!(self.kind, Kind::Momentum | Kind::Nesterov);
        let check = if magnitudes { check.atol(2e-6).rtol(2e-6) } else { check };
        let checked = check.check_params(&mut session, &world.params, &inputs, |t, x| self.unrolled(t, x, &world));
        match checked {
            Ok(checked) => Ok(([clipped[0] == 1.0, clipped[1] == 1.0], checked.compared)),
            Err(why) => Err((matches!(why, GradcheckError::Mismatch { .. }), format!("{why}\n{SCALARS:?}\n{self:?}"))),
        }
    }
}

#[test]
fn two_updates_are_differentiated_by_all_that_they_depend_on() {
    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let (mut compared, mut near_kinks) = (0, 0);
    let cases = wgrad_tests::proptest_config(160).cases;
    for _ in 0..cases {
        let case = case().new_tree(&mut runner).expect("a case").current();
        match case.check() {
            Ok((clipped, count)) => {
                compared += count;
                *seen.entry(format!("{clipped:?}")).or_default() += 1;
                *seen.entry(format!("{:?}", case.kind)).or_default() += 1;
                *seen.entry(format!("{} layers", case.widths.len() - 1)).or_default() += 1;
            }
            // A bound next to the norm: a kink is near everything.
            Err((false, why)) if why.contains("kink") => near_kinks += 1,
            Err((_, why)) => panic!("{why}"),
        }
    }
    println!("{compared} derivatives, {near_kinks} near kinks: {seen:?}");
    let of = |what: &str| seen.get(what).copied().unwrap_or(0);
    assert!(compared > 5 * cases as usize && near_kinks < cases as usize / 20, "{compared}, {near_kinks}");
    let all =
        ["[true, true]", "[true, false]", "[false, true]", "[false, false]", "Momentum", "Adam", "RmsProp", "2 layers"];
    assert!(cases < 160 || all.iter().all(|what| of(what) > 0), "{seen:?}");
}

/// A bound that the second update hides from the sweep is noticed, wherever that update is clipped.
#[test]
fn a_hidden_bound_is_noticed() {
    let mut noticed = 0;
    for kind in [Kind::Momentum, Kind::Adam, Kind::AdamW, Kind::RmsProp, Kind::AmsGrad, Kind::Adagrad] {
        let (widths, rows) = (vec![2, 3, 2], 4);
        let plain = Case {
            widths,
            rows,
            seed: 5,
            kind,
            scaled: true,
            accumulated: true,
            centralized: false,
            agc: false,
            bound: 0.3,
            detached: false,
        };
        let (clipped, _) = plain.check().unwrap_or_else(|(_, why)| panic!("{why}"));
        assert_eq!(clipped, [true, true], "{kind:?}");
        let (mismatch, why) = Case { detached: true, ..plain }.check().expect_err("it is wrong");
        assert!(mismatch && why.contains("input 0"), "{why}");
        noticed += 1;
    }
    assert_eq!(noticed, 6);
}
