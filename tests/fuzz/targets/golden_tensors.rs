//! The tensors of golden vectors, of any bytes: what is accepted is the same as an input and as an expected value.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wgrad_examples::verify::{Tensors, Tolerance, compare};

fuzz_target!(|bytes: &[u8]| {
    let Ok(tensors) = Tensors::parse("any", bytes.to_vec()) else { return };
    for name in ["x", "y", "z"] {
        let (array, expected) = (tensors.array(name), tensors.expected(name));
        let Ok(expected) = expected else {
            assert!(array.is_err(), "an input that nothing can be expected to be: {array:?}");
            continue;
        };
        assert_eq!(expected.shape.numel(), expected.values.len());
        // An integer beyond 32 bits is no input.
        let Ok(array) = array else { continue };
        let exactly = compare(&array, &expected, Tolerance { rtol: 0.0, atol: 0.0 });
        assert!(exactly.mismatch.is_none(), "{name}: {:?}", exactly.mismatch);
    }
});
