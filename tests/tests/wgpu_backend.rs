//! The wgpu backend as a device: what a run costs, what it refuses, and what it says when something is wrong.

use std::process::Command;
use wgrad::{Array, Backend, DType, Data, DynamicScale, Error, InProcess, LossScaler, Optimizer, Session, Store, Tape};
use wgrad_nn::{
    Builder, Cell, Init, Linear, Recurrent, RecurrentInit,
    optim::{AdamW, AdamWConfig},
};
use wgrad_tests::{Machine, Mlp, Tolerance, compare, gpu, gpu_options, named, same_bits};
use wgrad_wgpu::{Choice, Gpu, Options, WgpuBackend, adapters};

/// Five updates of a perceptron: the losses, and the states at the end.
fn perceptron(device: impl Fn(Store) -> Machine) -> (Vec<f64>, Vec<Array>) {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    let params = model.params();
    let adam = AdamW::new(&mut store, &params, AdamWConfig { lr: 0.01.into(), ..AdamWConfig::default() });
    let mut machine = device(store);
    let step = machine.session.record(|t| {
        let (x, y) = model.inputs(t);
        let loss = model.loss_of(t, x, y);
        t.tap("loss", loss);
        adam.step(loss.grad(&params).clip_by_global_norm(0.5));
    });
    let step = step.expect("the plan compiles");
    let losses = (0..5).map(|salt| machine.run(&step, &model.batch(salt)).tap("loss").item(0)).collect();
    (losses, machine.states())
}

/// A recurrent network that is trained for some steps.
fn recurrent(device: impl Fn(Store) -> Machine, cell: Cell, steps: usize) -> (Vec<f64>, Vec<Array>) {
    const TIME: usize = 6;
    const BATCH: usize = 5;
    let mut store = Store::new();
    let mut builder = Builder::new(&mut store, 7);
    let rnn = Recurrent::new(builder.at("rnn"), cell, 4, 24, &RecurrentInit::of(cell));
    let head = Linear::new(builder.at("head"), 24, 3, &Init::Normal(0.2));
    let params = store.params();
    let adam = AdamW::new(&mut store, &params, AdamWConfig { lr: 0.01.into(), ..AdamWConfig::default() });
    let mut machine = device(store);
    let step = machine.session.record(|t: &Tape| {
        let x = t.input("x", [TIME, BATCH, 4], DType::F32);
        let y = t.input("y", [BATCH], DType::U32);
        let loss = head.forward(rnn.forward(x).last).cross_entropy(y);
        t.tap("loss", loss);
        adam.step(loss.grad(&params).clip_by_global_norm(0.5));
    });
    let step = step.expect("the plan compiles");
    let losses = (0..steps).map(|k| {
        let x: Vec<f32> = (0..TIME * BATCH * 4).map(|i| ((i * 31 + k * 17) % 101) as f32 / 50.0 - 1.0).collect();
        let y: Vec<u32> = (0..BATCH).map(|i| (i * 7 + k) as u32 % 3).collect();
        let inputs = [("x".to_string(), Array::new([TIME, BATCH, 4], x)), ("y".to_string(), Array::new([BATCH], y))];
        machine.run(&step, &inputs).tap("loss").item(0)
    });
    let losses = losses.collect();
    (losses, machine.states())
}

fn close(have: &(Vec<f64>, Vec<Array>), want: &(Vec<f64>, Vec<Array>)) {
    compare("losses", &have.0, &want.0, Tolerance(1e-4)).unwrap();
    for (i, (have, want)) in have.1.iter().zip(&want.1).enumerate() {
        compare(&format!("state {i}"), &have.to_f64(), &want.to_f64(), Tolerance(1e-4)).unwrap();
    }
}

#[test]
fn models_train_as_on_the_cpu() {
    let Some(gpu) = gpu() else { return };
    close(&perceptron(|store| Machine::on_gpu(gpu, store)), &perceptron(|store| Machine::new(1, store)));
    for cell in [Cell::Tanh, Cell::Lstm, Cell::Gru] {
        let have = recurrent(|store| Machine::on_gpu(gpu, store), cell, 3);
        close(&have, &recurrent(|store| Machine::new(1, store), cell, 3));
    }
}

