//! Sums, counts, norms and attention of f16 numbers: each result is within one f16 unit in the last place of the result in f64
//! of the same numbers, on the CPU and on GPUs. So nothing on the way is rounded to f16, or leaves its range.

use approx::abs_diff_eq;
use std::sync::Arc;
use wgrad::{
    Array, Attention, Conv2d, DType, Data, Pool2d, Program, Store, Tape, Tensor, f16, f16_from_f64, op::Segments,
};
use wgrad_tests::{Machine, gpus, gpus_of_f16, reference};

/// A function's name, the shape of its argument, what that is filled with, and the function.
type Row = (&'static str, &'static [usize], fn(usize) -> f64, for<'t> fn(Tensor<'t>) -> Tensor<'t>);

fn one(_: usize) -> f64 {
    1.0
}

fn zero(_: usize) -> f64 {
    0.0
}

fn tenth(_: usize) -> f64 {
    0.1
}

fn large(_: usize) -> f64 {
    60_000.0
}

/// 2000 and 0.25 by turns.
fn mixed(i: usize) -> f64 {
    if i.is_multiple_of(2) { 2000.0 } else { 0.25 }
}

/// Between -2 and 2, never the same for long.
fn waves(i: usize) -> f64 {
    2.0 * (i as f64 * 0.61).sin()
}

/// Queries, keys and values whose scores differ by more than f16 holds.
fn far_apart(i: usize) -> f64 {
    [300.0, 300.0, -300.0, 300.0, 280.0, -300.0, 299.0, -180.0][i % 8]
}

/// Slopes of a row's result, each weighed by another half, by its argument.
fn slope<'t>(x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
    let weights = (y.tape().iota(y.numel()) / y.tape().scalar(7.0, DType::U32)).cast(y.dtype()) * 0.125 + 0.5;
    y.vjp(weights.reshape(y.shape()), &[x])[0].expect("it depends on it")
}

fn gradient<'t>(x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
    y.vjp(y.ones_like(), &[x])[0].expect("it depends on it")
}

fn segments(x: Tensor<'_>) -> Arc<Segments> {
    let n = x.numel();
    Arc::new(Segments { total: n, ranges: [(0, 10), (10, n - 15), (n - 3, 3)].into() })
}

