//! A run's history, of any text and any arrays: what is accepted can be gone on from, and be judged.
//!
//! The input is JSON: the text of the metadata, and arrays of f32 by name, each a shape and the bits of its elements.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use wgrad::Array;
use wgrad_examples::{
    history::{History, Observed},
    report::{Ending, Identity, Metric, Report},
};
use wgrad_nn::checkpoint::Arrays;

type Input = (String, BTreeMap<String, (Vec<usize>, Vec<u32>)>);

/// The arrays among those whose elements are as many as their shape says.
fn arrays(all: BTreeMap<String, (Vec<usize>, Vec<u32>)>) -> Arrays {
    let of = |(name, (shape, bits)): (String, (Vec<usize>, Vec<u32>))| {
        let numel = shape.iter().try_fold(1usize, |numel, extent| numel.checked_mul(*extent));
        let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        (shape.len() < 4 && numel == Some(values.len())).then(|| (name, Array::new(shape, values)))
    };
    all.into_iter().filter_map(of).collect()
}

fuzz_target!(|input: &str| {
    let Ok((text, all)) = serde_json::from_str::<Input>(input) else { return };
    let Ok(mut history) = History::restore(&text, &arrays(all), 2, 1) else { return };
    let (text, arrays) = history.save();
    assert_eq!(History::restore(&text, &arrays, 2, 1).as_ref(), Ok(&history));
    for _ in 0..2 {
        if !history.is_empty() {
            judge(&history);
        }
        history.push(Observed { loss: 1.0, grad_norm: 2.0, applied_norm: 1.0, flow: &[0.5, 1.0], weights: &[3.0] });
    }
});

fn judge(history: &History) {
    history.typical_flow();
    history.flow_at_peak();
    history.typical_weights();
    history.weights_at_peak();
    let metric = Metric { name: "accuracy", target: 0.9, rising: true };
    let ending = Ending { metric, value: 0.5, finite_params: true, ms_per_step: 1.0 };
    let name = || "rnn".to_string();
    let identity = Identity { example: "rnn", case: name(), fix: name(), device: name(), seed: 0 };
    Report::new(identity, history, &ending);
}
