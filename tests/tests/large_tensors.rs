//! Tensors large enough that kernels split them among threads: each kernel gives the same bits on any number of threads,
//! and agrees with the reference.

use wgrad::{Array, Conv2d, DType, Data, Store, Tape, Tensor, op::Segments};
use wgrad_tests::{Machine, Tolerance, compare, reference, same_bits};

/// Odd, so that no split is even.
const ROWS: usize = 259;
const COLUMNS: usize = 173;

fn record<'t>(t: &'t Tape, dtype: DType) {
    let x = t.input("x", [ROWS, COLUMNS], dtype);
    let w = t.input("w", [41, COLUMNS], dtype);
    let index = t.input("index", [ROWS, 3], DType::U32);
    let mask = t.input("mask", [ROWS, COLUMNS], DType::Bool);
    let (flat, turned) = (x.reshape([ROWS * COLUMNS]), x.transpose());
    let backwards = x.slice_step(0, ROWS - 1, ROWS, -1).slice_step(1, COLUMNS - 1, COLUMNS / 2, -2);
    let segments = std::sync::Arc::new(Segments {
        total: ROWS * COLUMNS,
        ranges: [(0, 3), (5, 40_000), (40_005, 0), (40_010, 2_000)].into(),
    });
    // Of whose rows there are so many parts that its transpose is turned round for all of them.
    let tall = x.reshape([ROWS * COLUMNS / 37, 37]);
    let wide = tall.slice(0, 0, 600).transpose();
    let product = tall.matmul(wide);
    // The transpose has the longer rows, as where a weight's gradient is computed.
    let weight = turned.matmul(x.slice(1, 20, 141));
    // So long that each half is summed by itself: as it lies, turned round, and as the transpose of the product.
    let long = Tensor::concat(&[x, x * 0.5], 0);
    let batch = x.slice(0, 0, 256).slice(1, 0, 160).reshape([8, 32, 160]);
    // Channels lie in pieces: of several hundred elements, of which no number of vectors is one, and of a few.
    let images = |shape: [usize; 4]| {
        let part = |x: Tensor<'t>| x.reshape([ROWS * COLUMNS]).slice(0, 5, shape.iter().product()).reshape(shape);
        (part(x), part(mask))
    };
    let normal = |x: Tensor<'t>| x.batch_norm(None, None, 1e-3).y;
    let gradient = |x: Tensor<'t>| {
        let weighed = normal(x).relu() * (x * 3.0).tanh().detach();
        weighed.sum().grad_wrt(&[x])[0].expect("it depends on it")
    };
    let ((large, large_mask), (odd, odd_mask), (small, _)) =
        (images([10, 4, 32, 32]), images([7, 5, 33, 33]), images([80, 3, 9, 9]));
    // With so many channels that 3x3 weights are multiplied in squares, and then so many that tasks divide them.
    let convolution = |outs: usize, ins: usize, padding: [usize; 2]| {
        let (images, weights) = (images([2, ins, 9, 11]).0, images([outs, ins, 3, 3]).0);
        let y = images.conv2d(weights, Conv2d { padding, ..Conv2d::default() });
        let gradients = (y * (y * 0.1).tanh().detach()).sum().grad_wrt(&[images, weights]);
        let [images, weights] = [0, 1].map(|i| gradients[i].expect("it depends on it"));
        (y, images, weights)
    };
    let (inside, padded) = (convolution(32, 33, [0, 0]), convolution(32, 33, [1, 4]));
    let many = convolution(66, 70, [1, 1]);
    let shown: Vec<(&str, Tensor<'t>)> = vec![
        ("product with a transpose", product),
        ("product with a transpose, and maps", (tall * 0.5).matmul(wide).tanh() + product * wide.slice(0, 3, 1)),
        ("product of a transpose", weight),
        ("product of a transpose, and maps", turned.matmul(x.slice(1, 3, 139)).tanh() + weight.slice(1, 0, 1)),
        ("long product of few columns", tall.transpose().matmul(tall)),
        ("long product of few rows", long.slice(1, 20, 41).transpose().matmul(long)),
        ("long product of many rows", long.transpose().matmul(long.slice(1, 20, 141))),
        ("map", (x * 1.7).sin() * x.exp() + x.tanh()),
        ("map of a transpose", turned.erf() * 0.5),
        ("map over a broadcast", x + x.slice(0, 7, 1)),
        ("map over a column", x.maximum(x.slice(1, 5, 1))),
        ("map backwards", backwards.cos()),
        ("select", x.less(0.1).select(x * x, -x)),
        ("pow", (x * x + 0.5).pow(x.tanh())),
        ("cast", x.cast(DType::I32).cast(dtype)),
        ("copy of a transpose", turned.reshape([ROWS * COLUMNS])),
        ("sum of all", x.sum()),
        ("sum of a transpose", turned.sum()),
        ("sum of rows", x.sum_axes(&[1])),
        ("sum of columns", x.sum_axes(&[0])),
        ("sum of rows of a transpose", turned.sum_axes(&[1])),
        ("sum of columns backwards", backwards.sum_axes(&[0])),
        ("sum of rows backwards", backwards.sum_axes(&[1])),
        ("max of all", x.max()),
        ("max of rows", x.max_axes(&[1])),
        ("max of columns", x.max_axes(&[0])),
        ("argmax of rows", x.argmax(1).cast(dtype)),
        ("argmax of columns", x.argmax(0).cast(dtype)),
        // Reduced by the chains that compute what is reduced.
        ("variance of rows", x.var_axes(&[1])),
        ("variance of columns", x.var_axes(&[0])),
        ("max of maps of rows", (x.tanh() * x).max_axes(&[1])),
        ("max of maps of columns", (x.tanh() * x).max_axes(&[0])),
        ("norm of maps", (x * x + 0.5).norm()),
        // By conditions that lie in memory: as they are, turned, and those of a column.
        ("what is chosen", mask.select(x * 0.5, x.tanh()) + x),
        ("sum of what is chosen in rows", (mask.select(x, x * x) * x).sum_axes(&[1])),
        ("sum of what is chosen in columns", (mask.select(x, x * x) * x).sum_axes(&[0])),
        ("what is chosen by a transpose", (mask.transpose().select(turned, turned * turned) * turned).sum_axes(&[1])),
        ("what is chosen by a column", mask.slice(1, 3, 1).select(x * 0.5, x.tanh()) + x),
        ("convolution", inside.0),
        ("convolution with padding", padded.0),
        ("gradient of a convolution's images", inside.1),
        ("gradient of a padded convolution's images", padded.1),
        ("gradient of a convolution's weights", inside.2),
        ("gradient of a padded convolution's weights", padded.2),
        ("gradient of many channels' weights", many.2),
        // Of channels.
        ("normal channels", normal(large)),
        ("normal channels of odd images", normal(odd)),
        ("normal channels of small images", normal(small)),
        ("gradient of normal channels", gradient(large)),
        ("gradient of normal channels of odd images", gradient(odd)),
        ("gradient of normal channels of small images", gradient(small)),
        ("what is chosen of channels", large_mask.select(normal(large), large)),
        ("sum of what is chosen of channels", (large_mask.select(large, large * large) * large).sum_axes(&[0, 2, 3])),
        ("sum of what is chosen of odd images", (odd_mask.select(odd, odd * odd) * odd).sum_axes(&[0, 2, 3])),
        (
            "sums of several maps",
            (x.exp() * 0.1).sum_axes(&[1]) + (x - x.tanh()).sum_axes(&[1]) + (x * x).max_axes(&[1]),
        ),
        ("softmax", x.softmax(1)),
        ("norm", x.norm()),
        ("gather", x.gather(index, 1)),
        ("rows", x.rows(index.reshape([ROWS * 3]))),
        ("scatter_add", x.slice(1, 0, 3).scatter_add(index, 0, COLUMNS)),
        ("concat", Tensor::concat(&[x, x.slice(1, 0, 9), x], 1)),
        ("pad", x.pad(0, 3, 2).pad(1, 1, 0)),
        ("segment_sum", flat.segment_sum(&segments)),
        ("segment_broadcast", x.slice(0, 0, 1).slice(1, 0, 4).reshape([4]).segment_broadcast(&segments)),
        ("matmul", x.matmul(w.transpose())),
        ("matmul_t", x.matmul_t(w)),
        ("matmul of transposes", turned.matmul(x.matmul_t(w))),
        ("matmul backwards", backwards.matmul_t(w.slice_step(1, 1, COLUMNS / 2, 2))),
        ("matrix times vector", x.matmul(w.slice(0, 3, 1).transpose())),
        ("batched matmul", batch.matmul_t(batch)),
    ];
    for (name, value) in shown {
        t.tap(name, value);
    }
}

