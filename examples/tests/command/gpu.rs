//! Runs on a GPU: the same losses as on the CPU, the same bits twice, and what doctor says of it.

use crate::{Json, devices::gpus, names, numbers, saved, wgrad, wgrad_in};
use approx::relative_eq;
use std::fs;
use tempfile::TempDir;

fn number(report: &Json, field: &str) -> f64 {
    report[field].as_f64().unwrap_or_else(|| panic!("{field} is no number: {report:?}"))
}

/// After 50 steps, wherever a step is no matter of luck: a network of ReLU units that starts at the identity has gradients
/// of several hundreds here, and turns one wrong bit in a parameter into a hundredth of the loss, on the CPU too. So that one is
/// compared after 10.
#[test]
fn healthy_runs_end_with_the_loss_of_the_cpu() {
    if gpus().is_empty() {
        return;
    }
    for (task, length) in [("temporal-order", "--length 10"), ("adding", "--length 8"), ("digits", "")] {
        for (cell, steps) in [("rnn", 50), ("irnn", 10), ("lstm", 50), ("gru", 50)] {
            // The digits are 64 pixels long, and take the renderer half a second a step.
            if task == "digits" && cell != "rnn" {
                continue;
            }
            let args = format!("rnn --task {task} --cell {cell} {length} --steps {steps} --json --quiet");
            let [gpu, cpu] = ["gpu", "cpu"].map(|device| wgrad(&format!("{args} --device {device}")).json());
            for field in ["loss_first", "loss_last", "metric", "grad_norm_max"] {
                let (have, want) = (number(&gpu, field), number(&cpu, field));
                assert!(
                    relative_eq!(have, want, epsilon = 0.0, max_relative = 1e-3),
                    "{args}: {field} is {have}, on the CPU {want}"
                );
            }
            assert_eq!((&gpu["steps"], &gpu["verdict"]), (&cpu["steps"], &cpu["verdict"]), "{args}");
        }
    }
}

#[test]
fn a_run_repeats_its_bits_and_goes_on_where_it_was_interrupted() {
    if gpus().is_empty() {
        return;
    }
    let dir = TempDir::new().expect("a directory");
    let run = |more: &str| {
        let args = format!("rnn --length 10 --device gpu --seed 3 --json --quiet {more}");
        numbers(wgrad_in(dir.path(), &args).json())
    };
    let first = run("--steps 100 --save first.st");
    assert_eq!(run("--steps 100 --save second.st"), first);
    let parameters = saved(&dir.path().join("first.st"));
    assert_eq!(saved(&dir.path().join("second.st")), parameters);
    run("--steps 60 --save part.st");
    assert_eq!(run("--steps 100 --resume part.st --save whole.st"), first);
    assert_eq!(saved(&dir.path().join("whole.st")), parameters);
}

/// What one device has saved another goes on with.
#[test]
fn a_checkpoint_moves_between_devices() {
    if gpus().is_empty() {
        return;
    }
    let dir = TempDir::new().expect("a directory");
    let run = |more: &str| wgrad_in(dir.path(), &format!("rnn --length 10 --json --quiet {more}")).json();
    run("--device gpu --steps 20 --save run.st");
    let gpu = run("--device gpu --steps 30 --resume run.st");
    let cpu = run("--device cpu --steps 30 --resume run.st");
    let [have, want] = [&gpu, &cpu].map(|report| number(report, "loss_last"));
    assert!(relative_eq!(have, want, epsilon = 0.0, max_relative = 1e-4), "{gpu:?} and {cpu:?}");
    assert_eq!(names(dir.path()), ["run.st"]);
}

/// A step that makes the loss infinite is the last, however far the device was ahead.
#[test]
fn a_run_ends_with_the_first_loss_that_is_no_number() {
    if gpus().is_empty() {
        return;
    }
    let dir = TempDir::new().expect("a directory");
    let args = "rnn --case exploding --length 10 --steps 5 --json --quiet --save run.st";
    wgrad_in(dir.path(), &format!("{args} --device cpu")).json();
    let path = dir.path().join("run.st");
    let bytes = fs::read(&path).expect("can be read");
    let mut infinite = bytes.clone();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).expect("the checkpoint has a header");
    // What the run remembers of its steps stays as it is.
    for (_, info) in metadata.tensors().iter().filter(|(name, _)| !name.contains("history/")) {
        let (from, to) = info.data_offsets;
        let floats = &mut infinite[8 + header..][from..to];
        if info.dtype == safetensors::Dtype::F32 {
            floats.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&f32::NAN.to_le_bytes()));
        }
    }
    fs::write(&path, infinite).expect("can be written");
    for device in ["cpu", "gpu"] {
        let args =
            format!("rnn --case exploding --length 10 --steps 100 --json --quiet --resume run.st --device {device}");
        let report = wgrad_in(dir.path(), &args).json();
        assert_eq!((&report["steps"], &report["verdict"]), (&6.into(), &"non-finite".into()), "{device}: {report:?}");
    }
}

#[test]
fn doctor_tests_every_adapter_and_the_cpu() {
    let found = gpus();
    let Some(best) = found.first() else { return };
    let report = wgrad("doctor --device auto --json").json();
    let adapters = report["adapters"].as_array().expect("a list");
    assert_eq!(adapters.len(), found.len(), "{report:?}");
    let first = &adapters[0];
    assert_eq!((&first["device"], &first["name"]), (&"gpu:0".into(), &best.name.clone().into()));
    assert_eq!((&first["software"], &first["passed"]), (&best.is_software().into(), &true.into()), "{first:#?}");
    assert_eq!(first["limits"]["largest_binding"], best.largest_binding, "{first:#?}");
    assert!(first["features"]["subgroup"].is_boolean(), "{first:#?}");
    for tested in [first, &report["cpu"]] {
        let tests = tested["tests"].as_array().expect("a list");
        assert!(tests.len() >= 8 && tests.iter().all(|test| test["why"].is_null()), "{tested:#?}");
    }
    assert_eq!(report["auto"], if best.is_software() { "cpu" } else { "gpu:0" });
    assert!(report["advice"].is_null(), "{report:?}");
    let text = wgrad("doctor --device auto").fine();
    for part in ["gpu:0", &best.name, "driver", "subgroup", "self-test", "agree with the reference", "cpu ("] {
        assert!(text.stdout.contains(part), "{part}: {text:#?}");
    }
    let one = wgrad("doctor --device gpu:0 --json").json();
    assert_eq!((one["adapters"].as_array().map(Vec::len), &one["cpu"]), (Some(1), &serde_json::Value::Null));
    wgrad(&format!("doctor --device gpu:{}", found.len())).fails(1, &["no GPU adapter", "numbered 0"]);
    let cpu = wgrad("doctor --device cpu --json").json();
    assert!(cpu["auto"].is_null() && cpu["cpu"]["passed"] == true, "nobody has looked for adapters: {cpu:?}");
    wgrad("doctor --steps 3").fails(2, &["--steps"]);
}
