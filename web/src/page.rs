//! The functions that the page calls. Those that may wait for WebGPU are called by way of `WebAssembly.promising`, one at a time:
//! two programs that are put aside would share one stack.

use crate::Play;
use std::cell::RefCell;
use wasm_bindgen::prelude::wasm_bindgen;
use wgrad_examples::{Result, device::Place};
use wgrad_wgpu::{Choice, Gpu, Options};

#[derive(Default)]
struct State {
    /// The opened runs. The one that is at work is not here.
    runs: Vec<Option<Play>>,
    /// The GPU, once it is opened: runs share it.
    gpu: Option<Gpu>,
    /// The last error.
    message: String,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console)]
    fn error(text: &str);
}

/// Has the console tell of panics.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|info| error(&info.to_string())));
}

fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(f)
}

fn opened(on_gpu: bool, cured: bool, seed: u32) -> Result<Play> {
    let place = match on_gpu {
        false => Place::Cpu { threads: 1 },
        true => {
            let gpu = match with(|state| state.gpu.clone()) {
                Some(gpu) => gpu,
                None => Gpu::open(Choice::Best, Options::default())?,
            };
            with(|state| state.gpu = Some(gpu.clone()));
            Place::Gpu(gpu)
        }
    };
    Play::open(&place, cured, seed.into())
}

/// Opens a run. Gives its number; -1 if it cannot be had, and [`message`] says why. May wait.
#[wasm_bindgen]
pub fn open(on_gpu: bool, cured: bool, seed: u32) -> i32 {
    let opened = opened(on_gpu, cured, seed);
    with(|state| match opened {
        Ok(play) => {
            state.runs.push(Some(play));
            state.runs.len() as i32 - 1
        }
        Err(error) => {
            state.message = error.to_string();
            -1
        }
    })
}

/// Makes steps of a run. Whether that went well; if not, [`message`] says why. May wait.
#[wasm_bindgen]
pub fn steps(run: usize, count: usize) -> bool {
    let Some(mut play) = with(|state| state.runs.get_mut(run).and_then(Option::take)) else {
        with(|state| state.message = format!("there is no run {run}, or it is at work"));
        return false;
    };
    let made = play.steps(count);
    with(|state| {
        state.runs[run] = Some(play);
        made.map_err(|error| state.message = error.to_string()).is_ok()
    })
}

/// Forgets all runs.
#[wasm_bindgen]
pub fn close() {
    with(|state| state.runs.iter_mut().for_each(|run| *run = None));
}

/// The last error.
#[wasm_bindgen]
pub fn message() -> String {
    with(|state| state.message.clone())
}

fn of<T: Default>(run: usize, f: impl FnOnce(&Play) -> T) -> T {
    with(|state| state.runs.get(run).and_then(Option::as_ref).map_or_else(T::default, f))
}

/// The loss of each step of a run so far.
#[wasm_bindgen]
pub fn losses(run: usize) -> Vec<f64> {
    of(run, |play| play.losses().to_vec())
}

/// The norm of each step's gradient before it is clipped.
#[wasm_bindgen]
pub fn norms(run: usize) -> Vec<f64> {
    of(run, |play| play.norms().to_vec())
}

/// The mean of |dL/dz| at each time step, of the last step of a run.
#[wasm_bindgen]
pub fn flow(run: usize) -> Vec<f64> {
    of(run, |play| play.flow().to_vec())
}

/// The device of a run.
#[wasm_bindgen]
pub fn device(run: usize) -> String {
    of(run, Play::device)
}