fn nowhere(x: Tensor<'_>) -> Tensor<'_> {
    x.tape().full(x.shape(), 0.0, DType::U32)
}

fn padded() -> Pool2d {
    Pool2d { kernel: [5, 5], stride: [2, 2], padding: [2, 2] }
}

fn causal<'t>() -> Attention<'t> {
    Attention { causal: true, ..Attention::default() }
}

/// Which keys queries see: all but every third.
fn mask(x: Tensor<'_>) -> Option<Tensor<'_>> {
    let n = x.shape()[x.rank() - 2];
    let third = x.tape().iota(n * n) / x.tape().scalar(3.0, DType::U32) * x.tape().scalar(3.0, DType::U32);
    Some(third.less(x.tape().iota(n * n)).reshape([n, n]))
}

/// Far more keys than queries, of which the latter are the first.
fn shared<'t>(x: Tensor<'t>, options: &Attention<'t>) -> Tensor<'t> {
    x.attention(x.slice(0, 1, 1), x.slice(0, 0, 1) * 0.5, options)
}

const ROWS: &[Row] = &[
    ("sum", &[4100], one, |x| x.sum()),
    ("sum", &[30_000], mixed, |x| x.slice_step(0, 1, 15_000, 2).sum()),
    ("sum of columns", &[5000, 3], one, |x| x.sum_axes(&[0])),
    ("mean", &[70_000], one, |x| x.mean()),
    ("mean", &[100], large, |x| x.mean()),
    ("mean of columns", &[5000, 3], tenth, |x| x.mean_axes(&[0])),
    ("mean's slope", &[70_000], tenth, |x| gradient(x, x.mean())),
    ("variance", &[5000], mixed, |x| (x * 0.0625).var_axes(&[0])),
    ("norm", &[5000], tenth, |x| x.norm()),
    ("norm's slope", &[5000], tenth, |x| gradient(x, x.norm())),
    ("norm's slope beyond f16", &[4], large, |x| gradient(x, x.norm())),
    ("cumsum", &[4100], one, |x| x.cumsum(0)),
    ("cumsum of columns", &[4100, 2], tenth, |x| x.cumsum(0)),
    ("cumsum of many", &[40_000], one, |x| x.cumsum(0)),
    ("cumsum's slope", &[4100], tenth, |x| gradient(x, x.cumsum(0))),
    ("segment_sum", &[5000], one, |x| x.segment_sum(&segments(x))),
    ("segment_norm", &[5000], tenth, |x| x.segment_norm(&segments(x))),
    ("segment_norm's slope beyond f16", &[20], large, |x| gradient(x, x.segment_norm(&segments(x)))),
    ("segment_broadcast's slope", &[3], one, |x| {
        let segments = Arc::new(Segments { total: 5000, ranges: [(0, 1), (1, 4000), (4100, 900)].into() });
        gradient(x, x.segment_broadcast(&segments))
    }),
    ("scatter_add", &[5000], one, |x| x.scatter_add(nowhere(x), 0, 2)),
    ("gather's slope", &[2], one, |x| gradient(x, x.gather(x.tape().full([5000], 0.0, DType::U32), 0))),
    ("rows' slope", &[2, 3], one, |x| gradient(x, x.rows(x.tape().full([2500], 1.0, DType::U32)))),
    ("embedding's slope", &[2, 3], one, |x| gradient(x, x.embedding(x.tape().full([2500], 1.0, DType::U32), Some(0)))),
    ("expand's slope", &[1, 3], one, |x| gradient(x, x.broadcast_to([5000, 3]))),
    ("overlapping slices' slope", &[40], one, |x| {
        let parts: Vec<Tensor<'_>> = (0..30).map(|i| x.slice(0, i % 7, 30) * 100.0).collect();
        slope(x, Tensor::concat(&parts, 0))
    }),
    ("dot", &[5000], tenth, |x| x.reshape([1, 5000]).matmul(x.reshape([5000, 1]))),
    ("matmul", &[70, 300], waves, |x| x.matmul_t(x)),
    ("matmul's slope", &[70, 300], waves, |x| gradient(x, x.matmul(x.detach().transpose()))),
    ("conv2d", &[1, 1, 60, 60], tenth, |x| x.conv2d(x.reshape([1, 1, 60, 60]), Conv2d::default())),
    ("conv2d's slope by weights", &[1, 1, 60, 60], tenth, |x| {
        let w = x.tape().full([1, 1, 3, 3], 1.0, x.dtype());
        gradient(w, x.conv2d(w, Conv2d::same(3)))
    }),
    ("conv2d's slope by images", &[1, 1, 8, 8], tenth, |x| {
        gradient(x, x.conv2d(x.tape().full([300, 1, 7, 7], 0.1, x.dtype()), Conv2d::same(7)))
    }),
    ("max's slope among ties", &[5000], zero, |x| gradient(x, x.max())),
    ("max's slope among more", &[70_000], zero, |x| gradient(x, x.max())),
    ("min's slope among ties", &[3000, 2], zero, |x| slope(x, x.min_axes(&[0]))),
    ("segment_max's slope among ties", &[5000], zero, |x| gradient(x, x.segment_max(&segments(x)))),
    ("avg_pool2d", &[1, 1, 64, 64], one, |x| x.avg_pool2d(&Pool2d::square(64), true)),
    ("avg_pool2d", &[1, 1, 8, 8], |_| 2000.0, |x| x.avg_pool2d(&Pool2d::square(8), true)),
    ("avg_pool2d", &[1, 1, 8, 8], tenth, |x| x.avg_pool2d(&Pool2d::square(8), true)),
    ("avg_pool2d of what is there", &[1, 2, 16, 16], mixed, |x| x.avg_pool2d(&padded(), false)),
    ("avg_pool2d with padding", &[1, 2, 16, 16], large, |x| x.avg_pool2d(&padded(), true)),
    ("avg_pool2d's slope", &[1, 2, 16, 16], tenth, |x| slope(x, x.avg_pool2d(&padded(), false))),
    ("max_pool2d's slope", &[1, 2, 16, 16], zero, |x| slope(x, x.max_pool2d(&padded()))),
    ("global_avg_pool", &[1, 2, 100, 100], large, |x| x.global_avg_pool()),
    ("global_avg_pool's slope", &[1, 2, 300, 300], tenth, |x| gradient(x, x.global_avg_pool())),
    ("softmax", &[1, 70_000], tenth, |x| x.softmax(1)),
    ("logsumexp", &[2, 5000], large, |x| x.logsumexp(1)),
    ("by more than f16 holds", &[4], large, |x| x / 100_000.0),
    ("times less than f16 holds", &[4], large, |x| x * 1e-8),
    ("from more than f16 holds", &[4], large, |x| 100_000.0 - x),
    ("times a number that is no half", &[40], waves, |x| x * 0.1),
    ("its slope", &[40], waves, |x| slope(x, x * 1e-3)),
    ("more than f16 holds by it", &[4], large, |x| 1e6 / x),
    ("attention", &[1, 2, 2], far_apart, |x| x.attention(x, x, &Attention::default())),
    ("attention", &[2, 9, 4], far_apart, |x| x.attention(x, x, &Attention::default())),
    ("attention, causal", &[2, 9, 4], far_apart, |x| x.attention(x, x, &causal())),
    ("attention, masked", &[2, 9, 4], far_apart, |x| {
        x.attention(x, x, &Attention { mask: mask(x), ..Attention::default() })
    }),
    ("attention, scores shifted", &[2, 9, 4], far_apart, |x| {
        let mask = Some(x.slice(2, 0, 1) * -200.0);
        x.attention(x, x, &Attention { mask, ..Attention::default() })
    }),
    ("attention, scaled", &[2, 9, 4], far_apart, |x| {
        x.attention(x, x, &Attention { scale: Some(3.7), ..Attention::default() })
    }),
    ("attention of small scores", &[2, 9, 4], waves, |x| x.attention(x, x, &Attention { mask: mask(x), ..causal() })),
    ("attention, heads shared", &[2, 9, 4], far_apart, |x| shared(x, &causal())),
    ("attention, many equal keys", &[1, 4000, 2], one, |x| x.slice(1, 0, 9).attention(x, x, &Attention::default())),
    ("attention's weights", &[2, 9, 4], far_apart, |x| x.attention_weights(x, &causal())),
    ("attention's slope by values", &[2, 9, 4], waves, |x| {
        slope(x, x.detach().attention(x.detach(), x, &Attention::default()))
    }),
    ("attention's slope by queries", &[2, 9, 4], far_apart, |x| {
        slope(x, x.attention(x.detach(), x.detach(), &Attention { scale: Some(1.0), ..Attention::default() }))
    }),
    ("attention's slope by keys, masked", &[2, 9, 4], far_apart, |x| {
        let options = Attention { mask: mask(x), scale: Some(1e-4), ..Attention::default() };
        slope(x, x.detach().attention(x, x.detach(), &options))
    }),
];

/// A row's program for an argument of this type.
fn program(&(_, shape, _, f): &Row, dtype: DType) -> Program {
    let t = Tape::default();
    let y = f(t.input("x", shape, dtype));
    assert_eq!(y.dtype(), dtype);
    t.tap("y", y);
    t.finish()
}

fn argument(&(_, shape, fill, _): &Row, dtype: DType) -> Vec<(String, Array)> {
    let values: Vec<f64> = (0..shape.iter().product()).map(|i| f16_from_f64(fill(i)).to_f64()).collect();
    vec![("x".into(), Array::new(shape, Data::from_f64(dtype, &values)))]
}

/// The number of f16 numbers from one to another; NaN is as far from all else as can be.
fn f16_between(a: f16, b: f16) -> i32 {
    let place = |x: f16| {
        let size = i32::from(x.to_bits() & 0x7fff);
        if x.is_sign_negative() { -size } else { size }
    };
    match (a.is_nan(), b.is_nan()) {
        (true, true) => 0,
        (false, false) => (place(a) - place(b)).abs(),
        _ => i32::MAX,
    }
}

/// The result that lies farthest from the rounded truth: by how many f16 numbers, and what should be there.
fn worst(have: &Array, truth: &[f64]) -> (i32, String) {
    let (have, truth) = (have.to_f64(), truth.iter().map(|x| f16_from_f64(*x)));
    let off = have.iter().zip(truth).enumerate().map(|(i, (have, truth))| {
        (f16_between(f16_from_f64(*have), truth), format!("{have} instead of {truth} at {i}"))
    });
    off.max_by_key(|(off, _)| *off).expect("there are some")
}

#[test]
fn every_row_is_within_one_unit_in_the_last_place() {
    let mut wrong = vec![];
    for row in ROWS {
        let half = program(row, DType::F16);
        let truth = reference(&program(row, DType::F64), &[], &argument(row, DType::F64)).taps.remove(0).2;
        let machines = || {
            let on_gpu = gpus().into_iter().chain(gpus_of_f16().pop()).map(|gpu| Machine::on_gpu(gpu, Store::new()));
            std::iter::once(Machine::poisoned(2, Store::new())).chain(on_gpu)
        };
        for mut machine in machines() {
            let step = machine.session.compile(half.clone()).expect("the plan compiles");
            let (off, why) = worst(machine.run(&step, &argument(row, DType::F16)).tap("y"), &truth);
            if off > 1 {
                wrong.push(format!("{} of {:?} on {}: {why}", row.0, row.1, machine.session.device()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Under `autocast` f32 is rounded on the way in and out, and no score is: what masks takes a weight's rounding more. Slopes
/// meet the rounding of the result once more, by which they are off where they cancel.
#[test]
fn scores_beyond_f16_survive_autocast() {
    let values: Vec<f32> = (0..72).map(|i| far_apart(i) as f32).collect();
    let inputs = [("x".to_string(), Array::new([2, 9, 4], values))];
    type Make = for<'t> fn(Tensor<'t>) -> Attention<'t>;
    let kinds: [(&str, Make, f64); 4] = [
        ("plain", |_| Attention::default(), 1e-3),
        ("causal", |_| causal(), 1e-3),
        ("masked", |x| Attention { mask: mask(x), ..causal() }, 2e-3),
        ("shifted", |x| Attention { mask: Some(x.slice(2, 0, 1) * -200.0), ..Attention::default() }, 2e-3),
    ];
    for (name, options, most) in kinds {
        let record = |policy: DType| {
            let t = Tape::default();
            let x = t.input("x", [2, 9, 4], DType::F32);
            let y = t.autocast(policy, || x.attention(x, x, &options(x)));
            t.tap("y", y);
            t.tap("dx", slope(x, y));
            t.finish()
        };
        let want = reference(&record(DType::F32), &[], &inputs);
        let on_gpu = gpus().into_iter().map(|gpu| Machine::on_gpu(gpu, Store::new()));
        for mut machine in std::iter::once(Machine::poisoned(2, Store::new())).chain(on_gpu) {
            let device = machine.session.device();
            let step = machine.session.compile(record(DType::F16)).expect("the plan compiles");
            let out = machine.run(&step, &inputs);
            for ((tap, have), (.., want)) in out.taps.iter().zip(&want.taps) {
                let largest = want.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                let most = largest * if tap == "dx" { 1e-2 } else { most };
                assert!(
                    abs_diff_eq!(have.to_f64()[..], want[..], epsilon = most),
                    "{name}: {tap} on {device}: {have:?} instead of {want:?}"
                );
            }
        }
    }
}

#[test]
fn a_distance_counts_f16() {
    let half = f16::from_f64;
    assert_eq!(f16_between(half(1.0), half(1.0 + 2f64.powi(-10))), 1);
    assert_eq!(f16_between(half(-0.0), half(2f64.powi(-24))), 1);
    assert_eq!(f16_between(half(65504.0), f16::INFINITY), 1);
    assert_eq!(f16_between(f16::NAN, f16::INFINITY), i32::MAX);
}
