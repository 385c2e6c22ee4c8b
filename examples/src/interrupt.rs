//! Ctrl-C: the first press asks a run to stop at the next step, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The exit status of a process that a second Ctrl-C ends, as shells expect it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Starts to listen for Ctrl-C; does nothing on systems without the signal.
pub fn listen() {
    #[cfg(not(target_arch = "wasm32"))]
    if let Err(error) = ctrlc::set_handler(interrupted) {
        eprintln!("wgrad: Ctrl-C will end a run at once: {error}");
    }
}

#[cfg(not(target_arch = "wasm32"))]
fn interrupted() {
    if REQUESTED.swap(true, Ordering::Relaxed) {
        std::process::exit(INTERRUPTED.into());
    }
}

/// Asks a run to stop at the next step.
pub fn request() {
    REQUESTED.store(true, Ordering::Relaxed);
}

/// True if a stop has been requested.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
