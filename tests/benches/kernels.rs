//! How fast the single kernels of the CPU are, at the shapes that training steps have: each is a small recorded program
//! over states, compiled once.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::{thread::available_parallelism, time::Duration};
use wgrad::{
    Array, Attention, Cell, Conv2d, Optimizer, Recurrence, Result, Session, StateId, Step, Store, Tape, Tensor,
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::optim::{AdamW, AdamWConfig};

/// Something to time.
struct Kernel {
    name: &'static str,
    /// Floating-point operations as elements, or the bytes of all inputs and outputs, each counted once.
    work: Throughput,
    /// Declares what it needs, and gives what records it.
    declare: fn(&mut Store) -> Record,
}

type Record = Box<dyn Fn(&Tape)>;

/// The tokens of a batch of the transformers that `wgrad bench` trains.
const TOKENS: usize = 1024;
/// The widths of their linear layers: those of w1, and of w2.
const SMALL: [usize; 2] = [128, 512];
const MIDDLE: [usize; 2] = [384, 1536];
/// Batch, heads, positions and the width of a head, in w1.
const HEADS: [usize; 4] = [8, 4, 128, 32];
/// Images of w5 at the beginning and at the end, and the kernels that keep their channels.
const LARGE_IMAGES: [usize; 4] = [32, 16, 32, 32];
const LARGE_FILTERS: [usize; 4] = [16, 16, 3, 3];
const SMALL_IMAGES: [usize; 4] = [32, 64, 8, 8];
const SMALL_FILTERS: [usize; 4] = [64, 64, 3, 3];
/// A matrix with a row for each soft-max or normalisation.
const ROWS: [usize; 2] = [4096, 1024];
const FEATURES: [usize; 1] = [ROWS[1]];
/// Many small matrices.
const MATRICES: [usize; 3] = [256, 32, 32];
/// Time, batch and units of the LSTM of w4.
const SEQUENCE: [usize; 3] = [100, 32, 256];
/// A table of vectors, and how many of them are looked up.
const TABLE: [usize; 2] = [32_768, 128];
const LOOKED_UP: usize = 8192;
/// As many tensors as this, of 1024x1024: ten million parameters.
const TENSORS: usize = 10;

const KERNELS: [Kernel; 27] = [
    Kernel {
        name: "w1 product",
        work: product(TOKENS, SMALL[0], SMALL[1]),
        declare: |s| on(s, &[&[TOKENS, SMALL[0]], &SMALL], |x| vec![x[0].matmul(x[1])]),
    },
    Kernel {
        name: "w1 product, bias and GELU",
        work: product(TOKENS, SMALL[0], SMALL[1]),
        declare: |s| on(s, &[&[TOKENS, SMALL[0]], &[SMALL[1], SMALL[0]], &[SMALL[1]]], with_gelu),
    },
    Kernel {
        name: "w1 weight gradient",
        work: product(TOKENS, SMALL[0], SMALL[1]),
        declare: |s| on(s, &[&[TOKENS, SMALL[1]], &[TOKENS, SMALL[0]]], |x| vec![x[0].transpose().matmul(x[1])]),
    },
    Kernel {
        name: "w2 product",
        work: product(TOKENS, MIDDLE[0], MIDDLE[1]),
        declare: |s| on(s, &[&[TOKENS, MIDDLE[0]], &MIDDLE], |x| vec![x[0].matmul(x[1])]),
    },
    Kernel {
        name: "w2 product, bias and GELU",
        work: product(TOKENS, MIDDLE[0], MIDDLE[1]),
        declare: |s| on(s, &[&[TOKENS, MIDDLE[0]], &[MIDDLE[1], MIDDLE[0]], &[MIDDLE[1]]], with_gelu),
    },
    Kernel {
        name: "w2 weight gradient",
        work: product(TOKENS, MIDDLE[0], MIDDLE[1]),
        declare: |s| on(s, &[&[TOKENS, MIDDLE[1]], &[TOKENS, MIDDLE[0]]], |x| vec![x[0].transpose().matmul(x[1])]),
    },
    Kernel {
        name: "small products",
        work: product(MATRICES[0] * MATRICES[1], MATRICES[2], MATRICES[2]),
        declare: |s| on(s, &[&MATRICES, &MATRICES], |x| vec![x[0].matmul(x[1])]),
    },
    Kernel {
        name: "attention",
        work: attention_products(2),
        declare: |s| on(s, &[&HEADS, &HEADS, &HEADS], |x| vec![attention(x)]),
    },
    Kernel {
        name: "attention with gradients",
        // Scores are computed again in the backward sweep, which is no part of the work.
        work: attention_products(6),
        declare: |s| on(s, &[&HEADS, &HEADS, &HEADS, &HEADS], |x| with_gradients(attention(x), x[3], &x[..3])),
    },
    Kernel {
        name: "large convolution",
        work: convolution(LARGE_IMAGES, LARGE_FILTERS),
        declare: |s| on(s, &[&LARGE_IMAGES, &LARGE_FILTERS], |x| vec![x[0].conv2d(x[1], Conv2d::same(3))]),
    },
    Kernel {
        name: "large convolution's input gradient",
        work: convolution(LARGE_IMAGES, LARGE_FILTERS),
        declare: |s| on(s, &[&LARGE_IMAGES, &LARGE_FILTERS, &LARGE_IMAGES], |x| convolution_gradient(x, 0)),
    },
    Kernel {
        name: "large convolution's weight gradient",
        work: convolution(LARGE_IMAGES, LARGE_FILTERS),
        declare: |s| on(s, &[&LARGE_IMAGES, &LARGE_FILTERS, &LARGE_IMAGES], |x| convolution_gradient(x, 1)),
    },
    Kernel {
        name: "small convolution",
        work: convolution(SMALL_IMAGES, SMALL_FILTERS),
        declare: |s| on(s, &[&SMALL_IMAGES, &SMALL_FILTERS], |x| vec![x[0].conv2d(x[1], Conv2d::same(3))]),
    },
    Kernel {
        name: "small convolution's input gradient",
        work: convolution(SMALL_IMAGES, SMALL_FILTERS),
        declare: |s| on(s, &[&SMALL_IMAGES, &SMALL_FILTERS, &SMALL_IMAGES], |x| convolution_gradient(x, 0)),
    },
    Kernel {
        name: "small convolution's weight gradient",
        work: convolution(SMALL_IMAGES, SMALL_FILTERS),
        declare: |s| on(s, &[&SMALL_IMAGES, &SMALL_FILTERS, &SMALL_IMAGES], |x| convolution_gradient(x, 1)),
    },
    Kernel {
        name: "LSTM",
        work: product(SEQUENCE[0] * SEQUENCE[1], SEQUENCE[2], 4 * SEQUENCE[2]),
        declare: |s| on(s, &LSTM, |x| vec![lstm(x)]),
    },
    Kernel {
        name: "LSTM with gradients",
        // The gradient of the hidden states, and that of the weights.
        work: product(3 * SEQUENCE[0] * SEQUENCE[1], SEQUENCE[2], 4 * SEQUENCE[2]),
        declare: |s| on(s, &[&LSTM[..], &[&SEQUENCE]].concat(), |x| with_gradients(lstm(x), x[4], &x[..2])),
    },
    Kernel {
        name: "soft-max",
        work: floats(2 * numel(&ROWS)),
        declare: |s| on(s, &[&ROWS], |x| vec![x[0].softmax(1)]),
    },
    Kernel {
        name: "soft-max with gradient",
        work: floats(4 * numel(&ROWS)),
        declare: |s| on(s, &[&ROWS, &ROWS], |x| with_gradients(x[0].softmax(1), x[1], &x[..1])),
    },
    Kernel {
        name: "layer norm",
        work: floats(2 * numel(&ROWS)),
        declare: |s| on(s, &[&ROWS, &FEATURES, &FEATURES], |x| vec![layer_norm(x)]),
    },
    Kernel {
        name: "layer norm with gradients",
        work: floats(4 * numel(&ROWS)),
        declare: |s| on(s, &[&ROWS, &FEATURES, &FEATURES, &ROWS], |x| with_gradients(layer_norm(x), x[3], &x[..3])),
    },
    Kernel { name: "sum", work: floats(16 << 20), declare: |s| on(s, &[&[16 << 20]], |x| vec![x[0].sum()]) },
    Kernel {
        name: "row sums",
        work: floats(numel(&ROWS)),
        declare: |s| on(s, &[&ROWS], |x| vec![x[0].sum_axes(&[1])]),
    },
    Kernel {
        name: "column sums",
        work: floats(numel(&ROWS)),
        declare: |s| on(s, &[&ROWS], |x| vec![x[0].sum_axes(&[0])]),
    },
    Kernel {
        name: "embedding",
        work: floats((1 + 2 * TABLE[1]) * LOOKED_UP),
        declare: |s| looking_up(s, &TABLE, |table, index| table.rows(index)),
    },
    Kernel {
        name: "embedding's gradient",
        work: floats((1 + TABLE[1]) * LOOKED_UP + numel(&TABLE)),
        declare: |s| {
            looking_up(s, &[LOOKED_UP, TABLE[1]], |dy, index| {
                let spread = index.reshape([LOOKED_UP, 1]).broadcast_to([LOOKED_UP, TABLE[1]]);
                dy.scatter_add(spread, 0, TABLE[0])
            })
        },
    },
    // Parameters, gradients and two moments are read; all but the gradients are written.
    Kernel { name: "AdamW", work: floats((7 * TENSORS) << 20), declare: adamw },
];

/// The input's part of the gates, the weights, and the states before the first step.
const LSTM: [&[usize]; 4] = [
    &[SEQUENCE[0], SEQUENCE[1], 4 * SEQUENCE[2]],
    &[4 * SEQUENCE[2], SEQUENCE[2]],
    &[SEQUENCE[1], SEQUENCE[2]],
    &[SEQUENCE[1], SEQUENCE[2]],
];

const fn numel(shape: &[usize; 2]) -> usize {
    shape[0] * shape[1]
}

/// The bytes of so many elements of f32 or u32.
const fn floats(count: usize) -> Throughput {
    Throughput::Bytes(4 * count as u64)
}

/// The arithmetic of a product `[m, k]` by `[k, n]`.
const fn product(m: usize, k: usize, n: usize) -> Throughput {
    Throughput::Elements((2 * m * k * n) as u64)
}

/// Products as large as that of queries and keys, half of which causality leaves out.
const fn attention_products(count: usize) -> Throughput {
    product(count * HEADS[0] * HEADS[1] * HEADS[2], HEADS[3], HEADS[2] / 2)
}

/// A convolution that keeps height and width, or one of its gradients.
const fn convolution(images: [usize; 4], filters: [usize; 4]) -> Throughput {
    product(images[0] * images[2] * images[3], filters[1] * filters[2] * filters[3], filters[0])
}

fn with_gelu<'t>(x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    vec![(x[0].matmul_t(x[1]) + x[2]).gelu_tanh()]
}

