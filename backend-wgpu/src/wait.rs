//! Waiting for the device. A thread sleeps. In a browser no thread may sleep: JavaScript Promise Integration suspends the
//! program's stack instead, so a session is used there as anywhere else.

/// The value of a promise.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn block_on<T>(promise: impl Future<Output = T>) -> T {
    pollster::block_on(promise)
}

/// Lets other work run before the next look for results.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn pause() {
    std::thread::sleep(std::time::Duration::from_micros(50));
}

#[cfg(target_arch = "wasm32")]
pub(crate) use browser::{block_on, pause};

#[cfg(target_arch = "wasm32")]
mod browser {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    #[link(wasm_import_module = "wgrad")]
    unsafe extern "C" {
        /// Given by the page: suspends the program until the browser has done its other work.
        #[link_name = "pause"]
        safe fn suspend();
    }

    /// The value of a promise. Whoever calls into the program from JavaScript does so by `WebAssembly.promising`.
    pub(crate) fn block_on<T>(promise: impl Future<Output = T>) -> T {
        let mut promise = pin!(promise);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match promise.as_mut().poll(&mut context) {
                Poll::Ready(value) => return value,
                Poll::Pending => suspend(),
            }
        }
    }

    /// Lets the browser go on.
    pub(crate) fn pause() {
        suspend();
    }
}