#[test]
fn a_hundred_steps_repeat_bit_for_bit() {
    let Some(gpu) = gpu() else { return };
    let run = || recurrent(|store| Machine::on_gpu(gpu, store), Cell::Tanh, 100);
    let (one, two) = (run(), run());
    assert_eq!(one.0, two.0);
    assert!(one.0.iter().all(|loss| loss.is_finite()) && one.0[99] < one.0[0]);
    assert!(one.1.iter().zip(&two.1).all(|(a, b)| same_bits(a, b)));
}

/// Scale, norm, clip, verdict and AdamW over 200 tensors.
#[test]
fn an_update_of_200_tensors_is_one_submission_of_eight_dispatches_at_most() {
    let Some(gpu) = gpu() else { return };
    let mut store = Store::new();
    for i in 0..200 {
        store.param(&format!("p{i}"), &Array::new([16, 24], vec![0.5f32; 16 * 24]));
    }
    let params = store.params();
    let arena = params.arenas(store.layout())[0];
    let len = store.layout().state(arena).shape.numel();
    let gradients = store.state("gradients", &Array::new([len], vec![0.01f32; len]));
    let adam = AdamW::new(&mut store, &params, AdamWConfig::default());
    let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
    let (layout, values) = store.into_parts();
    let t = Tape::new(layout);
    let loss = t.state(arena).dot(t.state(gradients));
    adam.step(scaler.scale(loss).grad(&params).unscale(&scaler).check_finite().clip_by_global_norm(1.0));
    scaler.update(&t);
    let mut backend = WgpuBackend::on(gpu).unwrap();
    let program = t.finish().lowered(true, |op, inputs| backend.claims(op, inputs));
    let plan = wgrad::plan::Plan::with(&program, &backend.grouping());
    let buffers: Vec<_> = values.iter().map(|value| backend.alloc(value).unwrap()).collect();
    let executable = backend.compile(&plan, &buffers).unwrap();
    let before = backend.counters();
    backend.run(executable, &[], 0, &mut InProcess::world(1).remove(0)).unwrap();
    let after = backend.counters();
    assert!(after.dispatches - before.dispatches <= 8, "{before:?} {after:?}");
    assert_eq!(after.submits - before.submits, 1);
    backend.wait().unwrap();
    let moved = backend.read(buffers[arena.index()]).unwrap().to_f64();
    assert!(moved.iter().take(16 * 24).all(|p| *p < 0.5), "it has been an update");
}

/// A GPU that keeps so many kernels of a map with a constant, and their bytes.
fn room_for(kernels: u64) -> (Gpu, u64) {
    let one = Gpu::open(Choice::Best, gpu_options()).unwrap();
    let mut session = Session::new(Box::new(WgpuBackend::on(&one).unwrap()), Store::new()).unwrap();
    session.eval(&[], |t| t.iota(8).cast(DType::F32) * 7.0).unwrap();
    assert_eq!(one.kernels(), 1);
    let bytes = kernels * one.kernel_bytes();
    (Gpu::open(Choice::Best, Options { kernels: Some(bytes), ..gpu_options() }).unwrap(), bytes)
}

