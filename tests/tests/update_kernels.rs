//! How many kernels an update takes: the flat vectors pass through memory a few times, however many parameters there are.

use wgrad::{
    Accumulator, Array, DynamicScale, Grads, LossScaler, Optimizer, ParamSet, Program, Scaled, Store, Tape, Weighting,
    plan::{Grouping, Plan},
};
use wgrad_nn::optim::{AdamW, AdamWConfig};
use wgrad_wgpu::Imagined;

/// The tensors: how many of each shape. Ten million elements in 200 of them.
const TENSORS: [(usize, &[usize]); 4] = [(40, &[512, 384]), (40, &[384, 128]), (4, &[64, 64, 3, 3]), (116, &[512])];

struct Setup {
    store: Store,
    params: ParamSet,
    adamw: AdamW,
    scaler: LossScaler,
    accumulator: Accumulator<Scaled>,
}

impl Setup {
    fn new() -> Self {
        let mut store = Store::new();
        let shapes = TENSORS.iter().flat_map(|&(count, shape)| std::iter::repeat_n(shape, count));
        for (i, shape) in shapes.enumerate() {
            let zeros = Array::new(shape, vec![0f32; shape.iter().product()]);
            store.param(&format!("p{i:03}"), &zeros);
        }
        let params = store.params();
        let adamw = AdamW::new(&mut store, &params, AdamWConfig::default());
        let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
        let accumulator = Accumulator::new(&mut store, &params, "window", Weighting::Mean);
        Self { store, params, adamw, scaler, accumulator }
    }

    /// A program that takes what has been accumulated, and does this with it.
    fn update(&self, f: impl FnOnce(Grads<'_, Scaled>)) -> Program {
        let layout = std::sync::Arc::new(self.store.layout().clone());
        let micro = Tape::new(layout.clone());
        let values = micro.arenas(&self.params);
        let loss = values.tensors()[0].square().sum();
        self.accumulator.add(self.scaler.scale(loss).grad(&self.params));
        let tape = Tape::new(layout);
        f(self.accumulator.take(&tape));
        self.scaler.update(&tape);
        tape.finish()
    }
}

/// The kernels of a program's plan, as text and by how many there are; for devices with as few buffers as there may be.
fn planned(program: &Program) -> (usize, String) {
    let lowered = program.lowered(true, |_, _| true);
    let plan = Plan::with(&lowered, &Grouping::default());
    (plan.kernels.len(), plan.describe(&lowered).to_string())
}

/// How many dispatches they are on a GPU that binds so few, commits among them: each kernel by itself, and merged.
fn dispatches(program: &Program) -> [usize; 2] {
    [true, false].map(|separate| {
        let device = Imagined { buffers: 8, software: false, separate, native: false, units: None };
        wgrad_wgpu::kernels(program, &Grouping::default(), device).expect("any GPU can run it").len()
    })
}

#[test]
fn a_full_update_takes_eight_kernels_at_most() {
    let setup = Setup::new();
    let program = setup.update(|grads| {
        let grads = grads.unscale(&setup.scaler).check_finite().centralize().agc(0.01).clip_by_global_norm(1.0);
        setup.adamw.step(grads);
    });
    let (kernels, text) = planned(&program);
    println!("{text}");
    assert!(kernels <= 8, "{text}");
    let [separate, merged] = dispatches(&program);
    println!("{merged} dispatches on a GPU, and {separate} if none are merged");
    // A reduction of all elements is two: its parts, and what follows from them.
    let long = text.lines().filter(|line| line.contains("  1 row of 10037248 ")).count();
    assert_eq!(separate, kernels + long, "{text}");
    assert!(merged <= 8, "{merged} dispatches of {text}");
}

#[test]
fn an_update_with_a_clip_takes_four_kernels_at_most() {
    let setup = Setup::new();
    let program = setup.update(|grads| setup.adamw.step(grads.unscale(&setup.scaler).clip_by_global_norm(1.0)));
    let (kernels, text) = planned(&program);
    println!("{text}{:?} dispatches", dispatches(&program));
    assert!(kernels <= 4, "{text}");
}

/// The number of nodes and kernels is that of one parameter, and rows of weights are one kernel's rows.
#[test]
fn a_pass_over_units_takes_one_kernel() {
    let setup = Setup::new();
    let tape = Tape::new(std::sync::Arc::new(setup.store.layout().clone()));
    let loss = tape.arenas(&setup.params).tensors()[0].square().sum();
    let grads = loss.grad(&setup.params).centralize();
    tape.tap("g", grads.flat().tensors()[0]);
    let (kernels, text) = planned(&tape.finish());
    assert_eq!(kernels, 1, "{text}");
}