fn attention<'t>(x: &[Tensor<'t>]) -> Tensor<'t> {
    x[0].attention(x[1], x[2], &Attention { causal: true, ..Attention::default() })
}

/// The gradient of one of images and filters, given that of the output.
fn convolution_gradient<'t>(x: &[Tensor<'t>], of: usize) -> Vec<Tensor<'t>> {
    with_gradients(x[0].conv2d(x[1], Conv2d::same(3)), x[2], &[x[of]]).split_off(1)
}

fn layer_norm<'t>(x: &[Tensor<'t>]) -> Tensor<'t> {
    x[0].layer_norm(1, Some(x[1]), Some(x[2]), 1e-5)
}

fn lstm<'t>(x: &[Tensor<'t>]) -> Tensor<'t> {
    Recurrence { cell: Cell::Lstm, z: x[0], w_hh: x[1], h0: x[2], c0: Some(x[3]), b_hh: None }.run().0
}

/// A value, and the gradients of what it depends on.
fn with_gradients<'t>(y: Tensor<'t>, dy: Tensor<'t>, of: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let gradients = y.vjp(dy, of);
    [Some(y)].into_iter().chain(gradients).map(|value| value.expect("y depends on each of them")).collect()
}

/// Records what is computed of tensors of these shapes.
fn on(store: &mut Store, shapes: &[&[usize]], record: for<'t> fn(&[Tensor<'t>]) -> Vec<Tensor<'t>>) -> Record {
    let states: Vec<StateId> = shapes.iter().enumerate().map(|(i, shape)| given(store, i, shape)).collect();
    Box::new(move |t| {
        let tensors: Vec<Tensor<'_>> = states.iter().map(|&state| t.state(state)).collect();
        record(&tensors).into_iter().for_each(tap_one_element);
    })
}

