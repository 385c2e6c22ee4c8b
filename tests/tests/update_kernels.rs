//! How many kernels an update takes: the flat vectors pass through memory a few times, however many parameters there are.

use wgrad::{
    Accumulator, Array, DType, DynamicScale, Grads, LossScaler, Optimizer, ParamSet, Program, Scaled, Store, Tape,
    Weighting,
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
        let device = Imagined { buffers: 8, software: false, separate, wary: false, native: false, units: None };
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

/// Where a verdict comes between the gradients and the update, which nothing but their kernel knows.
#[test]
fn parameters_and_moments_are_updated_together() {
    const SIDE: usize = 256;
    let mut store = Store::new();
    let [a, b] = ["a", "b"].map(|name| store.param(name, &Array::new([SIDE, SIDE], vec![0f32; SIDE * SIDE])));
    let params = store.params();
    let adamw = AdamW::new(&mut store, &params, AdamWConfig::default());
    let dynamic = LossScaler::dynamic(&mut store, DynamicScale::default());
    for scaler in [LossScaler::none(), LossScaler::fixed(0.5), dynamic] {
        let tape = Tape::new(std::sync::Arc::new(store.layout().clone()));
        let x = tape.input("x", [8, SIDE], DType::F32);
        let loss = x.matmul(tape.param(a)).tanh().matmul(tape.param(b)).square().sum();
        let grads = scaler.scale(loss).grad(&params);
        adamw.step(grads.unscale(&scaler).clip_by_global_norm(1.0));
        scaler.update(&tape);
        let (_, text) = planned(&tape.finish());
        let maps = text.lines().filter(|line| line.contains("  map     131072 ")).count();
        assert_eq!(maps, 1, "{scaler}: {text}");
    }
}

/// Nothing but reads of the gradients tells what needs them that it belongs together.
#[test]
fn gradients_that_lie_in_memory_are_read_twice() {
    let mut setup = Setup::new();
    let stored = setup.store.state("gradients", &Array::new([10_037_248], vec![0f32; 10_037_248]));
    for scaler in [LossScaler::none(), LossScaler::fixed(0.5)] {
        let tape = Tape::new(std::sync::Arc::new(setup.store.layout().clone()));
        let params = tape.arenas(&setup.params).tensors()[0].on_grad_with([tape.state(stored)], |_, [stored]| stored);
        let grads = scaler.scale(params.square().sum()).grad(&setup.params);
        setup.adamw.step(grads.unscale(&scaler).clip_by_global_norm(1.0));
        let (_, text) = planned(&tape.finish());
        let long = text.lines().filter(|line| line.contains(" 10037248 ")).count();
        assert_eq!(long, 2, "{scaler}: {text}");
    }
}
