//! The GPU on sizes that take other kernels than small ones do: tiles, parts of rows, several dispatches; and functions over
//! the whole range of their arguments.

use approx::{abs_diff_eq, relative_eq};
use wgrad::{Array, Conv2d, DType, Data, Store, Tape, Tensor, f16};
use wgrad_tests::{Machine, gpu, gpus, gpus_of_f16, named};
use wgrad_wgpu::Gpu;

/// Numbers of either sign, of about 1.
fn numbers(len: usize, salt: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + salt * 104_729) % 2003) as f32 / 1000.0 - 1.0).collect()
}

/// Runs one program on the GPU and on the CPU, and compares what it taps, relative to the largest.
fn same(what: &str, inputs: &[(&str, Array)], tolerance: f64, record: impl Fn(&Tape, &[Tensor<'_>])) {
    same_on(gpu(), what, inputs, tolerance, record);
}

fn same_on(
    gpu: Option<&Gpu>,
    what: &str,
    inputs: &[(&str, Array)],
    tolerance: f64,
    record: impl Fn(&Tape, &[Tensor<'_>]),
) {
    let Some(gpu) = gpu else { return };
    let inputs: Vec<(String, Array)> = inputs.iter().map(|(name, array)| (name.to_string(), array.clone())).collect();
    let run = |mut machine: Machine| {
        let step = machine.session.record(|t| {
            let args: Vec<Tensor<'_>> = inputs.iter().map(|(name, array)| t.input_like(name, array)).collect();
            record(t, &args);
        });
        let step = step.unwrap();
        machine.session.run(&step, &named(&inputs)).unwrap();
        machine.session.wait().unwrap();
        machine.session.taps().unwrap().remove(0)
    };
    let (have, want) = (run(Machine::on_gpu(gpu, Store::new())), run(Machine::new(2, Store::new())));
    for ((name, have), (_, want)) in have.iter().zip(want.iter()) {
        assert_eq!(have.shape(), want.shape());
        let (have, want) = (have.to_f64(), want.to_f64());
        let scale = want.iter().filter(|v| v.is_finite()).fold(1e-30f64, |scale, v| scale.max(v.abs()));
        for (i, (h, w)) in have.iter().zip(&want).enumerate() {
            let near = h.is_nan() && w.is_nan() || relative_eq!(h, w, epsilon = tolerance * scale, max_relative = 0.0);
            assert!(near, "{what}: {name}[{i}]: {h} instead of {w}, of {scale:e}");
        }
    }
}

fn f32s(shape: impl Into<wgrad::Shape>, salt: usize) -> Array {
    let shape = shape.into();
    let values = numbers(shape.numel(), salt);
    Array::new(shape, values)
}

#[test]
fn products_in_tiles() {
    for (m, k, n) in [
        (64, 16, 64),
        (65, 33, 70),
        (40, 100, 60),
        (130, 17, 66),
        (2, 5000, 3),
        (1, 300, 200),
        (70, 7, 90),
        (48, 1100, 64),
        (9, 4, 3),
    ] {
        for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
            let shape = |turned: bool, a: usize, b: usize| if turned { [2, b, a] } else { [2, a, b] };
            let inputs = [("a", f32s(shape(ta, m, k), 1)), ("b", f32s(shape(tb, k, n), 2)), ("c", f32s([n], 3))];
            for gpu in gpus() {
                same_on(Some(gpu), &format!("{m} {k} {n} {ta} {tb}"), &inputs, 3e-5, |t, x| {
                    let a = if ta { x[0].permute(&[0, 2, 1]) } else { x[0] };
                    let b = if tb { x[1].permute(&[0, 2, 1]) } else { x[1] };
                    t.tap("product", (a.matmul(b) + x[2]).tanh() * 0.5);
                });
            }
        }
    }
}

/// Sides that lie in memory as vectors of four cannot be loaded from, and one that is both sides and is read once more.
#[test]
fn products_of_sides_in_odd_places() {
    let inputs = [("a", f32s([44, 68], 1)), ("b", f32s([33, 65], 2)), ("c", f32s([700, 24], 3))];
    for gpu in gpus() {
        same_on(Some(gpu), "odd places", &inputs, 1e-5, |t, x| {
            let [a, b, c] = [x[0], x[1], x[2]];
            t.tap("from the second on", b.slice(0, 1, 32).slice(1, 1, 64).matmul(a.slice(1, 2, 64).permute(&[1, 0])));
            t.tap("backwards", a.flip(&[0]).matmul(a.flip(&[1]).permute(&[1, 0])));
            t.tap("every second", a.slice_step(1, 0, 34, 2).matmul(a.slice_step(1, 1, 34, 2).permute(&[1, 0])));
            t.tap("itself", c.permute(&[1, 0]).matmul(c) * c.slice(0, 0, 24));
            t.tap(
                "repeated",
                b.slice(0, 0, 1)
                    .broadcast_to([33, 65])
                    .permute(&[1, 0])
                    .matmul(b.slice(1, 0, 1).broadcast_to([33, 40])),
            );
        });
    }
}

#[test]
fn rows_of_all_lengths() {
    for shape in [[3, 100], [700, 70], [2, 5000], [5000, 2], [1, 200_000], [3, 40_000], [100_000, 3], [40, 1000]] {
        // A sum of numbers of either sign is as good as its parts are, which are larger.
        same(&format!("{shape:?}"), &[("x", f32s(shape, 1))], 4e-6, |t, x| {
            let x = x[0];
            t.tap("sums", x.sum_axes(&[1]));
            t.tap("columns", x.sum_axes(&[0]));
            t.tap("most", (x * 2.0).max_axes(&[1]));
            t.tap("all", x.sum());
            t.tap("norm", x.norm());
            t.tap("norms", x.norm_axes(&[0]));
            t.tap("first", x.argmax(1));
            t.tap("first of columns", x.argmax(0));
            if shape[1] <= 5000 {
                t.tap("softmax", x.softmax(1));
            }
        });
    }
}

/// Of shapes that are empty in any dimension, however they are turned.
#[test]
fn reductions_of_nothing() {
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
        same(&format!("{order:?}"), &[("x", f32s([0, 2, 3], 1))], 0.0, |t, x| {
            let x = x[0].permute(&order);
            t.tap("all", x.sum());
            for axis in 0..3 {
                t.tap(&format!("sums{axis}"), x.sum_axes(&[axis]));
                t.tap(&format!("most{axis}"), x.max_axes(&[axis]));
                t.tap(&format!("norms{axis}"), x.norm_axes(&[axis]));
                t.tap(&format!("running{axis}"), x.cumsum(axis));
            }
        });
    }
}

#[test]
fn lines_longer_than_a_kernel_walks() {
    let len = 40_000;
    let index = Array::new([len], (0..len).map(|i| (i * 31 % 17) as u32).collect::<Vec<u32>>());
    for reverse in [false, true] {
        let wide = Array::new([len], (0..len).map(|i| (i % 5) as i32 - 2).collect::<Vec<i32>>());
        same("cumulative sums", &[("x", wide), ("y", f32s([2, len], 2))], 1e-4, |t, x| {
            let turned = |x: Tensor<'_>| {
                if reverse { t.tap("turned", x.flip(&[0]).cumsum(0).flip(&[0])) } else { t.tap("plain", x.cumsum(0)) }
            };
            turned(x[0]);
            t.tap("rows", x[1].cumsum(1));
        });
    }
    let inputs = [("x", f32s([len], 1)), ("index", index)];
    same("scatter", &inputs, 1e-5, |t, x| t.tap("sums", x[0].scatter_add(x[1], 0, 17)));
    same("scatter of f16", &inputs, 1e-3, |t, x| {
        t.tap("sums", x[0].cast(DType::F16).scatter_add(x[1], 0, 17));
    });
}

/// More workgroups than there may be along a dimension.
#[test]
fn more_elements_than_a_dimension_has_workgroups() {
    let len = 5_000_000;
    same("a map", &[("x", f32s([len], 1))], 1e-6, |t, x| {
        t.tap("some", (x[0] * 2.0 + 1.0).slice_step(0, len - 1, 50, -99_991));
        t.tap("sum", (x[0] * x[0]).sum());
    });
}

#[test]
fn convolutions_of_all_sorts() {
    let conv = |stride, padding, dilation, groups| Conv2d { stride, padding, dilation, groups };
    for (x, w, conv) in [
        ([2, 6, 17, 19], [8, 6, 3, 3], conv([1, 1], [1, 1], [1, 1], 1)),
        ([3, 4, 20, 16], [6, 2, 3, 5], conv([2, 3], [1, 2], [2, 1], 2)),
        ([2, 5, 9, 9], [5, 1, 3, 3], conv([1, 1], [1, 1], [1, 1], 5)),
        ([8, 16, 24, 24], [4, 16, 1, 1], conv([1, 1], [0, 0], [1, 1], 1)),
    ] {
        same(&format!("{x:?} {w:?}"), &[("x", f32s(x, 1)), ("w", f32s(w, 2))], 1e-5, |t, args| {
            let y = args[0].conv2d(args[1], conv);
            t.tap("y", y);
            for (i, g) in (y * y * 0.1).sum().grad_wrt(args).into_iter().enumerate() {
                t.tap(&format!("d{i}"), g.unwrap());
            }
        });
    }
}

/// The distance from the true value in units of the last place.
fn ulps(have: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if have == nearest || have.is_nan() && want.is_nan() || want.abs() < 1.2e-38 && have.abs() < 1.2e-38 {
        return 0.0; // What is subnormal may be 0.
    }
    let unit = (nearest.abs().next_up() as f64 - nearest.abs() as f64).max(1e-45);
    if have.is_infinite() || nearest.is_infinite() { f64::INFINITY } else { (have as f64 - want).abs() / unit }
}

type Function = (&'static str, fn(Tensor<'_>) -> Tensor<'_>, fn(f64) -> f64, f64);

#[test]
fn functions_are_accurate_over_the_whole_range() {
    let Some(gpu) = gpu() else { return };
    let positive = (0x0080_0000..0x7f80_0000u32).step_by(40_009).map(f32::from_bits);
    let near = (-4000..4000).map(|i| i as f32 * 0.01 + 0.001);
    let x: Vec<f32> = positive
        .flat_map(|x| [x, -x])
        .chain(near)
        .chain([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN])
        .collect();
    let functions: [Function; 9] = [
        ("exp", |x| x.exp(), f64::exp, 4.0),
        ("expm1", |x| x.expm1(), f64::exp_m1, 6.0),
        ("tanh", |x| x.tanh(), f64::tanh, 6.0),
        ("log", |x| x.log(), f64::ln, 4.0),
        ("log1p", |x| x.log1p(), f64::ln_1p, 6.0),
        ("erf", |x| x.erf(), libm::erf, 6.0),
        ("sin", |x| x.sin(), f64::sin, f64::NAN),
        ("cos", |x| x.cos(), f64::cos, f64::NAN),
        ("sqrt", |x| x.sqrt(), f64::sqrt, 3.0),
    ];
    let mut machine = Machine::on_gpu(gpu, Store::new());
    let input = Array::new([x.len()], x.clone());
    for (name, f, truth, most) in functions {
        let have = machine.session.eval(&[("x", &input)], |t| f(t.input_like("x", &input))).unwrap();
        let Data::F32(have) = have.data() else { panic!("f32") };
        for (x, &have) in x.iter().zip(have) {
            let want = truth(f64::from(*x));
            // Near a zero of the sine that is not 0 the error is absolute.
            let good = match most.is_nan() {
                true => have.is_nan() && want.is_nan() || abs_diff_eq!(f64::from(have), want, epsilon = 2e-7),
                false => ulps(have, want) <= most,
            };
            assert!(good, "{name}({x:e}): {have:e} instead of {want:e}, {} ulp", ulps(have, want));
        }
    }
}

#[test]
fn powers_are_accurate_and_special_ones_right() {
    let Some(gpu) = gpu() else { return };
    let bases = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -2.0,
        3.0,
        1.0001,
        0.999_99,
        1e-30,
        1e30,
        7.25,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let powers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        3.0,
        -3.0,
        0.5,
        0.1,
        10.5,
        1000.0,
        -77.7,
        1e6,
        -1e6,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let pairs: Vec<(f32, f32)> = bases
        .iter()
        .flat_map(|a| powers.iter().map(move |b| (*a, *b)))
        .chain((0..2000).map(|i| (((i * 37) % 1009) as f32 * 0.01 + 0.001, ((i * 101) % 977) as f32 * 0.05 - 20.0)))
        .collect();
    let [a, b] = [0, 1]
        .map(|k| Array::new([pairs.len()], pairs.iter().map(|p| if k == 0 { p.0 } else { p.1 }).collect::<Vec<f32>>()));
    let mut machine = Machine::on_gpu(gpu, Store::new());
    let have =
        machine.session.eval(&[("a", &a), ("b", &b)], |t| t.input_like("a", &a).pow(t.input_like("b", &b))).unwrap();
    for ((a, b), have) in pairs.iter().zip(have.to_f64()) {
        let want = f64::from(*a).powf(f64::from(*b));
        assert!(
            ulps(have as f32, want) <= 8.0,
            "{a:e}^{b:e}: {have:e} instead of {want:e}, {} ulp",
            ulps(have as f32, want)
        );
    }
}

/// All f16 numbers, what lies half-way between two and on either side of that.
#[test]
fn f16_is_rounded_to_the_nearest() {
    let mut x: Vec<f32> = vec![];
    for bits in 0..=0x7c00u16 {
        let here = f16::from_bits(bits).to_f32();
        let next = if bits < 0x7bff { f16::from_bits(bits + 1).to_f32() } else { 65536.0 };
        let middle = if here.is_finite() { (here + next) / 2.0 } else { here };
        x.extend([here, middle, middle.next_up(), middle.next_down()]);
    }
    x.extend([f32::NAN, f32::MAX, 1e-10]);
    let negative: Vec<f32> = x.iter().map(|x| -x).collect();
    x.extend(negative);
    let input = Array::new([x.len()], x.clone());
    for gpu in gpus_of_f16() {
        let mut machine = Machine::on_gpu(gpu, Store::new());
        let have = machine.session.eval(&[("x", &input)], |t| t.input_like("x", &input).cast(DType::F16)).unwrap();
        let Data::F16(have) = have.data() else { panic!("f16") };
        for (x, have) in x.iter().zip(have) {
            let want = f16::from_f32(*x);
            assert!(
                have.to_bits() == want.to_bits() || have.is_nan() && want.is_nan(),
                "{x:e}: {have} instead of {want}"
            );
        }
    }
}

/// All 65,536 patterns: as singles, and untouched. Of a NaN it is known that it is one.
#[test]
fn every_half_is_itself_as_a_single() {
    let x: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let input = Array::new([x.len()], x.clone());
    for gpu in gpus_of_f16() {
        let mut machine = Machine::on_gpu(gpu, Store::new());
        let singles = machine.session.eval(&[("x", &input)], |t| t.input_like("x", &input).cast(DType::F32)).unwrap();
        let same = machine.session.eval(&[("x", &input)], |t| t.input_like("x", &input).flip(&[0]).flip(&[0])).unwrap();
        let (Data::F32(singles), Data::F16(same)) = (singles.data(), same.data()) else { panic!("f32 and f16") };
        assert_eq!((singles.len(), same.len()), (1 << 16, 1 << 16));
        for ((x, single), same) in x.iter().zip(singles).zip(same) {
            let good = single.to_bits() == x.to_f32().to_bits() && same.to_bits() == x.to_bits();
            assert!(good || x.is_nan() && single.is_nan() && same.is_nan(), "{x}: {single:e}, {same}");
        }
    }
}

/// The product of two f16 numbers is a single, exactly: what is stored is that, rounded once.
#[test]
fn products_of_f16_is_rounded_once() {
    let f16s = |step: usize| (0..8192usize).map(move |i| f16::from_bits((i * step % 0x7c00) as u16));
    let (x, y): (Vec<f16>, Vec<f16>) = (f16s(7919).collect(), f16s(5003).collect());
    let [a, b] = [&x, &y].map(|x| Array::new([x.len()], x.clone()));
    for gpu in gpus_of_f16() {
        let mut machine = Machine::on_gpu(gpu, Store::new());
        let have =
            machine.session.eval(&[("a", &a), ("b", &b)], |t| t.input_like("a", &a) * t.input_like("b", &b)).unwrap();
        let Data::F16(have) = have.data() else { panic!("f16") };
        for ((x, y), have) in x.iter().zip(&y).zip(have) {
            let want = f16::from_f32(x.to_f32() * y.to_f32());
            assert_eq!(have.to_bits(), want.to_bits(), "{x} * {y}: {have} instead of {want}");
        }
    }
}

#[test]
fn random_words_are_those_of_the_cpu_bit_for_bit() {
    let key = Array::new([2], vec![7u32, 0xdead_beef]);
    let counter = Array::new([], vec![0xffff_fff0u32]);
    same("random", &[("key", key), ("counter", counter)], 0.0, |t, x| {
        t.tap("words", t.random(x[0], x[1], 0x1234_5678_9abc_def0, [3, 101]));
        t.tap("turned", t.random(x[0], x[1], 5, [31, 33]).transpose());
    });
}
