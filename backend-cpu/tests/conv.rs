//! Convolutions, their gradients, and cumulative sums: what the reference computes, from operands that lie anyhow, with
//! the same bits on any number of threads.

use approx::abs_diff_eq;
use proptest::prelude::*;
use wgrad::{
    Array, Conv2d, DType, Data, Program, Session, Shape, Store, Tape, Tensor,
    plan::{Kernel, Plan},
};
use wgrad_cpu::{CpuBackend, reference};

/// How an input lies in memory.
#[derive(Clone, Copy, Debug)]
enum Look {
    Plain,
    /// Its dimensions in the opposite order.
    Permuted,
    /// Every other element of each row.
    Spaced,
    /// Rows from their ends.
    Reversed,
    /// One element of the first dimension, repeated.
    Repeated,
}

const LOOKS: [Look; 5] = [Look::Plain, Look::Permuted, Look::Spaced, Look::Reversed, Look::Repeated];

impl Look {
    /// The shape of the input of which this look has the shape that is asked for.
    fn stored(self, shape: &[usize]) -> Shape {
        let mut shape = shape.to_vec();
        let last = shape.len() - 1;
        match self {
            Look::Plain | Look::Reversed => {}
            Look::Permuted => shape.reverse(),
            Look::Spaced => shape[last] *= 2,
            Look::Repeated => shape[0] = 1,
        }
        shape.into()
    }

    fn at<'t>(self, x: Tensor<'t>, shape: &[usize]) -> Tensor<'t> {
        let last = shape.len() - 1;
        match self {
            Look::Plain => x,
            Look::Permuted => x.permute(&(0..shape.len()).rev().collect::<Vec<_>>()),
            Look::Spaced if shape[last] > 0 => x.slice_step(last, 1, shape[last], 2),
            Look::Spaced => x,
            Look::Reversed => x.flip(&[last]),
            Look::Repeated => x.broadcast_to(shape),
        }
    }
}

/// Whole numbers, so that sums are exact in whatever order they are added up; or others.
fn values(shape: &Shape, dtype: DType, seed: usize, whole: bool) -> Array {
    let value = |i: usize| {
        let wild = (i * 7919 + seed * 104_729 + 13) as f64;
        if whole { (wild * 0.754_877).fract().mul_add(7.0, -3.0).floor() } else { (wild * 0.37).sin() }
    };
    Array::new(shape, Data::from_f64(dtype, &(0..shape.numel()).map(value).collect::<Vec<_>>()))
}

fn outputs(mut session: Session, program: &Program, inputs: &[(&str, &Array)]) -> Vec<Array> {
    let step = session.compile(program.clone()).expect("compiles");
    session.run(&step, inputs).expect("runs");
    let taps = session.taps().expect("taps").remove(0);
    program.taps().iter().map(|tap| taps.get(&tap.name).expect("tapped").clone()).collect()
}

fn session(device: CpuBackend) -> Session {
    Session::new(Box::new(device), Store::new()).expect("session")
}

/// Exact agreement with the reference, on devices of several sorts.
fn check(program: &Program, inputs: &[(&str, &Array)]) -> Result<(), TestCaseError> {
    let want = reference::run(program, &[], inputs).expect("runs").taps;
    let splitting = [1, 2, 3].map(CpuBackend::splitting);
    let devices = splitting.into_iter().chain([1, 2].map(CpuBackend::poisoned));
    for (number, device) in devices.enumerate() {
        for (have, want) in outputs(session(device.expect("threads")), program, inputs).iter().zip(&want) {
            prop_assert_eq!(have.shape(), &want.1);
            let have = have.to_f64();
            let wrong = have.iter().zip(&want.2).position(|(have, want)| have != want);
            if let Some(i) = wrong {
                prop_assert!(false, "device {}, {}: element {} is {}, not {}", number, want.0, i, have[i], want.2[i]);
            }
        }
    }
    Ok(())
}

/// A convolution of some shapes.
#[derive(Clone, Debug)]
struct Case {
    conv: Conv2d,
    x: [usize; 4],
    w: [usize; 4],
    looks: [Look; 3],
    dtype: DType,
}

