//! The GPUs that tests share.

use std::sync::OnceLock;
use wgrad_wgpu::{Choice, Gpu, Options};

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}

/// The options with which tests open a GPU: all of its limits and features; or, if the variable `WGRAD_GPU_FLOOR` is 1,
/// the least that devices offer, which is printed.
pub fn gpu_options() -> Options {
    let floor = is_set("WGRAD_GPU_FLOOR");
    if floor {
        eprintln!("WGRAD_GPU_FLOOR is 1: wgpu's default limits, and no optional feature");
    }
    Options { floor, ..Options::default() }
}

/// True if the GPU of tests, opened with [`gpu_options`], reports kernel times. A message is printed if it does not.
pub fn has_timestamps(gpu: &Gpu) -> bool {
    let has = !gpu_options().floor && gpu.summary().features.iter().any(|feature| feature == "timestamp_query");
    if !has {
        eprintln!("{} has no timestamps, or they are not asked for: no kernel is timed on it", gpu.summary().name);
    }
    has
}

/// The GPU of this process: the best adapter, which is a software renderer if there is no other. It is opened once,
/// because it holds the compiled pipelines. `None` if the variable `WGRAD_NO_GPU` is 1, which is printed.
///
/// # Panics
/// If there is no adapter, so that no test passes without having run.
pub fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let open = || {
        if is_set("WGRAD_NO_GPU") {
            eprintln!("WGRAD_NO_GPU is 1: nothing is tested on a GPU");
            return None;
        }
        Some(
            Gpu::open(Choice::Best, gpu_options())
                .unwrap_or_else(|error| panic!("{error}. With WGRAD_NO_GPU=1 the tests run without a GPU.")),
        )
    };
    GPU.get_or_init(open).as_ref()
}

/// The GPU, opened so that each kernel is a separate dispatch. `None` if [`gpu()`] is `None`.
///
/// # Panics
/// If there is no adapter, or it cannot be opened a second time.
pub fn separate_gpu() -> Option<&'static Gpu> {
    static SEPARATE: OnceLock<Gpu> = OnceLock::new();
    let options = Options { separate: true, ..gpu_options() };
    gpu().map(|_| SEPARATE.get_or_init(|| Gpu::open(Choice::Best, options).expect("it opens twice")))
}

/// The GPU with its features, and with no optional feature, so that both ways of storing f16 are tested. Empty if
/// [`gpu()`] is `None`.
///
/// # Panics
/// If there is no adapter, or it cannot be opened a second time.
pub fn gpus_of_f16() -> Vec<&'static Gpu> {
    static FLOOR: OnceLock<Gpu> = OnceLock::new();
    let options = Options { floor: true, ..Options::default() };
    let floor = || FLOOR.get_or_init(|| Gpu::open(Choice::Best, options).expect("it opens twice"));
    gpu().map_or(vec![], |gpu| vec![gpu, floor()])
}

/// The GPU as it is, and treated as hardware even if it is a software renderer, so that the code for real GPUs is
/// tested too. Empty if [`gpu()`] is `None`.
///
/// # Panics
/// If there is no adapter, or it cannot be opened a second time.
pub fn gpus() -> Vec<&'static Gpu> {
    static HARDWARE: OnceLock<Gpu> = OnceLock::new();
    let options = Options { as_hardware: true, ..gpu_options() };
    let hardware = || HARDWARE.get_or_init(|| Gpu::open(Choice::Best, options).expect("it opens twice"));
    gpu().map_or(vec![], |gpu| vec![gpu, hardware()])
}
