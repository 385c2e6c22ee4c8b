//! wgrad in the browser: the example of exploding gradients and its cure, step by step, for a page that draws them. `cargo
//! xtask web` makes the page.
//!
//! A session is called there as anywhere else: where it waits for WebGPU, the browser puts the whole program aside (JavaScript
//! Promise Integration). An asynchronous session would have asked every user on every device for `await`, and every backend for
//! promises, for the sake of one place.

mod play;

#[cfg(target_arch = "wasm32")]
mod page;

pub use play::Play;