/// Kernels that no program uses any more are kept for the next one, up to some bytes.
#[test]
fn unused_kernels_are_dropped_beyond_a_limit() {
    if gpu().is_none() {
        return;
    }
    let (gpu, _) = room_for(4);
    let mut backend = WgpuBackend::on(&gpu).unwrap();
    let mut compile = |factor: usize| {
        let t = Tape::default();
        t.tap("x", t.iota(8).cast(DType::F32) * factor as f64);
        let plan = wgrad::plan::Plan::with(&t.finish(), &backend.grouping());
        let executable = backend.compile(&plan, &[]).unwrap();
        backend.run(executable, &[], 0, &mut InProcess::world(1).remove(0)).unwrap();
        backend.wait().unwrap();
        let delivered = backend.deliveries().unwrap();
        assert_eq!(delivered[0].values[0].to_f64()[3], 3.0 * factor as f64);
        (backend.counters().pipelines, executable)
    };
    let first: Vec<_> = (2..6).map(&mut compile).collect();
    assert_eq!(gpu.kernels(), 4);
    assert_eq!(compile(2).0, 4, "it is known");
    assert_eq!(compile(6).0, 5);
    assert_eq!(gpu.kernels(), 5, "all are in use");
    for (_, executable) in &first[1..] {
        backend.release(*executable);
    }
    assert_eq!(gpu.kernels(), 5, "they are dropped when another comes");
    let mut more = Session::new(Box::new(WgpuBackend::on(&gpu).unwrap()), Store::new()).unwrap();
    more.eval(&[], |t| t.iota(8).cast(DType::F32) * 7.0).unwrap();
    assert_eq!(gpu.kernels(), 3, "of those of the released programs, none is there");
}

/// However many shapes are evaluated: kernels stay within their bound, and no buffer is left behind. A program that somebody
/// holds still runs.
#[test]
fn many_shapes_leave_no_more_behind_than_is_said() {
    if gpu().is_none() {
        return;
    }
    let (gpu, most) = room_for(8);
    let mut session = Session::new(Box::new(WgpuBackend::on(&gpu).unwrap()), Store::new()).unwrap();
    let ones = |n: usize| Array::new([n], vec![1.0f32; n]);
    let held = session.record(|t| t.tap("x", t.input("x", [2000], DType::F32) * 3.0)).unwrap();
    let mut buffers = vec![];
    for n in 2001..2041 {
        let halves = session.eval(&[("x", &ones(n))], |t| t.input("x", [n], DType::F32).square() * 0.5);
        assert_eq!(halves.unwrap().to_f64(), vec![0.5; n]);
        session.eval(&[], |t| t.iota(8).cast(DType::F32) * 7.0).unwrap();
        buffers.push(gpu.buffer_bytes());
        assert!(gpu.kernel_bytes() <= most, "{} bytes after {n}, and not {most}", gpu.kernel_bytes());
    }
    assert!(buffers.iter().all(|bytes| bytes.abs_diff(buffers[0]) < 1024), "{buffers:?}");
    session.run(&held, &[("x", &ones(2000))]).unwrap();
    session.wait().unwrap();
    assert_eq!(session.taps().unwrap()[0].get("x").unwrap().to_f64(), vec![3.0; 2000]);
}

/// The kernel that nobody has asked for for longest is dropped first.
#[test]
fn kernels_that_are_asked_for_again_stay() {
    if gpu().is_none() {
        return;
    }
    let (gpu, _) = room_for(4);
    let mut backend = WgpuBackend::on(&gpu).unwrap();
    let mut compile = |factor: usize| {
        let t = Tape::default();
        t.tap("x", t.iota(8).cast(DType::F32) * factor as f64);
        let plan = wgrad::plan::Plan::with(&t.finish(), &backend.grouping());
        let executable = backend.compile(&plan, &[]).unwrap();
        backend.release(executable);
        backend.counters().pipelines
    };
    assert_eq!([2, 3, 4, 5, 2].map(&mut compile), [1, 2, 3, 4, 4]);
    // What comes stays, with the two that were asked for last.
    assert_eq!([6, 2, 5, 6].map(&mut compile), [5; 4]);
    assert_eq!([3, 4].map(&mut compile), [6, 7]);
}