fn inputs(dtype: DType) -> Vec<(String, Array)> {
    let values = |n: usize, salt: usize| {
        let value = |i: usize| ((i * 7919 + salt) * 104_729 % 99_991) as f64 / 40_000.0 - 1.25;
        Data::from_f64(dtype, &(0..n).map(value).collect::<Vec<f64>>())
    };
    let index: Vec<u32> = (0..ROWS * 3).map(|i| (i * i * 31 % COLUMNS) as u32).collect();
    let mask: Vec<bool> = (0..ROWS * COLUMNS).map(|i| i * i * 31 % 7 < 3).collect();
    vec![
        ("mask".into(), Array::new([ROWS, COLUMNS], mask)),
        ("x".into(), Array::new([ROWS, COLUMNS], values(ROWS * COLUMNS, 1))),
        ("w".into(), Array::new([41, COLUMNS], values(41 * COLUMNS, 2))),
        ("index".into(), Array::new([ROWS, 3], index)),
    ]
}

#[test]
fn every_kernel_gives_the_same_bits_on_any_number_of_threads() {
    for (dtype, tolerance) in
        [(DType::F64, Tolerance(1e-12)), (DType::F32, Tolerance(1e-5)), (DType::F16, Tolerance(1e-2))]
    {
        let t = Tape::default();
        record(&t, dtype);
        let (program, inputs) = (t.finish(), inputs(dtype));
        let run = |threads: usize| {
            let mut cpu = Machine::poisoned(threads, Store::new());
            let step = cpu.session.compile(program.clone()).expect("the plan compiles");
            cpu.run(&step, &inputs)
        };
        let one = run(1);
        for ((name, have), (.., want)) in one.taps.iter().zip(&reference(&program, &[], &inputs).taps) {
            compare(&format!("{name} in {dtype}"), &have.to_f64(), want, tolerance).unwrap();
        }
        for threads in [2, 3, 5] {
            for ((name, a), (_, b)) in one.taps.iter().zip(&run(threads).taps) {
                assert!(same_bits(a, b), "{name} in {dtype} differs on {threads} threads");
            }
        }
    }
}

