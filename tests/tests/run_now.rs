//! Running a program and taking its taps at once: its own, and its own errors.

use wgrad::{Array, Backend, DType, Error, Session, Store};
use wgrad_cpu::CpuBackend;
use wgrad_tests::gpu;
use wgrad_wgpu::WgpuBackend;

/// The devices that tests run on.
fn devices() -> Vec<Box<dyn Backend>> {
    let cpu = Box::new(CpuBackend::poisoned(1).expect("the threads start"));
    let gpu = gpu().map(|gpu| Box::new(WgpuBackend::on(gpu).expect("the device is there").poisoned()) as _);
    std::iter::once(cpu as Box<dyn Backend>).chain(gpu).collect()
}

fn input(value: f32) -> Array {
    Array::new([], vec![value])
}

#[test]
fn run_now_gives_the_taps_of_its_own_run() {
    for device in devices() {
        let mut store = Store::new();
        let sum = store.state("sum", &input(0.0));
        let mut session = Session::new(device, store).expect("session");
        let step = session.record(|t| {
            let now = t.state(sum) + t.input("x", [], DType::F32);
            t.assign(sum, now);
            t.tap("sum", now);
        });
        let step = step.expect("compiles");
        let silent = session.record(|t| t.assign(sum, t.state(sum) * 2)).expect("compiles");
        let first = session.run(&step, &[("x", &input(1.0))]).expect("runs");
        let taps = session.run_now(&step, &[("x", &input(10.0))]).expect("runs");
        assert_eq!((taps.run, taps.scalar("sum")), (first + 1, Some(11.0)));
        assert_eq!(session.run_now(&silent, &[]).expect("runs").iter().count(), 0, "a program may have no taps");
        let last = session.run_now(&step, &[("x", &input(0.5))]).expect("runs");
        assert_eq!((last.run, last.scalar("sum")), (first + 3, Some(22.5)));
        // The taps of other runs are where they were.
        let others = session.taps().expect("delivered");
        assert_eq!(others.iter().map(|taps| (taps.run, taps.scalar("sum"))).collect::<Vec<_>>(), [(first, Some(1.0))]);
        // More runs than taps are kept for.
        for _ in 0..70 {
            session.run(&silent, &[]).expect("runs");
        }
        assert!(session.run_now(&step, &[("x", &input(0.0))]).expect("runs").get("sum").is_some());
    }
}

#[test]
fn errors_of_run_now_have_types() {
    for device in devices() {
        let mut store = Store::new();
        let table = store.state("table", &Array::new([3], vec![1.0f32, 2.0, 3.0]));
        let mut session = Session::new(device, store).expect("session");
        let step = session.record(|t| {
            let row = t.state(table).gather(t.input("index", [1], DType::U32), 0);
            t.tap("row", row);
            t.assign(table, t.state(table) + row);
        });
        let step = step.expect("compiles");
        let index = |i: u32| Array::new([1], vec![i]);
        let missing = session.run_now(&step, &[]).expect_err("refused");
        assert!(matches!(missing, Error::MissingInput { .. }), "{missing}");
        let wide = session.run_now(&step, &[("index", &Array::new([1], vec![1.0f32]))]).expect_err("refused");
        assert!(matches!(wide, Error::Mismatch { .. }), "{wide}");
        // On a GPU too, this run's error, not that of a later call.
        let beyond = session.run_now(&step, &[("index", &index(3))]).expect_err("refused");
        assert!(matches!(beyond, Error::IndexOutOfRange { index: 3, extent: 3, .. }), "{beyond}");
        assert_eq!(session.read(table).expect("reads").to_f64(), [1.0, 2.0, 3.0], "no state has changed");
        assert_eq!(session.run_now(&step, &[("index", &index(1))]).expect("runs").scalar("row"), Some(2.0));
        let mut other = Session::new(Box::new(CpuBackend::new(1).expect("threads")), Store::new()).expect("session");
        let foreign = other.run_now(&step, &[("index", &index(1))]).expect_err("refused");
        assert!(matches!(foreign, Error::ForeignProgram { .. }), "{foreign}");
    }
}
