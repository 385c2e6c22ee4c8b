//! Devices: which one a run is on, what is said where it is not there, and that nothing depends on it but speed.

use crate::{Json, Outcome, command, wgrad};
use std::{path::Path, process::Command};
use wgrad_wgpu::{AdapterSummary, adapters};

/// The adapters that the tests may use: none if the variable `WGRAD_NO_GPU` is 1, which is said.
///
/// # Panics
/// If there are none: no test passes because it has not run.
pub fn gpus() -> Vec<AdapterSummary> {
    if std::env::var("WGRAD_NO_GPU").is_ok_and(|value| value == "1") {
        eprintln!("WGRAD_NO_GPU is 1: nothing is tested on a GPU");
        return vec![];
    }
    let found = adapters();
    assert!(!found.is_empty(), "no GPU adapter was found. With WGRAD_NO_GPU=1 the tests run without a GPU.");
    found
}

/// Every subcommand that runs something, as short as it can be. (The set of vectors is the one that the tests keep.)
const RUNS: [&str; 5] = [
    "--steps 1 --json --quiet",
    "rnn --length 20 --steps 2 --json --quiet",
    "bench w6 --only w6_clip --budget 0 --json --quiet",
    "tape rnn --length 20 --plan --json --quiet",
    "verify ../tests/golden --kind scaler --json --quiet",
];

fn at_home(args: &str) -> Command {
    command(Path::new(env!("CARGO_MANIFEST_DIR")), args)
}

fn run(args: &str) -> Outcome {
    Outcome::new(args, at_home(args).output().expect("the command starts"))
}

/// As on a machine without any driver.
#[cfg(target_os = "linux")]
fn without_drivers(args: &str) -> Outcome {
    let mut command = at_home(args);
    command.env("VK_ICD_FILENAMES", "/nonexistent").env("VK_DRIVER_FILES", "/nonexistent");
    Outcome::new(args, command.output().expect("the command starts"))
}

/// The device that a report names, whichever subcommand it is of.
fn device(report: &Json) -> &str {
    let named = |report: &Json| ["device", "backend"].iter().any(|field| report.contains_key(*field));
    let first = report.get("tour").and_then(|tour| tour[0].as_object());
    let report = first.filter(|_| !named(report)).unwrap_or(report);
    let field = if report.contains_key("backend") { "backend" } else { "device" };
    report[field].as_str().expect("a device's name")
}

#[test]
#[cfg(target_os = "linux")]
fn without_drivers_auto_is_the_cpu_and_a_gpu_is_refused_with_what_to_install() {
    for args in RUNS {
        let report = without_drivers(&format!("{args} --device auto --threads 1")).json();
        if !args.starts_with("tape") {
            assert!(device(&report).starts_with("cpu"), "{args}: {report:?}");
        }
        for gpu in ["gpu", "gpu:0", "gpu:7"] {
            let outcome = without_drivers(&format!("{args} --device {gpu}"));
            outcome.fails(1, &["no GPU adapter was found", "install", "mesa-vulkan-drivers", "--device cpu"]);
        }
    }
    // What needs no device needs no driver.
    without_drivers("tape rnn --device gpu").fine();
    // That there is no GPU is a finding, unless one is asked for.
    let told = without_drivers("doctor --device auto").fine();
    let holds = ["no GPU adapter", "mesa-vulkan-drivers", "--device auto takes cpu", "1 passed, 0 failed"];
    assert!(holds.iter().all(|part| told.stdout.contains(part)), "{told:#?}");
    let report = without_drivers("doctor --device auto --json").json();
    assert_eq!((report["adapters"].as_array().map(Vec::len), &report["auto"]), (Some(0), &"cpu".into()));
    assert!(report["advice"].as_str().is_some_and(|advice| advice.contains("mesa-vulkan-drivers")), "{report:?}");
    without_drivers("doctor --device gpu").fails(1, &["no GPU adapter was found", "install"]);
}

#[test]
fn every_subcommand_names_the_gpu_that_it_runs_on() {
    let Some(best) = gpus().into_iter().next() else { return };
    for args in RUNS {
        let report = run(&format!("{args} --device gpu")).json();
        match args.split_whitespace().next() {
            Some("tape") => {}
            Some("bench") => assert_eq!(device(&report), format!("wgpu:{}", best.name)),
            _ => assert_eq!(device(&report), format!("gpu ({}, {})", best.name, best.backend), "{args}"),
        }
    }
    let numbered = run(&format!("{} --device gpu:0", RUNS[1])).json();
    assert!(device(&numbered).contains(&best.name), "{numbered:?}");
}

#[test]
fn auto_never_takes_a_software_renderer() {
    let found = gpus();
    let Some(best) = found.first() else { return };
    let report = run(&format!("{} --device auto --threads 1", RUNS[1])).json();
    match best.is_software() {
        true => assert_eq!(device(&report), "cpu (1 thread)"),
        false => assert!(device(&report).contains(&best.name), "{report:?}"),
    }
}

#[test]
fn a_software_renderer_that_is_taken_for_want_of_another_is_said_once() {
    let found = gpus();
    let Some(best) = found.first() else { return };
    let outcome = run("rnn --case vanishing --length 20 --steps 2 --json --device gpu");
    let said: Vec<&str> = outcome.stderr.lines().collect();
    match best.is_software() {
        true => {
            assert!(said.len() == 1 && said[0].contains("software") && said[0].contains(&best.name), "{outcome:#?}")
        }
        false => assert!(said.is_empty(), "{outcome:#?}"),
    }
    // Who gives its number has seen what it is.
    run("rnn --length 20 --steps 2 --json --device gpu:0").json();
}

#[test]
fn an_adapter_that_is_not_there_is_refused_before_anything_runs() {
    let count = gpus().len();
    if count == 0 {
        return;
    }
    for args in RUNS {
        let outcome = run(&format!("{args} --device gpu:{count}"));
        outcome.fails(1, &[&format!("no GPU adapter {count}"), "numbered 0", "wgrad doctor"]);
    }
    // Nor is a run made for the comparison first.
    let cured = "rnn --case exploding --fix clip-norm --length 20 --steps 50";
    wgrad(&format!("{cured} --device gpu:{count}")).fails(1, &[&format!("no GPU adapter {count}")]);
}

/// The loader of Vulkan's drivers tells of its work where it is asked to.
#[test]
#[cfg(target_os = "linux")]
fn on_the_cpu_nothing_looks_for_adapters() {
    if gpus().is_empty() {
        return;
    }
    for (device, looks) in [("cpu", false), ("auto", true)] {
        let args = format!("{} --device {device} --threads 1", RUNS[1]);
        let output = at_home(&args).env("VK_LOADER_DEBUG", "all").output().expect("the command starts");
        assert_eq!(!output.stderr.is_empty(), looks, "{device}: {output:?}");
    }
}
