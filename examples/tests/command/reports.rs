//! What reports say: the cases fail by name, the cures heal, and the same seed gives the same bits.

use crate::{numbers, wgrad};
use approx::relative_eq;

#[test]
fn an_exploding_run_explodes_and_clipping_heals_it() {
    let broken = wgrad("rnn --case exploding --length 20 --steps 400 --threads 1 --json").json();
    assert_ne!(broken["verdict"], "healthy", "{broken:?}");
    assert_eq!(broken["reached"], false, "{broken:?}");
    assert_eq!(broken["grad_norm_max"], broken["applied_norm_max"], "nothing clips: {broken:?}");
    let healed = wgrad("rnn --case exploding --fix clip-norm --length 20 --steps 400 --threads 1 --json").json();
    assert_eq!((&healed["verdict"], &healed["reached"]), (&"healthy".into(), &true.into()), "{healed:?}");
    let norm = |field: &str| healed[field].as_f64().expect("a number");
    assert!(norm("grad_norm_max") > 10.0 && norm("applied_norm_max") <= 1.001, "{healed:?}");
    // The cure brings back what the case took away, and nothing else.
    let mut healthy = numbers(wgrad("rnn --length 20 --steps 400 --threads 1 --json").json());
    healthy.extend([("case".to_string(), "exploding".into()), ("fix".to_string(), "clip-norm".into())]);
    assert_eq!(numbers(healed), healthy);
}

/// Micro-batches add up to the batch, and what is computed again is what was kept: the same run but for rounding.
#[test]
fn how_a_batch_is_computed_is_not_what_is_learned() {
    let run = |args: &str| wgrad(&format!("rnn --length 20 --steps 20 --threads 1 --json {args}")).json();
    let whole = run("");
    let all = ["loss_first", "loss_last", "grad_norm_max", "flow_ratio"];
    // The flow is that of the first micro-batch, which is another sample of the same.
    for (args, fields) in [("--accumulate 4", &all[..3]), ("--checkpoint", &all), ("--precision f16", &all[..1])] {
        let other = run(args);
        for field in fields {
            let [have, want] = [&other, &whole].map(|report| report[*field].as_f64().expect("a number"));
            assert!(relative_eq!(have, want, epsilon = 0.0, max_relative = 1e-3), "{args}: {field} {have}, not {want}");
        }
    }
    assert_ne!(run("--precision f16")["loss_last"], whole["loss_last"], "half precision is another one");
}

#[test]
fn a_bound_that_is_learned_beats_the_bad_one_that_it_begins_with() {
    let run =
        |args: &str| wgrad(&format!("rnn --case exploding {args} --length 20 --steps 1000 --threads 1 --json")).json();
    let constant = run("--fix clip-norm --max-norm 0.001");
    assert_eq!((&constant["verdict"], &constant["reached"]), (&"stalled".into(), &false.into()), "{constant:?}");
    let learned = run("--fix meta-clip --max-norm 0.001");
    assert_eq!((&learned["verdict"], &learned["reached"]), (&"healthy".into(), &true.into()), "{learned:?}");
    let applied = learned["applied_norm_max"].as_f64().expect("a number");
    assert!(applied > 0.01 && applied < learned["grad_norm_max"].as_f64().expect("a number"), "{learned:?}");
}

#[test]
fn a_vanishing_run_vanishes() {
    let report = wgrad("rnn --case vanishing --length 20 --steps 100 --threads 1 --json").json();
    assert_eq!(report["verdict"], "vanishing", "{report:?}");
    assert!(report["flow_ratio"].as_f64().expect("a number") < 0.01, "{report:?}");
    assert_eq!((&report["reached"], &report["diverged"]), (&false.into(), &false.into()));
}

#[test]
fn an_lstm_is_no_longer_vanishing() {
    let args = "rnn --case vanishing --fix lstm --length 20 --steps 300 --threads 1 --json";
    let report = wgrad(args).json();
    assert_ne!(report["verdict"], "vanishing", "{report:?}");
    assert!(report["flow_ratio"].as_f64().expect("a number") > 0.01, "{report:?}");
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    for args in ["--case vanishing", "--case vanishing --fix omega", "--cell lstm", "--task adding", "--task digits"] {
        let length = if args.contains("digits") { "" } else { "--length 20" };
        let report = |more: &str| numbers(wgrad(&format!("rnn {args} {length} --steps 12 --json {more}")).json());
        let first = report("--threads 1 --seed 5");
        assert_eq!(report("--threads 1 --seed 5"), first, "{args}: again");
        assert_eq!(report("--threads 2 --seed 5"), first, "{args}: with another thread");
        let mut other = report("--threads 1 --seed 6");
        assert_ne!(other["loss_last"], first["loss_last"], "{args}: another seed");
        other.insert("seed".into(), 5.into());
        assert_ne!(other, first, "{args}: another seed");
    }
}
