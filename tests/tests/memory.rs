//! Ten thousand training steps leave memory as it was after the first few.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};
use wgrad::{DType, Optimizer, Store};
use wgrad_nn::optim::{Adam, AdamConfig};
use wgrad_tests::{Mlp, named};

/// The system's allocator, and how many bytes of it are in use.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are handed on to the system's allocator as they come.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Resident memory, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: usize = statm.split(' ').nth(1).expect("the second field").parse().expect("a number");
    pages * 4096
}

// One test only: others would allocate at the same time.
#[test]
fn ten_thousand_steps_leave_memory_flat() {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    let params = model.params();
    let adam = Adam::new(&mut store, &params, AdamConfig::default());
    let backend = wgrad_cpu::CpuBackend::new(2).expect("the threads start");
    let mut session = wgrad::Session::new(Box::new(backend), store).expect("the device has room");
    let batches = [model.batch(0), model.batch(1)];
    let steps = |session: &mut wgrad::Session, count: usize| {
        for k in 0..count {
            let inputs = named(&batches[k % 2]);
            let step = session.run_cached("train", &inputs, |t| {
                let loss = model.loss(t);
                t.tap("loss", loss);
                adam.step(loss.grad(&params).clip_by_global_norm(1.0));
            });
            step.expect("the step runs");
            // Fetched now and then only: what nobody fetches must not pile up either.
            if k % 1000 == 999 {
                assert!(session.taps().expect("delivered").last().expect("there are some").scalar("loss").is_some());
            }
        }
    };
    steps(&mut session, 1000);
    let live = LIVE.load(Ordering::Relaxed);
    #[cfg(target_os = "linux")]
    let before = resident();
    steps(&mut session, 10_000);
    let grown = LIVE.load(Ordering::Relaxed) as isize - live as isize;
    assert!(grown.abs() < 16 * 1024, "live memory grew by {grown} bytes");
    #[cfg(target_os = "linux")]
    assert!(resident() < before + 1024 * 1024, "resident memory grew from {before} to {}", resident());
    // Values that are computed once leave nothing behind either.
    let evaluate = |session: &mut wgrad::Session| {
        for _ in 0..200 {
            session.eval(&named(&batches[0]), |t| model.loss(t)).expect("evaluated");
        }
    };
    evaluate(&mut session);
    let live = LIVE.load(Ordering::Relaxed);
    evaluate(&mut session);
    let grown = LIVE.load(Ordering::Relaxed) as isize - live as isize;
    assert!(grown.abs() < 16 * 1024, "evaluations left {grown} bytes");
}
