//! How long it takes to record a training step and to plan it, for stacks of 2 to 48 layers: linear, layer norm, tanh,
//! trained by AdamW with clipping.

use criterion::{Criterion, criterion_group, criterion_main};
use std::sync::Arc;
use wgrad::{DType, Optimizer, Program, Store, Tape, plan::Plan};
use wgrad_nn::{
    Builder, Init, Linear,
    optim::{Adam, AdamConfig},
};

const WIDTH: usize = 64;
const BATCH: usize = 32;

/// A model to record again and again.
struct Stack {
    layers: Vec<Linear>,
    adam: Adam,
    store: Store,
}

impl Stack {
    fn new(depth: usize) -> Self {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0);
        let init = Init::XavierUniform { gain: 1.0 };
        let layers = (0..depth).map(|i| Linear::new(b.at(&format!("layer{i}")), WIDTH, WIDTH, &init)).collect();
        let params = store.params();
        let adam = Adam::new(&mut store, &params, AdamConfig::default());
        Self { layers, adam, store }
    }

    fn record(&self) -> Program {
        let tape = Tape::new(Arc::new(self.store.layout().clone()));
        let (x, y) = (tape.input("x", [BATCH, WIDTH], DType::F32), tape.input("y", [BATCH, WIDTH], DType::F32));
        let out = self.layers.iter().fold(x, |x, layer| {
            let h = layer.forward(x);
            let column = [BATCH, 1];
            let centred = h - h.mean_axes(&[1]).reshape(column);
            let deviation = (h.var_axes(&[1]).reshape(column) + 1e-5).sqrt();
            (centred / deviation).tanh() + x
        });
        let loss = out.mse(y);
        tape.tap("loss", loss);
        self.adam.step(loss.grad(&self.store.params()).clip_by_global_norm(1.0));
        tape.finish()
    }
}

fn planning(c: &mut Criterion) {
    for depth in [2, 6, 12, 24, 48] {
        let stack = Stack::new(depth);
        let program = stack.record();
        let plan = |program: &Program| Plan::new(&program.lowered(true, |_, _| true));
        let (nodes, kernels) = (program.nodes().len(), plan(&program).kernels.len());
        println!("{depth} layers: {nodes} nodes, {kernels} kernels");
        c.bench_function(&format!("record/{depth}"), |b| b.iter(|| stack.record()));
        c.bench_function(&format!("plan/{depth}"), |b| b.iter(|| plan(&program)));
    }
}

criterion_group!(benches, planning);
criterion_main!(benches);
