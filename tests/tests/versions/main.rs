//! A loss that reads parameters before and after a step: its gradient has all of its parts, or is refused with the lines
//! that contradict each other.

mod reads;
mod training;

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
};
use wgrad::{
    Accumulator, Array, DType, Flat, Grads, Optimizer, Param, ParamSet, Pitfall, Program, Store, Tape, Tensor,
    Unscaled, Weighting,
};
use wgrad_nn::{
    Builder, Init, Linear,
    optim::{Adam, AdamConfig, Ema, EmaConfig, Sgd, SgdConfig},
};
use wgrad_tests::{Machine, Outputs, Tolerance, compare};

/// Two networks whose parameters share an arena.
struct Gan {
    store: Store,
    g: Linear,
    d: Linear,
    gp: ParamSet,
    dp: ParamSet,
}

impl Gan {
    fn new() -> Self {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0).with_dtype(DType::F64);
        let g = Linear::new(b.at("g"), 3, 3, &Init::Normal(0.5));
        let d = Linear::new(b.at("d"), 3, 1, &Init::Normal(0.5));
        let [gp, dp] = ["g/", "d/"].map(|net| store.params_where(|path| path.starts_with(net)));
        Self { store, g, d, gp, dp }
    }

    fn fake<'t>(&self, t: &'t Tape) -> Tensor<'t> {
        self.g.forward(t.shared_input("z", [4, 3], DType::F64)).tanh()
    }

    /// That of the generator.
    fn loss<'t>(&self, fake: Tensor<'t>) -> Tensor<'t> {
        fake.tape().param(self.g.weight).square().sum() * 0.1 - self.d.forward(fake).mean()
    }

    fn adam(&mut self, name: &str, params: &ParamSet) -> Adam {
        Adam::new(&mut self.store, params, AdamConfig { name: name.into(), lr: 0.05.into(), ..AdamConfig::default() })
    }

    fn sgd(&mut self, params: &ParamSet) -> Sgd {
        Sgd::new(&mut self.store, params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() })
    }

    fn tape(&self) -> Tape {
        Tape::new(Arc::new(self.store.layout().clone()))
    }
}

fn noise(run: usize) -> Vec<(String, Array)> {
    let values = (0..12).map(|i| ((i * 7 + run * 5) as f64 * 0.9).sin()).collect::<Vec<f64>>();
    vec![("z".into(), Array::new([4, 3], values))]
}

/// Runs programs in turn, a few times, on what they all change.
fn parameters(store: Store, programs: Vec<Program>, runs: usize) -> Vec<f64> {
    let params = store.params();
    let mut machine = Machine::poisoned(1, store);
    let steps: Vec<_> = programs
        .into_iter()
        .map(|program| {
            let reads_noise = !program.inputs().is_empty();
            (machine.session.compile(program).expect("compiles"), reads_noise)
        })
        .collect();
    for run in 0..runs {
        for (step, reads_noise) in &steps {
            machine.run(step, &if *reads_noise { noise(run) } else { vec![] });
        }
    }
    params.iter().flat_map(|param| machine.session.read_param(param).expect("reads").to_f64()).collect()
}

/// The taps of one run.
fn taps(store: Store, program: Program) -> Outputs {
    let mut machine = Machine::poisoned(1, store);
    let inputs = if program.inputs().is_empty() { vec![] } else { noise(0) };
    let step = machine.session.compile(program).expect("compiles");
    machine.run(&step, &inputs)
}

fn tap_all(t: &Tape, name: &str, grads: &Grads<'_>) {
    grads.present().iter().for_each(|param| {
        let g = grads.get(param).expect("present");
        t.tap(&format!("{name} {}", t.layout().param(param).path), g);
    });
}

/// Requires taps of two names to have the same values.
fn same(out: &Outputs, a: &str, b: &str) {
    let of = |name: &str| {
        let own =
            out.taps.iter().filter_map(|(tap, array)| Some((tap.strip_prefix(name)?.to_string(), array.to_f64())));
        own.collect::<Vec<_>>()
    };
    let (have, want) = (of(a), of(b));
    assert!(!want.is_empty() && have.len() == want.len(), "{a}: {have:?} instead of {want:?}");
    for ((path, have), (other, want)) in have.into_iter().zip(want) {
        assert_eq!(path, other);
        compare(&format!("{a}{path}"), &have, &want, Tolerance::F64).unwrap();
    }
}

/// The message of the panic that `f` must end in.
fn refused<R>(f: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("this must be refused");
    panic.downcast_ref::<String>().expect("a message").clone()
}

/// Two vectors of one arena.
fn pair() -> (Store, Param, Param) {
    let mut store = Store::new();
    let a = store.param("a", &Array::new([2], vec![0.5f64, -1.5]));
    let b = store.param("b", &Array::new([2], vec![2.0f64, 0.25]));
    (store, a, b)
}

fn only(param: Param) -> ParamSet {
    [param].into_iter().collect()
}

/// Requires taps to be a function of `a` of [`pair`].
fn taps_of_a(out: &Outputs, name: &str, f: impl Fn(f64) -> f64) {
    compare(name, &out.tap(name).to_f64(), &[0.5, -1.5].map(f), Tolerance::F64).unwrap();
}

fn slope_of_tanh(x: f64) -> f64 {
    1.0 - x.tanh().powi(2)
}