impl Case {
    fn result(&self) -> [usize; 4] {
        let t = Tape::default();
        let (x, w) = (t.input("x", self.x, DType::F32), t.input("w", self.w, DType::F32));
        let y = x.conv2d(w, self.conv).shape();
        [y[0], y[1], y[2], y[3]]
    }

    /// The convolution and both gradients, and the inputs' shapes.
    fn program(&self) -> (Program, [Shape; 3]) {
        let shapes = [self.x, self.w, self.result()];
        let stored: [Shape; 3] = std::array::from_fn(|i| self.looks[i].stored(&shapes[i]));
        let t = Tape::default();
        let [x, w, g] = std::array::from_fn(|i| {
            let input = t.input(["x", "w", "g"][i], stored[i].clone(), self.dtype);
            self.looks[i].at(input, &shapes[i])
        });
        let y = x.conv2d(w, self.conv);
        t.tap("y", y);
        let gradients = y.vjp(g, &[x, w]);
        t.tap("dx", gradients[0].expect("it depends on it"));
        t.tap("dw", gradients[1].expect("it depends on it"));
        (t.finish(), stored)
    }

    fn inputs(&self, stored: &[Shape; 3], whole: bool) -> [Array; 3] {
        std::array::from_fn(|i| values(&stored[i], self.dtype, i, whole))
    }
}

fn named(inputs: &[Array; 3]) -> [(&str, &Array); 3] {
    let [x, w, g] = inputs;
    [("x", x), ("w", w), ("g", g)]
}

