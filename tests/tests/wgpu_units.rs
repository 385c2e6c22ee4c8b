//! Matrix units: the kernels of products of f16 numbers, with loops in the place of units, agree with the CPU whatever the sizes,
//! strides and epilogues; and units that do not compute what they should are not used. No adapter of the tests has some.

use approx::relative_eq;
use proptest::prelude::*;
use std::sync::OnceLock;
use wgrad::{Array, DType, Store, Tape, Tensor, f16};
use wgrad_tests::{Machine, gpu, gpu_options};
use wgrad_wgpu::{Choice, Gpu, MatrixUnits, Options, StandIn};

/// The GPU of tests with something in the place of matrix units. None if there is none, or if nothing optional is asked for.
fn with(stand_in: StandIn) -> Option<Gpu> {
    gpu()?;
    let gpu = Gpu::open(Choice::Best, Options { stand_in: Some(stand_in), ..gpu_options() }).expect("it opens");
    match gpu.matrix_units() {
        MatrixUnits::NotAsked | MatrixUnits::Unfit(_) => {
            eprintln!("matrix units: {}", gpu.matrix_units());
            None
        }
        _ => Some(gpu),
    }
}

/// The sizes of units, and widths of subgroups.
const RIGHT: [(usize, usize); 3] = [(16, 32), (8, 32), (16, 64)];

/// GPUs with them, opened once. Empty if there is none.
fn right() -> &'static [Gpu] {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    let open = |(size, width)| {
        let gpu = with(StandIn::Right { size, width })?;
        assert_eq!(*gpu.matrix_units(), MatrixUnits::Used(size), "{width} invocations");
        Some(gpu)
    };
    GPUS.get_or_init(|| RIGHT.into_iter().filter_map(open).collect())
}

/// Whole f16 numbers from -1 to 1: sums of up to 2048 products of them are f16 numbers too, and so exact whatever their order.
fn whole(shape: &[usize], salt: usize) -> Array {
    // Knuth's multiplicative hash: neighbours have nothing to do with each other.
    let hash = |i: usize| ((i + 10_007 * salt) as u32).wrapping_mul(2_654_435_761) >> 16;
    let value = |i: usize| f16::from_f32((hash(i) % 3) as f32 - 1.0);
    Array::new(shape, (0..shape.iter().product()).map(value).collect::<Vec<f16>>())
}

/// What a program of two inputs taps, on memory full of garbage.
fn tapped(mut machine: Machine, [a, b]: &[Array; 2], record: impl Fn(&Tape, Tensor<'_>, Tensor<'_>)) -> Vec<Array> {
    let step = machine.session.record(|t| record(t, t.input_like("a", a), t.input_like("b", b)));
    let inputs = [("a".to_string(), a.clone()), ("b".to_string(), b.clone())];
    machine.run(&step.expect("the plan compiles"), &inputs).taps.into_iter().map(|(_, value)| value).collect()
}

/// How a side lies in memory.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// As its transpose.
    turned: bool,
    /// From the second element of each line on.
    inner: bool,
    /// The same for all matrices.
    shared: bool,
}

impl Look {
    fn shape(self, batch: usize, rows: usize, columns: usize) -> [usize; 3] {
        let [rows, columns] = if self.turned { [columns, rows] } else { [rows, columns] };
        [if self.shared { 1 } else { batch }, rows, columns + usize::from(self.inner)]
    }

    fn see<'t>(self, x: Tensor<'t>, batch: usize) -> Tensor<'t> {
        let [_, rows, columns] = [0, 1, 2].map(|d| x.shape()[d]);
        let x = if self.inner { x.slice(2, 1, columns - 1) } else { x };
        let x = x.broadcast_to([batch, rows, columns - usize::from(self.inner)]);
        if self.turned { x.permute(&[0, 2, 1]) } else { x }
    }
}

#[derive(Clone, Debug)]
struct Product {
    sizes: [usize; 4],
    looks: [Look; 2],
    epilogue: usize,
}

impl Product {
    fn inputs(&self) -> [Array; 2] {
        let [batch, m, k, n] = self.sizes;
        [whole(&self.looks[0].shape(batch, m, k), 1), whole(&self.looks[1].shape(batch, k, n), 2)]
    }

    fn record(&self, t: &Tape, a: Tensor<'_>, b: Tensor<'_>) {
        let [batch, m, _, n] = self.sizes;
        let product = self.looks[0].see(a, batch).matmul(self.looks[1].see(b, batch));
        t.tap(
            "product",
            match self.epilogue {
                0 => product,
                1 => product.cast(DType::F32) * 2.0,
                2 => (product + t.iota(n).cast(DType::F16)).relu(),
                3 => product.permute(&[0, 2, 1]) * 0.5,
                _ => product.maximum(t.full([m, n], 1.0, DType::F16)),
            },
        );
    }
}

fn product() -> impl Strategy<Value = Product> {
    let extent = || prop_oneof![1 => 0..2usize, 3 => 2..20usize, 4 => 20..150usize];
    let look = || any::<[bool; 3]>().prop_map(|[turned, inner, shared]| Look { turned, inner, shared });
    let sizes = (1..3usize, extent(), extent(), extent()).prop_map(|(batch, m, k, n)| [batch, m, k, n]);
    // Sides that are read in fours.
    let fours = (1..3usize, [1..30usize, 1..30, 1..30]).prop_map(|(batch, [m, k, n])| [batch, 4 * m, 4 * k, 4 * n]);
    let plain = [false, true].map(|turned| Look { turned, inner: false, shared: false });
    let plain = || prop::sample::select(plain.to_vec());
    let any = (sizes, [look(), look()]);
    let aligned = (fours, [plain(), plain()]);
    (prop_oneof![any, aligned], 0..5usize).prop_map(|((sizes, looks), epilogue)| Product { sizes, looks, epilogue })
}

