//! The programs whose kernels are checked. Together, they have every kind of kernel that the generator makes.

use crate::{catalogue::catalogue, checks::values, properties::CASTS, training};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use std::sync::Arc;
use wgrad::{
    Accumulator, Array, Attention, ClipGroups, ClipNorm, Conv2d, DType, DynamicScale, FiniteGuard, LossScaler, Noise,
    OnGiveUp, Optimizer, ParamSet, Program, Rng, Shape, Store, Tape, Tensor, Weighting, plan::Grouping,
    testing::grouping,
};
use wgrad_nn::{
    Builder, Cell, Init, Linear, Recurrent, RecurrentInit,
    optim::{
        Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, AdamWConfig, Lion, LionConfig, Muon, MuonConfig, RmsProp,
        RmsPropConfig, Sgd, SgdConfig,
    },
};

/// A function that gets each program, with its name and the options of the planner.
pub(super) type Each<'a> = dyn FnMut(&str, &Program, &Grouping) + 'a;

/// Passes all programs to `f`, including `tapes` random tapes.
pub(super) fn each(tapes: u32, f: &mut Each<'_>) {
    operations(f);
    sizes(f);
    attention(f);
    types(f);
    indices(f);
    updates(f);
    models(f);
    random_tapes(tapes, f);
}

/// Attention and its gradient in tiles: full, partial and skipped tiles, heads that share keys, in f32 and f16.
fn attention(f: &mut Each<'_>) {
    for (queries, keys, width, values) in [(64, 64, 64, 64), (8, 3, 1, 2), (40, 70, 33, 17), (33, 40, 128, 128)] {
        for (causal, dtype) in [(false, DType::F32), (true, DType::F32), (true, DType::F16)] {
            for heads in [1, 4] {
                let program = recorded(|t| {
                    // A layer has positions before heads, so the inputs are permuted.
                    let input = |name: &str, heads: usize, rows: usize, columns: usize| {
                        t.input(name, [2, rows, heads, columns], dtype).permute(&[0, 2, 1, 3])
                    };
                    let q = input("q", heads, queries, width);
                    let (k, v) =
                        (input("k", heads.div_ceil(2), keys, width), input("v", heads.div_ceil(2), keys, values));
                    let o = q.attention(k, v, &Attention { causal, ..Attention::default() });
                    let g = (o * o).cast(DType::F32).sum().grad_wrt(&[q, k, v]);
                    t.tap_each("result", o);
                    g.into_iter().for_each(|g| t.tap_each("gradient", g.expect("reached")));
                });
                f(&format!("attention {queries} {keys} {width} {values} of {dtype}"), &program, &Grouping::default());
            }
        }
    }
}

/// The types that a GPU has.
const TYPES: [DType; 5] = [DType::F32, DType::F16, DType::U32, DType::I32, DType::Bool];

fn recorded(record: impl FnOnce(&Tape)) -> Program {
    let tape = Tape::default();
    record(&tape);
    tape.finish()
}

/// Every operation, fused and unfused, in f32 and f16, with its first derivatives.
fn operations(f: &mut Each<'_>) {
    for row in catalogue() {
        for dtype in [DType::F32, DType::F16] {
            for order in [0, 1] {
                let program = values(&row, dtype, order);
                f(&row.name, &program, &Grouping::default());
                f(&row.name, &program, &Grouping::none());
            }
        }
    }
}

