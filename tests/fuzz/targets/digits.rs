//! A table of digits, of any text: what is accepted makes batches.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wgrad_nn::data::{Digits, Task};

fuzz_target!(|text: &str| {
    if let Ok(digits) = Digits::parse(text, 1) {
        assert!(digits.epoch() > 0);
        let batch = digits.train(3, 5);
        assert_eq!(&batch["x"].shape()[..], [digits.time(), 3, digits.inputs()]);
        assert!(batch["x"].to_f64().iter().all(|pixel| (0.0..=1.0).contains(pixel)));
        assert!(batch["y"].to_f64().iter().all(|class| *class < digits.outputs() as f64));
        digits.held_out(0);
    }
});