/// Records what is computed of a tensor by an index of rows.
fn looking_up(store: &mut Store, shape: &[usize], record: for<'t> fn(Tensor<'t>, Tensor<'t>) -> Tensor<'t>) -> Record {
    let state = given(store, 0, shape);
    let rows: Vec<u32> = (0..LOOKED_UP).map(|i| scrambled(i) % TABLE[0] as u32).collect();
    let index = store.state("index", &Array::new([LOOKED_UP], rows));
    Box::new(move |t| tap_one_element(record(t.state(state), t.state(index))))
}

/// Records an update of ten million parameters, whose gradients are there.
fn adamw(store: &mut Store) -> Record {
    (0..TENSORS).for_each(|i| {
        store.param(&format!("p{i}"), &values(i, &[1024, 1024]));
    });
    let params = store.params();
    let arena = params.arenas(store.layout())[0];
    let shape = store.layout().state(arena).shape.clone();
    let gradients = given(store, TENSORS, &shape);
    let adamw = AdamW::new(store, &params, AdamWConfig::default());
    Box::new(move |t| adamw.step(t.state(arena).dot(t.state(gradients)).grad(&params)))
}

/// A state with numbers in it.
fn given(store: &mut Store, which: usize, shape: &[usize]) -> StateId {
    store.state(&format!("given{which}"), &values(which, shape))
}

