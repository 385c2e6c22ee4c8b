//! The weights and batches of a benchmark, of any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use wgrad_examples::bench::data::{Draw, File, Source};
use wgrad_fuzz::Bytes;

thread_local! {
    static SHARED: RefCell<Bytes> = RefCell::default();
}

fuzz_target!(|bytes: &[u8]| {
    SHARED.with_borrow_mut(|file| {
        let Ok(file) = File::open(file.hold(bytes)) else { return };
        let mut source = Source::File(file);
        for shape in [&[2, 3][..], &[0], &[]] {
            if let Ok(x) = source.floats("x", shape, Draw::Uniform(1.0)) {
                assert_eq!(&x.shape()[..], shape);
            }
            if let Ok(y) = source.classes("y", shape, 3) {
                assert!(y.to_f64().iter().all(|class| *class < 3.0), "{y:?} holds a class that does not exist");
            }
        }
    });
});
