//! How long it takes to record a training step and to plan it, for 2 to 48 layers: of a stack of linear layer, layer norm
//! and tanh, and of the decoder that `wgrad bench w1` trains. AdamW trains both, with clipping. They are planned for kernels
//! of as few buffers as devices bind, and of as many as the CPU takes. Planning includes the lowering before it.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::sync::Arc;
use wgrad::{
    Backend, DType, Optimizer, Program, Store, Tape, Tensor,
    plan::{Grouping, Plan},
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Builder, Gpt, GptConfig, Init, Linear,
    optim::{AdamW, AdamWConfig},
};

const WIDTH: usize = 64;
const BATCH: usize = 32;
/// Texts of a batch, and the symbols they are made of.
const TEXTS: usize = 8;
const VOCABULARY: usize = 96;

type Loss = Box<dyn for<'t> Fn(&'t Tape) -> Tensor<'t>>;
/// Declares a model of so many layers.
type Declare = fn(Builder<'_>, usize) -> Loss;

/// A model to record again and again.
struct Model {
    loss: Loss,
    adamw: AdamW,
    store: Store,
}

impl Model {
    fn new(declare: Declare, depth: usize) -> Self {
        let mut store = Store::new();
        let loss = declare(Builder::new(&mut store, 0), depth);
        let params = store.params();
        let adamw = AdamW::new(&mut store, &params, AdamWConfig::default());
        Self { loss, adamw, store }
    }

    fn record(&self) -> Program {
        let tape = Tape::new(Arc::new(self.store.layout().clone()));
        let loss = (self.loss)(&tape);
        tape.tap("loss", loss);
        self.adamw.step(loss.grad(&self.store.params()).clip_by_global_norm(1.0));
        tape.finish()
    }
}

fn stack(mut b: Builder<'_>, depth: usize) -> Loss {
    let init = Init::XavierUniform { gain: 1.0 };
    let layers: Vec<Linear> =
        (0..depth).map(|i| Linear::new(b.at(&format!("layer{i}")), WIDTH, WIDTH, &init)).collect();
    Box::new(move |tape| {
        let (x, y) = (tape.input("x", [BATCH, WIDTH], DType::F32), tape.input("y", [BATCH, WIDTH], DType::F32));
        let out = layers.iter().fold(x, |x, layer| {
            let h = layer.forward(x);
            let column = [BATCH, 1];
            let centred = h - h.mean_axes(&[1]).reshape(column);
            let deviation = (h.var_axes(&[1]).reshape(column) + 1e-5).sqrt();
            (centred / deviation).tanh() + x
        });
        out.mse(y)
    })
}

fn decoder(b: Builder<'_>, layers: usize) -> Loss {
    let model = Gpt::new(b, &GptConfig { layers, ..GptConfig::small(VOCABULARY) });
    let shape = [TEXTS, model.config.context];
    Box::new(move |tape| model.loss(tape.input("x", shape, DType::U32), tape.input("y", shape, DType::U32), true))
}

const MODELS: [(&str, Declare); 2] = [("stack", stack), ("decoder", decoder)];

fn planning(c: &mut Criterion) {
    let cpu = CpuBackend::new(1).expect("one thread").grouping();
    for (name, declare) in MODELS {
        let mut group = c.benchmark_group(name);
        for depth in [2, 6, 12, 24, 48] {
            let model = Model::new(declare, depth);
            let program = model.record();
            group.bench_function(BenchmarkId::new("record", depth), |b| b.iter(|| model.record()));
            for grouping in [Grouping::default(), cpu.clone()] {
                let plan = || Plan::with(&program.lowered(true, |_, _| true), &grouping);
                let (nodes, kernels, buffers) = (program.nodes().len(), plan().kernels.len(), grouping.buffers);
                println!("{name} of {depth} layers, {buffers} buffers: {nodes} nodes, {kernels} kernels");
                group.bench_function(BenchmarkId::new(format!("plan_{buffers}"), depth), |b| b.iter(plan));
            }
        }
    }
}

criterion_group!(name = benches; config = Criterion::default().sample_size(20); targets = planning);
criterion_main!(benches);
