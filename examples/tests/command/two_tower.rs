//! `wgrad two-tower`: its cases, and that a run in two halves is the run in one.

use crate::{Json, devices::gpus, names, numbers, saved, wgrad, wgrad_in};
use approx::relative_eq;
use tempfile::TempDir;

/// A run on one thread.
pub const SHORT: &str = "two-tower --threads 1";

#[test]
fn help_names_cases_and_cures() {
    let help = wgrad("two-tower --help").fine();
    let words =
        ["boundary", "imbalance", "layer-norm", "scale", "unfreeze", "scale-grad", "group-lr", "--save", "--resume"];
    for word in words {
        assert!(help.stdout.contains(word), "{word}: {help:#?}");
    }
    assert!(wgrad("--help").fine().stdout.contains("two-tower"));
}

#[test]
fn flags_that_do_not_go_together() {
    for (args, holds) in [
        (
            "--case boundary --fix group-lr",
            &["--fix group-lr", "--case boundary", "layer-norm", "scale", "unfreeze"][..],
        ),
        ("--case imbalance --fix scale", &["--fix scale", "--case imbalance", "scale-grad", "group-lr"]),
        ("--fix scale-grad", &["--fix scale-grad", "imbalance"]),
        ("--accumulate 5", &["--accumulate 5", "32"]),
        ("--steps 0", &["--steps 0", "at least 1"]),
    ] {
        wgrad(&format!("two-tower {args}")).fails(2, holds);
        wgrad(&format!("tape two-tower {args}")).fails(2, holds);
    }
}

#[test]
fn the_text_shows_what_cases_and_cures_change() {
    let tape = |args: &str| wgrad(&format!("tape two-tower {args}")).fine().stdout;
    let healthy = tape("");
    for part in ["param  projection/weight", "param  vision/stem/conv/weight", "param  text/tokens/weight", "pass sgd("]
    {
        assert!(healthy.contains(part), "{part:?} is missing:\n{healthy}");
    }
    let moves = |text: &str| text.contains("commit buffers/vision/stem/norm/running");
    assert!(!moves(&healthy) && !healthy.contains("bridge/"), "what is frozen stands still:\n{healthy}");
    assert_eq!(tape("--case boundary"), healthy, "what is wrong is in the statistics' values");
    for (args, part) in [
        ("--case boundary --fix layer-norm", "param  bridge/weight"),
        ("--case boundary --fix scale", "bridge/"),
        ("--case boundary --fix unfreeze", "commit buffers/vision/stem/norm/running"),
        ("--case imbalance", "tap    trainer/monitor/flow/vision/stem/z"),
        ("--case imbalance --fix scale-grad", "pass scale_grad("),
        ("--case imbalance --fix group-lr", "lr 0.0005]"),
    ] {
        let text = tape(args);
        assert!(text.contains(part) && !healthy.contains(part), "{args}: {part:?} is missing:\n{text}");
    }
}

#[test]
fn a_run_in_two_halves_is_the_run_in_one() {
    for args in ["", "--case imbalance --fix scale-grad --accumulate 2", "--case boundary"] {
        let dir = TempDir::new().expect("a directory");
        let run = |more: &str| numbers(wgrad_in(dir.path(), &format!("{SHORT} {args} --seed 2 --json {more}")).json());
        let whole = run("--steps 9 --save whole.st");
        run("--steps 4 --save half.st");
        let second = run("--steps 9 --resume half.st --save second.st");
        assert_eq!(second, whole, "{args}");
        let [whole, second, half] = ["whole.st", "second.st", "half.st"].map(|name| saved(&dir.path().join(name)));
        assert_eq!(second, whole, "{args}");
        let moved = |of: &str| {
            let names = whole.tensors.keys().filter(|name| name.starts_with(of));
            names.filter(|name| whole.tensors[*name] != half.tensors[*name]).count()
        };
        assert!(moved("text/") > 0, "{args}: training changes the decoder");
        assert_eq!(moved("vision/") > 0, args.contains("imbalance"), "{args}: and an encoder that is not frozen");
    }
}

#[test]
fn a_run_of_another_model_is_refused() {
    let dir = TempDir::new().expect("a directory");
    wgrad_in(dir.path(), &format!("{SHORT} --steps 2 --json --save run.st")).json();
    for (args, holds) in
        [("--seed 3", &["run.st", "seed 0", "3"][..]), ("--case boundary --fix layer-norm", &["run.st", "bridge/"])]
    {
        wgrad_in(dir.path(), &format!("{SHORT} --steps 4 --quiet --resume run.st {args}")).fails(1, holds);
    }
    assert_eq!(names(dir.path()), ["run.st"]);
}

/// The encoder, the features and what is said of images: of a run that is long enough to describe a digit.
#[test]
fn a_run_ends_with_its_norms_and_with_what_it_says() {
    let result = wgrad(&format!("{SHORT} --steps 100")).fine();
    for part in ["Two towers:", "which is frozen", "What it says of a ", "even", "odd"] {
        assert!(result.stdout.contains(part), "{part:?} is missing: {result:#?}");
    }
    let result = wgrad(&format!("{SHORT} --steps 2 --case boundary")).fine();
    let norm = result.stdout.split("Norm of an image's features: ").nth(1).and_then(|rest| rest.split(';').next());
    let norm: f64 = norm.and_then(|norm| norm.parse().ok()).expect("the norm is told");
    assert!(norm > 1000.0 && result.stdout.contains("--fix layer-norm"), "{norm}: {result:#?}");
}

#[test]
fn a_gpu_computes_what_the_cpu_does() {
    if gpus().is_empty() {
        return;
    }
    let number = |report: &Json, field: &str| report[field].as_f64().expect("a number");
    for args in ["", "--case imbalance --fix scale-grad"] {
        let run = |device: &str| wgrad(&format!("{SHORT} --steps 5 --json --quiet {args} --device {device}")).json();
        let [gpu, cpu] = ["gpu", "cpu"].map(run);
        for field in ["loss_first", "loss_last", "grad_norm_max", "applied_norm_max", "flow_ratio"] {
            let (have, want) = (number(&gpu, field), number(&cpu, field));
            assert!(
                relative_eq!(have, want, epsilon = 0.0, max_relative = 1e-3),
                "{args}: {field} is {have}, on the CPU {want}"
            );
        }
    }
}