/// A plan compiled by hand, so that the backend's counters can be read.
#[test]
fn running_again_creates_nothing_and_is_one_submission() {
    let Some(gpu) = gpu() else { return };
    let mut store = Store::new();
    let state = store.state("x", &Array::new([40], vec![1.0f32; 40]));
    let (layout, values) = store.into_parts();
    let t = Tape::new(layout);
    let mut x = t.state(state);
    let y = t.input("y", [40], DType::F32);
    for _ in 0..20 {
        // A matrix product ends each kernel.
        x = (x.reshape([1, 40]) + y.reshape([1, 40])).tanh().reshape([40, 1]).matmul(y.reshape([1, 40])).sum_axes(&[0]);
    }
    t.tap("x", x);
    t.assign(state, x * 0.5);
    let program = t.finish();
    let mut backend = WgpuBackend::on(gpu).unwrap();
    let buffers: Vec<_> = values.iter().map(|value| backend.alloc(value).unwrap()).collect();
    let plan = wgrad::plan::Plan::with(&program, &backend.grouping());
    let executable = backend.compile(&plan, &buffers).unwrap();
    let input = Data::F32(vec![0.1; 40]);
    let run = |backend: &mut WgpuBackend, number: u64| {
        backend.run(executable, &[&input], number, &mut InProcess::world(1).remove(0)).unwrap();
    };
    // As many runs as may be on their way, so that all of their memory is there.
    for number in 0..4 {
        run(&mut backend, number);
    }
    backend.wait().unwrap();
    assert_eq!(backend.deliveries().unwrap().len(), 4);
    let before = backend.counters();
    for number in 4..14 {
        run(&mut backend, number);
    }
    let after = backend.counters();
    assert_eq!(after.submits - before.submits, 10);
    assert!(after.dispatches - before.dispatches >= 10 * plan.kernels.len() as u64 / 2, "{after:?}");
    let created = |c: wgrad_wgpu::Counters| [c.buffers, c.bind_groups, c.pipelines];
    assert_eq!(created(after), created(before), "nothing is created: {after:?}");
    backend.wait().unwrap();
    let delivered = backend.deliveries().unwrap();
    assert_eq!(delivered.iter().map(|d| d.run).collect::<Vec<_>>(), (4..14).collect::<Vec<_>>());
    assert!(plan.kernels.len() > 20, "there is something to run");
    // The same program again compiles nothing.
    backend.compile(&plan, &buffers).unwrap();
    assert_eq!(backend.counters().pipelines, after.pipelines);
}

#[test]
fn an_index_out_of_range_is_an_error_and_changes_no_state() {
    let Some(gpu) = gpu() else { return };
    for scatter in [false, true] {
        // States in the arena, and by themselves.
        for rows in [3, 700] {
            let mut store = Store::new();
            let table = store.state("table", &Array::new([rows, 2], vec![1.0f32; 2 * rows]));
            let count = store.state("count", &Array::new([], vec![5.0f32]));
            let mut machine = Machine::on_gpu(gpu, store);
            let step = machine.session.record(|t| {
                let index = t.input("index", [2, 2], DType::U32);
                let value = t.state(table);
                let found = match scatter {
                    false => value.gather(index, 0),
                    true => (value.slice(0, 0, 2) * 2.0).scatter_add(index, 0, rows),
                };
                t.tap("found", found);
                t.assign(table, value + found.sum());
                t.assign(count, t.state(count) + 1.0);
            });
            let step = step.unwrap();
            let index = |i: u32| [("index".to_string(), Array::new([2, 2], vec![0, 1, i, i]))];
            let before = machine.states();
            // It may be known at once, or later.
            let run = machine.session.run(&step, &named(&index(9999)));
            let error = run.and_then(|_| machine.session.wait()).unwrap_err();
            let Error::IndexOutOfRange { index: found, extent, site, .. } = error else { panic!("{error}") };
            assert_eq!((found, extent, site.file()), (9999, rows, file!()));
            assert!(machine.states_are(&before), "nothing has changed");
            assert!(machine.session.taps().unwrap().is_empty(), "a run that fails shows nothing");
            // It is said once.
            let good = machine.run(&step, &index(2));
            assert_eq!(good.states[1].item(0), 6.0);
            assert!(!machine.states_are(&before));
        }
    }
}