/// Numbers in `[-0.1, 0.1)`: about as large as weights, with which an LSTM neither explodes nor vanishes.
fn values(which: usize, shape: &[usize]) -> Array {
    let numel: usize = shape.iter().product();
    let value = |i: usize| scrambled((which << 26) + i) as f32 / (1u64 << 32) as f32 * 0.2 - 0.1;
    Array::new(shape, (0..numel).map(value).collect::<Vec<f32>>())
}

/// The finalizer of MurmurHash3 (Appleby 2011).
fn scrambled(i: usize) -> u32 {
    let x = i as u32;
    let x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    let x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// Shows one element to the host: the whole value is computed, and not copied.
fn tap_one_element(value: Tensor<'_>) {
    let corner = (0..value.rank()).fold(value.barrier(), |corner, axis| corner.slice(axis, 0, 1));
    value.tape().tap("element", corner);
}

impl Kernel {
    /// Compiles it, and says what kernels it has become.
    fn prepare(&self, threads: usize) -> Result<(Session, Step)> {
        let mut store = Store::new();
        let record = (self.declare)(&mut store);
        let mut session = Session::new(Box::new(CpuBackend::new(threads)?), store)?;
        let tape = Tape::new(session.layout().clone());
        record(&tape);
        let program = tape.finish();
        let (planned, plan) = session.plan(&program);
        for cost in plan.costs(&planned, &vec![0.0; plan.kernels.len()]) {
            println!("{} x {} over {}: {}", cost.kernels.len(), cost.kernel, cost.over, cost.computes);
        }
        let step = session.compile(program)?;
        Ok((session, step))
    }

    /// One run, waited for.
    fn run((session, step): &mut (Session, Step)) -> Result<()> {
        session.run(step, &[])?;
        session.wait()?;
        session.taps().map(drop)
    }

    /// Times it on all cores; if it is arithmetic, on one too.
    fn time(&self, c: &mut Criterion) {
        let cores = available_parallelism().map_or(1, usize::from);
        let alone = cores > 1 && matches!(self.work, Throughput::Elements(_));
        let mut group = c.benchmark_group(self.name);
        group.throughput(self.work.clone());
        for threads in [Some(cores), alone.then_some(1)].into_iter().flatten() {
            let mut ready = None;
            group.bench_function(BenchmarkId::from_parameter(threads), |b| {
                let ready = ready.get_or_insert_with(|| self.prepare(threads).expect("compiles on a CPU"));
                b.iter(|| Self::run(ready).expect("runs on a CPU"));
            });
        }
    }
}

fn kernels(c: &mut Criterion) {
    KERNELS.iter().for_each(|kernel| kernel.time(c));
}

/// Few samples: all kernels together take about two minutes.
fn brief() -> Criterion {
    let (warm, timed) = (Duration::from_millis(300), Duration::from_secs(2));
    Criterion::default().sample_size(20).warm_up_time(warm).measurement_time(timed)
}

criterion_group!(name = benches; config = brief(); targets = kernels);
criterion_main!(benches);
