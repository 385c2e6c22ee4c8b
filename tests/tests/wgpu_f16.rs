//! f16 on the GPU: devices with and without 16-bit storage give the same bits, and a write never changes the other number
//! in its word.

use approx::abs_diff_eq;
use wgrad::{Array, Conv2d, DType, InProcess, Store, Tape, Tensor, f16};
use wgrad_tests::{Machine, gpu, gpus_of_f16};
use wgrad_wgpu::{Gpu, Options, WgpuBackend};

/// So many f16 numbers of either sign, of about 1.
fn f16s(shape: &[usize], salt: usize) -> Array {
    let value = |i: usize| f16::from_f32(((i * 7919 + salt * 104_729) % 2003) as f32 / 1000.0 - 1.0);
    Array::new(shape, (0..shape.iter().product()).map(value).collect::<Vec<f16>>())
}

/// What a program taps, on memory full of garbage.
fn tapped(
    mut machine: Machine,
    inputs: &[(String, Array)],
    record: impl Fn(&Tape, &[Tensor<'_>]),
) -> Vec<(String, Array)> {
    let step = machine.session.record(|t| {
        let x: Vec<Tensor<'_>> = inputs.iter().map(|(name, x)| t.input_like(name, x)).collect();
        record(t, &x);
    });
    machine.run(&step.expect("the plan compiles"), inputs).taps
}

/// Kernels of each kind that load and store f16 numbers, most of them of odd extents.
fn kinds_of_kernels(t: &Tape, x: &[Tensor<'_>]) {
    let (a, b, index) = (x[0], x[1], x[3]);
    t.tap("map", a + b.transpose());
    t.tap("every third", a.slice_step(1, 1, 11, 3) * 3.0);
    t.tap("backwards", a.flip(&[1]));
    t.tap("between zeros", a.pad(1, 3, 2));
    t.tap("rows", a.softmax(1));
    t.tap("columns", a.sum_axes(&[0]));
    t.tap("all", b.sum());
    t.tap("running sums", a.cumsum(1));
    t.tap("product", a.matmul(b));
    t.tap("product in fours", x[2].matmul(x[2].transpose()));
    t.tap("side by side", Tensor::concat(&[a, b.transpose()], 1));
    t.tap("gathered", a.gather(index, 0));
    t.tap("scattered", a.scatter_add(index, 0, 11));
    let kernel = b.slice(0, 0, 3).slice(1, 0, 5).reshape([1, 1, 3, 5]);
    t.tap("convolved", a.reshape([1, 1, 33, 35]).conv2d(kernel, Conv2d::default()));
}

fn inputs() -> Vec<(String, Array)> {
    let index = Array::new([33, 35], (0..33 * 35).map(|i| i * 7919 % 11).collect::<Vec<u32>>());
    let inputs = [f16s(&[33, 35], 1), f16s(&[35, 33], 2), f16s(&[64, 68], 3), index];
    inputs.into_iter().enumerate().map(|(i, x)| (format!("x{i}"), x)).collect()
}

#[test]
fn f16_have_the_same_bits_however_they_are_stored() {
    let on = |gpu: &&Gpu| tapped(Machine::on_gpu(gpu, Store::new()), &inputs(), kinds_of_kernels);
    let found: Vec<_> = gpus_of_f16().iter().map(on).collect();
    if let [native, packed] = &found[..] {
        assert_eq!(native.len(), 14);
        native.iter().zip(packed).for_each(|(native, packed)| assert_eq!(native, packed));
    }
}

#[test]
fn kernels_of_f16_agree_with_the_cpu() {
    let want = tapped(Machine::new(1, Store::new()), &inputs(), kinds_of_kernels);
    for gpu in gpus_of_f16() {
        let have = tapped(Machine::on_gpu(gpu, Store::new()), &inputs(), kinds_of_kernels);
        for ((name, have), (_, want)) in have.iter().zip(&want) {
            let (have, want) = (have.to_f64(), want.to_f64());
            let largest = want.iter().fold(0f64, |most, x| most.max(x.abs()));
            assert!(abs_diff_eq!(have[..], want[..], epsilon = 2e-3 * largest), "{name}");
        }
    }
}

/// Small states lie among words, large ones have words of two f16 numbers; an odd one's last word is half empty.
#[test]
fn states_of_f16_are_kept() {
    for (gpu, len) in gpus_of_f16().into_iter().flat_map(|gpu| [1, 7, 1024, 1025, 2048].map(|len| (gpu, len))) {
        let (first, second) = (f16s(&[len], 1), f16s(&[len], 2));
        let mut store = Store::new();
        let state = store.state("x", &first);
        let mut machine = Machine::on_gpu(gpu, store);
        assert_eq!(machine.session.read(state).unwrap(), first, "{len} f16");
        machine.session.write(state, &second).unwrap();
        let step = machine.session.record(|t| {
            let x = t.state(state);
            t.assign(state, x * 2.0);
        });
        machine.run(&step.unwrap(), &[]);
        let doubled: Vec<f16> = second.to_f64().iter().map(|x| f16::from_f64(2.0 * x)).collect();
        assert_eq!(machine.session.read(state).unwrap(), Array::new([len], doubled), "{len} f16");
    }
}

#[test]
fn ranks_exchange_f16() {
    let sums = |rank: InProcess, gpu: Option<&Gpu>| {
        let salt = wgrad::Collective::rank(&rank);
        let machine = gpu.map_or_else(|| Machine::new(1, Store::new()), |gpu| Machine::on_gpu(gpu, Store::new()));
        let inputs = [("x".to_string(), f16s(&[5], salt)), ("y".to_string(), f16s(&[1025], salt + 2))];
        tapped(machine.as_rank(rank), &inputs, |t, x| {
            let (x, y) = (x[0].sum_over_ranks(), (x[1] * 2.0).sum_over_ranks());
            t.tap("joined", Tensor::concat(&[x, y, x], 0));
            t.tap("sum", y + 1.0);
        })
    };
    let world = |gpu: Option<&Gpu>| {
        std::thread::scope(|scope| {
            let sums = &sums;
            let ranks: Vec<_> =
                InProcess::world(2).into_iter().map(|rank| scope.spawn(move || sums(rank, gpu))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect::<Vec<_>>()
        })
    };
    let want = world(None);
    gpus_of_f16().into_iter().for_each(|gpu| assert_eq!(world(Some(gpu)), want));
}

/// A budget with room for f16 numbers has none for as many singles.
#[test]
fn a_half_takes_two_bytes() {
    if gpu().is_none() {
        return;
    }
    let options = Options { budget: Some(3 << 20), ..Options::default() };
    let fits = |dtype: DType| {
        let mut store = Store::new();
        store.state("x", &Array::zeros([1 << 20], dtype));
        let backend = WgpuBackend::new(wgrad_wgpu::Choice::Best, options).expect("the device opens");
        wgrad::Session::new(Box::new(backend), store).is_ok()
    };
    assert!(fits(DType::F16) && !fits(DType::F32));
}
