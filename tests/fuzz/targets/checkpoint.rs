//! A checkpoint, or a file of parameters, of any bytes: an error leaves the session as it was.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use wgrad::Session;
use wgrad_fuzz::{Bytes, session, states};
use wgrad_nn::checkpoint::{load, load_params};

thread_local! {
    static SHARED: RefCell<(Session, Bytes)> = RefCell::new((session(), Bytes::default()));
}

fuzz_target!(|bytes: &[u8]| {
    SHARED.with_borrow_mut(|(session, file)| {
        let path = file.hold(bytes);
        let before = states(session);
        if load(session, path).is_err() {
            assert_eq!(states(session), before, "a checkpoint that does not fit has changed the session");
        }
        let before = states(session);
        // Another program's names: what is after the last full stop.
        let name = |name: &str| (name != "other").then(|| name.rsplit('.').next().unwrap_or_default().to_string());
        if load_params(session, path, name).is_err() {
            assert_eq!(states(session), before, "parameters that do not fit have changed the session");
        }
    });
});
