//! A run's history, of any text: what is accepted can be gone on from, and be judged.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wgrad_examples::{
    history::{History, Observed},
    report::{Ending, Identity, Metric, Report},
};

fuzz_target!(|text: &str| {
    let Some(mut history) = History::restore(text, 2, 1) else { return };
    let again = serde_json::to_string(&history).expect("integers serialize");
    assert_eq!(History::restore(&again, 2, 1).as_ref(), Some(&history));
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