#[test]
fn f64_is_refused_and_the_cpu_named() {
    let Some(gpu) = gpu() else { return };
    let mut store = Store::new();
    store.state("x", &Array::scalar(1.0));
    let backend = WgpuBackend::on(gpu).unwrap();
    let error = Session::new(Box::new(backend), store).err().expect("f64 is refused").to_string();
    assert!(error.contains("f64") && error.contains("CPU"), "{error}");
    let mut session = Session::new(Box::new(WgpuBackend::on(gpu).unwrap()), Store::new()).unwrap();
    let error = session.eval(&[], |t| t.scalar(1.0, DType::F64) + 1.0).unwrap_err().to_string();
    assert!(error.contains("f64") && error.contains("CPU"), "{error}");
    // In the middle of a kernel, where no memory is of that type.
    let x = Array::new([3], vec![1.0f32; 3]);
    let error = session
        .eval(&[("x", &x)], |t| (t.input_like("x", &x).cast(DType::F64) * 2.0).cast(DType::F32))
        .unwrap_err()
        .to_string();
    assert!(error.contains("f64") && error.contains("CPU"), "{error}");
}

#[test]
fn what_exceeds_the_budget_is_refused_with_the_figures() {
    if gpu().is_none() {
        return;
    }
    let small = Gpu::open(Choice::Best, Options { budget: Some(1 << 20), ..gpu_options() }).unwrap();
    let mut store = Store::new();
    store.state("x", &Array::zeros([1 << 20], DType::F32));
    let error = Session::new(Box::new(WgpuBackend::on(&small).unwrap()), store).err().expect("refused").to_string();
    assert!(error.contains("4194304 bytes") && error.contains("1048576"), "{error}");
    // So is what has no room as a whole, though each part had: states, and what a program keeps.
    let mut store = Store::new();
    let states: Vec<_> = (0..3).map(|i| store.state(&format!("x{i}"), &Array::zeros([100_000], DType::F32))).collect();
    let error = Session::new(Box::new(WgpuBackend::on(&small).unwrap()), store).err().expect("refused").to_string();
    assert!(error.contains("1200000 bytes") && error.contains("65536 of"), "nothing has been allocated: {error}");
    assert_eq!(states.len(), 3);
    let mut session = Session::new(Box::new(WgpuBackend::on(&small).unwrap()), Store::new()).unwrap();
    let error = session.record(|t| {
        let x = t.input("x", [300, 300], DType::F32);
        t.tap("y", (x.matmul(x) + 1.0).matmul(x).matmul(x));
    });
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("1080000 bytes") && error.contains("65536 of"), "nothing has been allocated: {error}");
    // What has been refused takes nothing: the same device goes on.
    let mut session = Session::new(Box::new(WgpuBackend::on(&small).unwrap()), Store::new()).unwrap();
    assert_eq!(session.eval(&[], |t| t.scalar(1.0, DType::F32) + 1.0).unwrap().item(0), 2.0);
}

#[test]
fn what_no_binding_holds_is_refused() {
    let Some(gpu) = gpu() else { return };
    let limit = gpu.summary().largest_binding;
    if limit > 1 << 28 {
        return; // A real card: nothing is allocated for the sake of a test.
    }
    let mut store = Store::new();
    store.state("x", &Array::zeros([limit as usize / 4 + 1], DType::F32));
    let error = Session::new(Box::new(WgpuBackend::on(gpu).unwrap()), store).err().expect("refused").to_string();
    assert!(error.contains(&limit.to_string()), "{error}");
}

#[test]
fn a_lost_device_is_an_error_of_every_call() {
    if gpu().is_none() {
        return;
    }
    let own = Gpu::open(Choice::Best, gpu_options()).unwrap();
    let mut store = Store::new();
    let state = store.state("x", &Array::zeros([4], DType::F32));
    let mut session = Session::new(Box::new(WgpuBackend::on(&own).unwrap()), store).unwrap();
    let step = session.record(|t| t.assign(state, t.state(state) + 1.0)).unwrap();
    session.run(&step, &[]).unwrap();
    session.wait().unwrap();
    own.destroy();
    for _ in 0..2 {
        assert!(session.run(&step, &[]).unwrap_err().to_string().contains("lost"));
        assert!(session.read(state).unwrap_err().to_string().contains("lost"));
        assert!(session.wait().unwrap_err().to_string().contains("lost"));
        let zero = Array::zeros([4], DType::F32);
        assert!(session.write(state, &zero).unwrap_err().to_string().contains("lost"));
    }
    assert!(session.record(|t| t.assign(state, t.state(state) + 2.0)).unwrap_err().to_string().contains("lost"));
}