/// Sizes with special kernels: tiles, long rows and columns in parts, several dispatches.
fn sizes(f: &mut Each<'_>) {
    let products = [
        (64, 16, 64),
        (65, 33, 70),
        (40, 100, 60),
        (130, 17, 66),
        (2, 5000, 3),
        (1, 300, 200),
        (70, 7, 90),
        (48, 1100, 64),
    ];
    let rows =
        [[3, 20], [3, 100], [700, 70], [2, 5000], [5000, 2], [1, 200_000], [3, 40_000], [100_000, 3], [40, 1000]];
    for dtype in [DType::F32, DType::F16] {
        for (m, k, n) in products {
            for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
                let program = recorded(|t| {
                    let shape = |turned: bool, a: usize, b: usize| if turned { [2, b, a] } else { [2, a, b] };
                    let a = t.input("a", shape(ta, m, k), dtype);
                    let b = t.input("b", shape(tb, k, n), dtype);
                    let a = if ta { a.permute(&[0, 2, 1]) } else { a };
                    let b = if tb { b.permute(&[0, 2, 1]) } else { b };
                    t.tap("plain", a.matmul(b));
                    t.tap("epilogue", (a.matmul(b) + t.input("c", [n], dtype)).tanh() * 0.5);
                });
                f(&format!("product {m} {k} {n} of {dtype}"), &program, &Grouping::default());
            }
        }
        for shape in rows {
            let program = recorded(|t| {
                let x = t.input("x", shape, dtype);
                for axis in [0, 1] {
                    t.tap_each("sum", x.sum_axes(&[axis]));
                    t.tap_each("most", (x * 2.0).max_axes(&[axis]));
                    t.tap_each("norm", x.norm_axes(&[axis]));
                    t.tap_each("mean and variance", x.mean_axes(&[axis]) + x.var_axes(&[axis]));
                    t.tap_each("softmax", x.softmax(axis));
                    t.tap_each("first", x.argmax(axis));
                    t.tap_each("running", x.cumsum(axis));
                }
                t.tap("all", x.sum());
                t.tap("norm of all", x.norm());
            });
            f(&format!("rows {shape:?} of {dtype}"), &program, &Grouping::default());
            f(&format!("rows {shape:?} of {dtype}, unfused"), &program, &Grouping::none());
        }
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let empty = recorded(|t| {
                let x = t.input("x", [0, 2, 3], dtype).permute(&order);
                t.tap("all", x.sum());
                for axis in 0..3 {
                    t.tap_each("sum", x.sum_axes(&[axis]));
                    t.tap_each("most", x.max_axes(&[axis]));
                    t.tap_each("norm", x.norm_axes(&[axis]));
                    t.tap_each("running", x.cumsum(axis));
                }
            });
            f(&format!("nothing, in order {order:?} of {dtype}"), &empty, &Grouping::default());
        }
        let many = recorded(|t| {
            let x = t.input("x", [5_000_000], dtype);
            t.tap("some", (x * 2.0 + 1.0).slice_step(0, 4_999_999, 50, -99_991));
            t.tap("all", (x * 2.0).exp());
        });
        f("more elements than a dimension has workgroups", &many, &Grouping::default());
        for (x, w, conv) in convolutions() {
            let program = recorded(|t| {
                let args = [t.input("x", x, dtype), t.input("w", w, dtype)];
                let y = args[0].conv2d(args[1], conv);
                t.tap("y", y);
                y.square().sum().grad_wrt(&args).into_iter().flatten().for_each(|g| t.tap_each("gradient", g));
            });
            f(&format!("convolution {x:?} {w:?} of {dtype}"), &program, &Grouping::default());
        }
    }
}

fn convolutions() -> [([usize; 4], [usize; 4], Conv2d); 5] {
    let conv = |stride, padding, dilation, groups| Conv2d { stride, padding, dilation, groups };
    [
        ([2, 6, 17, 19], [8, 6, 3, 3], conv([1, 1], [1, 1], [1, 1], 1)),
        ([3, 4, 20, 16], [6, 2, 3, 5], conv([2, 3], [1, 2], [2, 1], 2)),
        ([2, 5, 9, 9], [5, 1, 3, 3], conv([1, 1], [1, 1], [1, 1], 5)),
        ([8, 16, 24, 24], [4, 16, 1, 1], conv([1, 1], [0, 0], [1, 1], 1)),
        // The sums of this gradient of the weights need more than one kernel.
        ([1500, 1, 90, 90], [2, 1, 2, 2], conv([1, 1], [0, 0], [1, 1], 1)),
    ]
}

/// Each type with each function that it has, and with casts to each other type.
fn types(f: &mut Each<'_>) {
    for from in TYPES {
        let program = recorded(|t| {
            let (x, y) = (t.input("x", [5, 300], from), t.input("y", [5, 300], from));
            TYPES.iter().for_each(|to| t.tap_each("cast", x.cast(*to)));
            t.tap("turned", x.transpose());
            t.tap("equal", x.equals(y));
            t.tap("larger", x.maximum(y));
            t.tap("chosen", x.equals(y).select(x, y));
            if from != DType::Bool {
                t.tap("less", x.less(y));
                t.tap("arithmetic", x + y * (x - y));
                t.tap("quotient", x / y);
                t.tap("constant", x * 3.0);
            }
            for axis in [0, 1].into_iter().filter(|_| from != DType::Bool) {
                t.tap_each("most", x.max_axes(&[axis]));
                t.tap_each("first", x.argmax(axis));
                t.tap_each("sum", x.sum_axes(&[axis]));
                t.tap_each("running", x.cumsum(axis));
            }
            if from.is_float() {
                t.tap("finite", x.is_finite());
                t.tap("powers", x.pow(y));
            }
        });
        f(&format!("functions of {from}"), &program, &Grouping::default());
        f(&format!("functions of {from}, unfused"), &program, &Grouping::none());
    }
    let random = recorded(|t| {
        let (key, counter) = (t.input("key", [2], DType::U32), t.input("counter", [], DType::U32));
        let words = t.random(key, counter, 0x1234_5678_9abc_def0, [31, 33]);
        t.tap("words", words);
        t.tap("turned", words.transpose());
    });
    f("random words", &random, &Grouping::default());
}

