//! The GPU that tests share.

use std::sync::OnceLock;
use wgrad_wgpu::{Choice, Gpu, Options};

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}

/// How tests open a GPU: with all that it has, or, if the variable `WGRAD_GPU_FLOOR` is 1, with the least of what devices
/// offer, which is said.
pub fn gpu_options() -> Options {
    let floor = is_set("WGRAD_GPU_FLOOR");
    if floor {
        eprintln!("WGRAD_GPU_FLOOR is 1: wgpu's default limits, and no optional feature");
    }
    Options { floor, ..Options::default() }
}

/// Whether the GPU of tests, opened with [`gpu_options`], tells the time of a kernel. That it does not is said.
pub fn has_timestamps(gpu: &Gpu) -> bool {
    let has = !gpu_options().floor && gpu.summary().features.iter().any(|feature| feature == "timestamp_query");
    if !has {
        eprintln!("{} has no timestamps, or they are not asked for: no kernel is timed on it", gpu.summary().name);
    }
    has
}

/// The GPU of this process: the first adapter, a software renderer if there is nothing else. Opened once, since what is
/// compiled for it is kept with it. None if the variable `WGRAD_NO_GPU` is 1, which is said.
///
/// # Panics
/// If there is no adapter: no test passes because it has not run.
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

/// The GPU, with each kernel as a dispatch of its own. None if there is none.
///
/// # Panics
/// If there is no adapter, or it does not open twice.
pub fn separate_gpu() -> Option<&'static Gpu> {
    static SEPARATE: OnceLock<Gpu> = OnceLock::new();
    let options = Options { separate: true, ..gpu_options() };
    gpu().map(|_| SEPARATE.get_or_init(|| Gpu::open(Choice::Best, options).expect("it opens twice")))
}

/// The GPU as it is, and with no optional feature: f16 numbers are stored in two ways. Empty if there is none.
///
/// # Panics
/// If there is no adapter, or it does not open twice.
pub fn gpus_of_f16() -> Vec<&'static Gpu> {
    static FLOOR: OnceLock<Gpu> = OnceLock::new();
    let options = Options { floor: true, ..Options::default() };
    let floor = || FLOOR.get_or_init(|| Gpu::open(Choice::Best, options).expect("it opens twice"));
    gpu().map_or(vec![], |gpu| vec![gpu, floor()])
}

/// The GPU as it is, and as if it were no software renderer: what runs on real GPUs is tested too. Empty if there is none.
///
/// # Panics
/// If there is no adapter, or it does not open twice.
pub fn gpus() -> Vec<&'static Gpu> {
    static HARDWARE: OnceLock<Gpu> = OnceLock::new();
    let options = Options { as_hardware: true, ..gpu_options() };
    let hardware = || HARDWARE.get_or_init(|| Gpu::open(Choice::Best, options).expect("it opens twice"));
    gpu().map_or(vec![], |gpu| vec![gpu, hardware()])
}