#[test]
fn adapters_are_listed_best_first() {
    if gpu().is_none() {
        return;
    }
    let found = adapters();
    assert!(!found.is_empty() && found.is_sorted_by_key(|adapter| adapter.kind));
    assert!(found.iter().all(|adapter| ["vulkan", "metal", "dx12"].contains(&&adapter.backend[..])), "{found:?}");
    let opened = WgpuBackend::new(Choice::Index(0), Options::default()).unwrap();
    assert!(opened.name().contains(&found[0].name));
    assert_eq!(opened.is_software(), found[0].is_software());
    let error = Gpu::open(Choice::Index(99), Options::default()).err().expect("there are not so many").to_string();
    assert!(error.contains("99"), "{error}");
}

#[test]
fn the_least_of_what_devices_offer_suffices() {
    if gpu().is_none() {
        return;
    }
    let floor = Gpu::open(Choice::Best, Options { floor: true, ..Options::default() }).unwrap();
    close(&perceptron(|store| Machine::on_gpu(&floor, store)), &perceptron(|store| Machine::new(1, store)));
}

/// `cargo xtask widths` says what they should be.
#[test]
fn subgroups_are_as_wide_as_the_renderer_is_told() {
    let (Some(gpu), Ok(width)) = (gpu(), std::env::var("WGRAD_GPU_WIDTH")) else { return };
    let width: u32 = width.parse().expect("a number");
    assert_eq!(gpu.summary().subgroups, [width; 2], "on {}", gpu.summary().name);
}

#[test]
fn ranks_exchange_what_they_have() {
    let Some(gpu) = gpu() else { return };
    let sums = |rank: InProcess, on_gpu: bool| {
        let own = wgrad::Collective::rank(&rank) as f32;
        let mut store = Store::new();
        let state = store.state("x", &Array::new([5], vec![own + 1.0; 5]));
        let machine = if on_gpu { Machine::on_gpu(gpu, store) } else { Machine::new(1, store) };
        let mut machine = machine.as_rank(rank);
        let step = machine.session.record(|t| {
            let x = t.state(state);
            let (all, count) = ((x * 2.0).sum_over_ranks(), t.scalar(1.0, DType::F32).sum_over_ranks());
            t.tap("all", all);
            t.assign(state, (all / count).sum_over_ranks() + x);
        });
        let step = step.unwrap();
        machine.run(&step, &[]);
        machine.run(&step, &[]).taps.into_iter().map(|(_, tap)| tap).chain(machine.states()).collect::<Vec<_>>()
    };
    let world = |on_gpu: bool| {
        std::thread::scope(|scope| {
            let sums = &sums;
            let ranks: Vec<_> =
                InProcess::world(2).into_iter().map(|rank| scope.spawn(move || sums(rank, on_gpu))).collect();
            ranks.into_iter().flat_map(|rank| rank.join().expect("no rank panics")).collect::<Vec<_>>()
        })
    };
    assert_eq!(world(true), world(false));
}

/// In a process of its own: the drivers are looked up once.
#[test]
fn without_an_adapter_the_error_says_what_to_install() {
    const CHILD: &str = "WGRAD_TEST_WITHOUT_ADAPTER";
    if std::env::var_os(CHILD).is_some() {
        assert!(adapters().is_empty());
        let error = WgpuBackend::new(Choice::Best, Options::default()).err().expect("there is none").to_string();
        assert!(error.contains("mesa-vulkan-drivers"), "{error}");
        return;
    }
    if !cfg!(target_os = "linux") {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "without_an_adapter_the_error_says_what_to_install"]);
    child.env(CHILD, "1").env("VK_ICD_FILENAMES", "/nonexistent").env("VK_DRIVER_FILES", "/nonexistent");
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