#[test]
fn products_by_units_are_those_of_the_cpu() {
    let gpus = right();
    if gpus.is_empty() {
        return;
    }
    let config = ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(case in product(), which in 0..RIGHT.len())| {
        let (inputs, record) = (case.inputs(), |t: &Tape, a: Tensor<'_>, b: Tensor<'_>| case.record(t, a, b));
        let want = tapped(Machine::new(1, Store::new()), &inputs, record);
        let have = tapped(Machine::on_gpu(&gpus[which], Store::new()), &inputs, record);
        prop_assert_eq!(have, want, "{:?}", RIGHT[which]);
    });
}

/// Summands in parts, by workgroups of their own.
#[test]
fn long_products_by_units_are_those_of_the_cpu() {
    for gpu in right() {
        let inputs = [whole(&[48, 1100], 1), whole(&[1100, 65], 2)];
        let record = |t: &Tape, a: Tensor<'_>, b: Tensor<'_>| t.tap("sums", a.matmul(b) + 1.0);
        let want = tapped(Machine::new(1, Store::new()), &inputs, record);
        assert_eq!(tapped(Machine::on_gpu(gpu, Store::new()), &inputs, record), want);
    }
}

/// Scalars and vectors that kernels look up lie in words, not f16 numbers; and both sides may be one.
#[test]
fn sides_of_products_by_units_lie_anywhere() {
    for gpu in right() {
        let inputs = [whole(&[34, 40], 4), whole(&[40, 33], 2)];
        let record = |t: &Tape, a: Tensor<'_>, b: Tensor<'_>| {
            t.tap("of words", a.max_axes(&[0, 1]).broadcast_to([33, 40]).matmul(b));
            t.tap("from the third on", a.slice(1, 2, 36).matmul(b.slice(0, 0, 36)));
            t.tap("itself", b.transpose().matmul(b) * b.slice(0, 0, 33));
            t.tap("backwards", b.flip(&[0]).matmul(b.flip(&[1]).transpose()));
            t.tap("every third", b.slice_step(0, 1, 13, 3).matmul(b.transpose().slice_step(1, 2, 7, 5)));
            let state = b.matmul(t.full([33, 7], 1.0, DType::F16));
            t.tap("of a product", state.transpose().matmul(state));
        };
        let want = tapped(Machine::new(1, Store::new()), &inputs, record);
        assert_eq!(tapped(Machine::on_gpu(gpu, Store::new()), &inputs, record), want);
    }
}

/// Numbers of f16 of about 1, infinite and NaN ones too: as near to the CPU's as other kernels, and the same bits each time.
#[test]
fn sums_by_units_are_as_good_as_others_and_repeat() {
    let value = |i: usize| match i {
        71 => f16::INFINITY,
        700 => f16::NAN,
        _ => f16::from_f32((i * 7919 % 2003) as f32 / 1000.0 - 1.0),
    };
    let inputs = [(70, 90), (90, 50)].map(|(m, n)| Array::new([m, n], (0..m * n).map(value).collect::<Vec<f16>>()));
    let record = |t: &Tape, a: Tensor<'_>, b: Tensor<'_>| t.tap("sums", a.matmul(b).cast(DType::F32));
    let want = tapped(Machine::new(1, Store::new()), &inputs, record)[0].to_f64();
    for gpu in right() {
        let [once, twice] = [(); 2].map(|()| tapped(Machine::on_gpu(gpu, Store::new()), &inputs, record).remove(0));
        assert!(wgrad_tests::same_bits(&once, &twice));
        for (i, (have, want)) in once.to_f64().iter().zip(&want).enumerate() {
            let near = have.is_nan() && want.is_nan() || relative_eq!(have, want, epsilon = 1e-2, max_relative = 0.0);
            assert!(near, "element {i}: {have} instead of {want}");
        }
    }
}

#[test]
fn units_that_fail_their_self_test_are_not_used() {
    let inputs = [whole(&[70, 45], 1), whole(&[45, 39], 2)];
    let record = |t: &Tape, a: Tensor<'_>, b: Tensor<'_>| t.tap("product", a.matmul(b));
    let want = tapped(Machine::new(1, Store::new()), &inputs, record);
    for (stand_in, why) in [(StandIn::Wrong, "instead of"), (StandIn::Broken, "multiply_add")] {
        let Some(gpu) = with(stand_in) else { return };
        let MatrixUnits::Failed(reason) = gpu.matrix_units() else { panic!("{stand_in:?}: {}", gpu.matrix_units()) };
        assert!(reason.contains(why), "{reason}");
        assert!(gpu.matrix_units().to_string().starts_with("present, but failed their self-test, so not used: "));
        assert_eq!(tapped(Machine::on_gpu(&gpu, Store::new()), &inputs, record), want);
    }
}

#[test]
fn units_are_not_used_that_are_not_there_or_not_asked_for() {
    let Some(gpu) = gpu() else { return };
    let stand_in = Some(StandIn::Right { size: 16, width: 32 });
    let floor = Gpu::open(Choice::Best, Options { floor: true, stand_in, ..Options::default() }).unwrap();
    assert_eq!(*floor.matrix_units(), MatrixUnits::NotAsked);
    // As it is: a device without units costs no self-test.
    let open = Gpu::open(Choice::Best, gpu_options()).unwrap();
    if !gpu_options().floor && gpu.summary().matrix_units.is_empty() {
        assert_eq!((open.matrix_units(), open.kernels()), (&MatrixUnits::Absent, 0));
    }
}