/// A sum is made by what computes the elements, unless these are kept. Of rows of whole groups and of others.
#[test]
fn a_sum_has_the_same_bits_whether_its_elements_are_kept_or_not() {
    for columns in [90, 128, 1000, 1024, 20_000, 32_768] {
        let value = |i: usize| (i * 7919 % 99_991) as f32 / 40_000.0 - 1.25;
        let x = Array::new([7, columns], (0..7 * columns).map(value).collect::<Vec<f32>>());
        let inputs = [("x".to_string(), x)];
        let sums = |kept: bool| {
            let t = Tape::default();
            let x = t.input("x", [7, columns], DType::F32);
            // As much above 0 as below: what differs in a small sum of large numbers is not rounded away.
            let y = x * 3.0 + x * x * x;
            t.tap("sum", y.sum_axes(&[1]));
            if kept {
                t.tap("elements", y);
            }
            let program = t.finish();
            let mut cpu = Machine::poisoned(2, Store::new());
            let step = cpu.session.compile(program.clone()).expect("the plan compiles");
            let sums = cpu.run(&step, &inputs).tap("sum").clone();
            compare("sum", &sums.to_f64(), &reference(&program, &[], &inputs).taps[0].2, Tolerance(1e-5)).unwrap();
            sums
        };
        assert!(same_bits(&sums(true), &sums(false)), "{columns} columns");
    }
}