/// Operations that move elements by index, for each type, short and long.
fn indices(f: &mut Each<'_>) {
    for dtype in TYPES {
        for len in [7, 40_000] {
            let program = recorded(|t| {
                let (x, index) = (t.input("x", [len, 3], dtype), t.input("index", [len, 3], DType::U32));
                t.tap("gathered", x.gather(index, 0));
                t.tap("gathered of a view", x.transpose().gather(index.transpose(), 1));
                if dtype != DType::Bool {
                    t.tap("scattered", x.scatter_add(index, 0, 17));
                }
                t.tap("joined", Tensor::concat(&[x, x.flip(&[0])], 0));
                t.tap("padded", x.pad(0, 1, 2));
            });
            f(&format!("indices of {dtype}, {len}"), &program, &Grouping::default());
            f(&format!("indices of {dtype}, {len}, unfused"), &program, &Grouping::none());
        }
    }
    // A failing run must not change states, so kernels that can fail guard their writes. These states are written by
    // several kinds of kernels.
    for rows in [3, 700] {
        let mut store = Store::new();
        let ids: Vec<_> =
            ["a", "b", "c", "d"].iter().map(|name| store.state(name, &Array::zeros([rows, 2], DType::F32))).collect();
        let tape = Tape::new(Arc::new(store.layout().clone()));
        let index = tape.input("index", [rows, 2], DType::U32);
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| tape.state(ids[i]));
        let found = a.gather(index, 0);
        tape.assign(ids[0], a + found.sum());
        tape.assign(ids[1], b.scatter_add(index, 0, rows));
        tape.assign(ids[2], c.cumsum(0));
        tape.assign(ids[3], d.matmul(found.transpose().matmul(d)).softmax(1));
        f("guarded states", &tape.finish(), &Grouping::default());
    }
}

/// Parameters of several shapes: a matrix, vectors, a filter, a scalar.
fn parameters(large: bool) -> (Store, ParamSet) {
    let mut store = Store::new();
    let n = if large { 200 } else { 3 };
    for (i, shape) in [vec![n, 40], vec![n], vec![4, 2, 3, 1], vec![], vec![70]].into_iter().enumerate() {
        let shape = Shape::from(&shape[..]);
        store.param(&format!("p{i}"), &Array::zeros(shape, DType::F32));
    }
    let params = store.params();
    (store, params)
}

/// Updates: every pass, every optimizer, and the whole chain.
fn updates(f: &mut Each<'_>) {
    for large in [false, true] {
        for (name, apply) in PASSES {
            let (mut store, params) = parameters(large);
            let rng = Rng::new(&mut store, "noise", 7);
            let guard = FiniteGuard::new(&mut store, "guard", Some(5), OnGiveUp::Error);
            let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
            let tape = Tape::new(Arc::new(store.layout().clone()));
            let loss = tape.arenas(&params).tensors()[0].square().sum();
            sgd.step(apply(loss.grad(&params), (&params, rng, &guard)));
            f(&format!("pass {name}"), &tape.finish(), &Grouping::default());
        }
        for (name, step) in OPTIMIZERS {
            let (mut store, params) = parameters(large);
            let step = step(&mut store, &params);
            let tape = Tape::new(Arc::new(store.layout().clone()));
            let loss = tape.arenas(&params).tensors()[0].square().sum();
            step.step(loss.grad(&params));
            f(&format!("optimizer {name}"), &tape.finish(), &Grouping::default());
        }
        let (mut store, params) = parameters(large);
        let adamw = AdamW::new(&mut store, &params, AdamWConfig::default());
        let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
        let accumulator = Accumulator::new(&mut store, &params, "window", Weighting::Mean);
        let layout = Arc::new(store.layout().clone());
        let micro = Tape::new(layout.clone());
        let loss = micro.arenas(&params).tensors()[0].square().sum();
        accumulator.add(scaler.scale(loss).grad(&params));
        f("accumulation", &micro.finish(), &Grouping::default());
        let tape = Tape::new(layout);
        let grads = accumulator.take(&tape).unscale(&scaler).check_finite().centralize().agc(0.01);
        adamw.step(grads.clip_by_global_norm(1.0));
        scaler.update(&tape);
        let program = tape.finish();
        f("full update", &program, &Grouping::default());
        f("full update, unfused", &program, &Grouping::none());
    }
}