prop_compose! {
    fn case()(
        (groups, wide, narrow) in prop_oneof![
            (1usize..=3, 0usize..=6, 0usize..=5),
            (Just(1), 4usize..=19, 1usize..=18),
            (1usize..=7, Just(1), Just(1)),
            (1usize..=5, Just(2), Just(1)),
        ],
        batch in 0usize..=3,
        kernel in [1usize..=5, 1usize..=5],
        stride in [1usize..=3, 1usize..=3],
        padding in [0usize..=3, 0usize..=3],
        dilation in [1usize..=2, 1usize..=2],
        more in [0usize..=8, 0usize..=20],
        looks in [0usize..5, 0usize..5, 0usize..5],
        dtype in prop_oneof![Just(DType::F32), Just(DType::F64), Just(DType::F16)],
    ) -> Case {
        // As large as the kernel needs it, and some more.
        let extent = |d: usize| ((kernel[d] - 1) * dilation[d] + 1).saturating_sub(2 * padding[d]) + more[d];
        Case {
            conv: Conv2d { stride, padding, dilation, groups },
            x: [batch, groups * narrow, extent(0), extent(1)],
            w: [groups * wide, narrow, kernel[0], kernel[1]],
            // Nothing repeats nothing.
            looks: looks.map(|look| LOOKS[look]),
            dtype,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn convolutions_are_those_of_the_reference(case in case()) {
        let (program, stored) = case.program();
        check(&program, &named(&case.inputs(&stored, true)))?;
    }

    #[test]
    fn cumulative_sums_are_those_of_the_reference(
        shape in prop::collection::vec(0usize..=9, 1..=3),
        axis in 0usize..3,
        look in 0usize..5,
        dtype in prop_oneof![Just(DType::F32), Just(DType::F64), Just(DType::F16), Just(DType::U32), Just(DType::I32)],
    ) {
        let (axis, look) = (axis % shape.len(), LOOKS[look]);
        let stored = look.stored(&shape);
        let t = Tape::default();
        let x = look.at(t.input("x", stored.clone(), dtype), &shape);
        let y = x.cumsum(axis);
        t.tap("y", y);
        if dtype.is_float() {
            // Its gradient sums from the other end.
            t.tap("dx", y.vjp(x + x, &[x])[0].expect("it depends on it"));
        }
        check(&t.finish(), &[("x", &values(&stored, dtype, 1, true))])?;
    }
}

/// Large enough for several threads, blocks and chunks to be used.
fn large() -> Vec<Case> {
    let case = |x, w, conv| Case { conv, x, w, looks: [Look::Plain; 3], dtype: DType::F32 };
    let strided = Conv2d { stride: [2, 2], ..Conv2d::same(3) };
    let depthwise = Conv2d { groups: 24, ..Conv2d::same(5) };
    vec![
        case([9, 16, 32, 32], [20, 16, 3, 3], Conv2d::same(3)),
        case([2, 40, 17, 19], [33, 40, 3, 3], strided),
        case([1, 64, 60, 60], [8, 64, 3, 3], Conv2d::same(3)),
        case([5, 24, 30, 31], [48, 1, 5, 5], depthwise),
        case([3, 70, 14, 14], [50, 70, 1, 1], Conv2d::default()),
        case([2, 3, 1, 50_000], [4, 3, 1, 7], Conv2d { padding: [0, 3], ..Conv2d::default() }),
    ]
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    for case in large() {
        let (program, stored) = case.program();
        let inputs = case.inputs(&stored, false);
        let run = |threads| {
            let outputs = outputs(session(CpuBackend::poisoned(threads).expect("threads")), &program, &named(&inputs));
            outputs.iter().flat_map(|y| y.to_f64()).map(f64::to_bits).collect::<Vec<_>>()
        };
        let one = run(1);
        assert!(one.iter().all(|&v| f64::from_bits(v).is_finite()), "{case:?}");
        assert!(run(2) == one && run(3) == one, "{case:?}");
    }
    let (t, shape) = (Tape::default(), Shape::from([300, 70, 11]));
    let x = t.input("x", shape.clone(), DType::F32);
    (0..3).for_each(|axis| t.tap(&format!("y{axis}"), x.cumsum(axis)));
    let (program, x) = (t.finish(), values(&shape, DType::F32, 0, false));
    let run = |threads| outputs(session(CpuBackend::poisoned(threads).expect("threads")), &program, &[("x", &x)]);
    assert!(run(2) == run(1) && run(3) == run(1));
}

#[test]
fn large_convolutions_are_exact_where_the_numbers_are() {
    for case in large() {
        let (program, stored) = case.program();
        let inputs = case.inputs(&stored, true);
        let want = reference::run(&program, &[], &named(&inputs)).expect("runs").taps;
        let have = outputs(session(CpuBackend::poisoned(2).expect("threads")), &program, &named(&inputs));
        for (have, want) in have.iter().zip(&want) {
            assert!(have.to_f64() == want.2, "{} of {case:?}", want.0);
        }
    }
}

#[test]
fn each_gradient_is_the_transpose_of_the_convolution() {
    let dot = |a: &Array, b: &Array| a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a * b).sum::<f64>();
    for case in large() {
        let case = Case { dtype: DType::F64, x: [1, case.x[1], case.x[2], case.x[3].min(3000)], ..case };
        let (program, stored) = case.program();
        let inputs = case.inputs(&stored, false);
        let out = outputs(session(CpuBackend::poisoned(2).expect("threads")), &program, &named(&inputs));
        let [x, w, g] = &inputs;
        let (y, dx, dw) = (dot(g, &out[0]), dot(&out[1], x), dot(&out[2], w));
        let scale = dot(g, g).sqrt() * dot(&out[0], &out[0]).sqrt();
        assert!(abs_diff_eq!([dx, dw][..], [y, y][..], epsilon = 1e-13 * scale), "{y} {dx} {dw} of {case:?}");
    }
}

#[test]
fn a_plan_counts_the_multiplications_of_all_three_alike() {
    for case in large() {
        let (program, _) = case.program();
        let want = 2 * case.result().iter().product::<usize>() * case.w[1..].iter().product::<usize>();
        let plan = Plan::new(&program);
        let counted: Vec<usize> =
            plan.kernels.iter().filter(|kernel| kernel.name().starts_with("conv")).map(Kernel::flops).collect();
        assert_eq!(counted, [want; 3], "{case:?}");
    }
}