type Grads<'t> = wgrad::Grads<'t>;
type Pass = for<'t> fn(Grads<'t>, (&ParamSet, Rng, &FiniteGuard)) -> Grads<'t>;

const PASSES: [(&str, Pass); 13] = [
    ("clip 2", |g, _| g.clip_by_global_norm(0.7)),
    ("clip 1.5", |g, _| g.clip_by_global_norm(ClipNorm::new(0.7).p(1.5))),
    ("clip inf", |g, _| g.clip_by_global_norm(ClipNorm::new(0.7).p(f64::INFINITY))),
    ("group norm", |g, (p, ..)| g.clip_by_group_norm(&ClipGroups::per_parameter(p, 0.3))),
    ("group norm inf", |g, (p, ..)| g.clip_by_group_norm(&ClipGroups::per_parameter(p, 0.3).p(f64::INFINITY))),
    ("block rms", |g, _| g.clip_by_block_rms(0.5)),
    ("value", |g, _| g.clip_by_value(0.55)),
    ("agc", |g, _| g.agc(0.8)),
    ("agc per tensor", |g, _| g.agc_per_tensor(0.5, 1e-6, 0.0)),
    ("centralize", |g, _| g.centralize()),
    ("noise", |g, (_, rng, _)| g.add_noise(Noise::annealed(0.3), rng)),
    ("scale", |g, (p, ..)| g.scale_grad(p, 0.5)),
    ("guard", |g, (.., guard)| g.check_finite().skip_if_not_finite(guard)),
];

const OPTIMIZERS: [(&str, crate::MakeOptimizer); 8] = [
    ("sgd", |store, params| {
        Box::new(Sgd::new(
            store,
            params,
            SgdConfig { momentum: 0.9, nesterov: true, weight_decay: 0.1, ..Default::default() },
        ))
    }),
    ("adam", |store, params| Box::new(Adam::new(store, params, AdamConfig::default()))),
    ("adamw", |store, params| Box::new(AdamW::new(store, params, AdamWConfig::default()))),
    ("rmsprop", |store, params| Box::new(RmsProp::new(store, params, RmsPropConfig::default()))),
    ("amsgrad", |store, params| {
        Box::new(Adam::new(store, params, AdamConfig { amsgrad: true, ..AdamConfig::default() }))
    }),
    ("adagrad", |store, params| Box::new(Adagrad::new(store, params, AdagradConfig::default()))),
    ("lion", |store, params| Box::new(Lion::new(store, params, LionConfig::default()))),
    ("muon", |store, params| Box::new(Muon::new(store, params, MuonConfig::default()))),
];

/// Networks with their training steps.
fn models(f: &mut Each<'_>) {
    for cell in [Cell::Tanh, Cell::Lstm, Cell::Gru] {
        let mut store = Store::new();
        let mut builder = Builder::new(&mut store, 7);
        let rnn = Recurrent::new(builder.at("rnn"), cell, 4, 24, &RecurrentInit::of(cell));
        let head = Linear::new(builder.at("head"), 24, 3, &Init::Normal(0.2));
        let params = store.params();
        let adam = AdamW::new(&mut store, &params, AdamWConfig::default());
        let tape = Tape::new(Arc::new(store.layout().clone()));
        let (x, y) = (tape.input("x", [3, 5, 4], DType::F32), tape.input("y", [5], DType::U32));
        let loss = head.forward(rnn.forward(x).last).cross_entropy(y);
        tape.tap("loss", loss);
        adam.step(loss.grad(&params).clip_by_global_norm(0.5));
        f(&format!("training of {cell:?}"), &tape.finish(), &Grouping::default());
    }
}

/// Training steps of random tapes, which are the same in each run.
fn random_tapes(count: u32, f: &mut Each<'_>) {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = (training(8), grouping());
    for i in 0..count {
        let (case, grouping) = strategy.new_tree(&mut runner).expect("no case is rejected").current();
        f(&format!("random tape {i}"), &case.with_dtype(DType::F32).without(&CASTS).record(), &grouping);
    }
}
