//! `wgrad resnet`: its cases, its images, and that a run in two halves is the run in one.

use crate::{Json, devices::gpus, files::kill_and_go_on, names, numbers, saved, wgrad, wgrad_in};
use approx::relative_eq;
use std::{fs, path::Path};
use tempfile::TempDir;

/// A short run of the smallest network.
pub const SHORT: &str = "resnet --depth 8 --threads 1";

#[test]
fn help_names_cases_and_cures() {
    let help = wgrad("resnet --help").fine();
    let cases = ["degradation", "exploding", "vanishing", "sigmoid", "dead-relu"];
    let cures = ["residual", "agc", "batch-norm", "clip-norm", "he-init", "relu", "leaky-relu"];
    let options = ["--data", "--depth", "--precision", "--accumulate", "--checkpoint", "--save", "--resume"];
    for word in cases.iter().chain(&cures).chain(&options) {
        assert!(help.stdout.contains(word), "{word}: {help:#?}");
    }
    assert!(wgrad("--help").fine().stdout.contains("resnet"));
}

#[test]
fn flags_that_do_not_go_together() {
    for (args, holds) in [
        (
            "--case exploding --fix residual",
            &["--fix residual", "--case exploding", "agc", "batch-norm", "clip-norm"][..],
        ),
        ("--case vanishing --fix relu", &["--fix relu", "--case vanishing", "he-init", "batch-norm"]),
        ("--fix leaky-relu", &["--fix leaky-relu", "--case degradation", "dead-relu"]),
        ("--depth 10", &["--depth 10", "8, 14, 20"]),
        ("--depth 0", &["--depth 0", "8, 14, 20"]),
        ("--depth 100000000000", &["--depth 100000000000", "at most"]),
        ("--accumulate 3", &["--accumulate 3", "64"]),
        ("--accumulate 0", &["--accumulate 0", "64"]),
        ("--steps 0", &["--steps 0", "at least 1"]),
    ] {
        wgrad(&format!("resnet {args}")).fails(2, holds);
        wgrad(&format!("tape resnet {args}")).fails(2, holds);
    }
}

/// What the first normalisation reads.
const NORM: &str = "buffers/stem/norm/running";

#[test]
fn the_text_shows_what_cases_and_cures_change() {
    let tape = |args: &str| wgrad(&format!("tape resnet --depth 8 {args}")).fine().stdout;
    let healthy = tape("");
    for part in [
        NORM,
        "stage/2/0/shortcut/conv/weight",
        "pass sgd(lr = warmup_cosine(0.1, steps 100",
        "tap    trainer/monitor/flow/stem/z <- %",
    ] {
        assert!(healthy.contains(part), "{part:?} is missing:\n{healthy}");
    }
    assert!(!healthy.contains("clip_by_global_norm") && !healthy.contains("agc"), "{healthy}");
    let exploding = tape("--case exploding");
    assert!(!exploding.contains(NORM) && exploding.contains("shortcut"), "{exploding}");
    for (fix, part) in [("agc", "pass agc("), ("clip-norm", "pass clip_by_global_norm("), ("batch-norm", NORM)] {
        assert!(tape(&format!("--case exploding --fix {fix}")).contains(part), "{fix}");
    }
    let plain = tape("--case degradation");
    assert!(!plain.contains("shortcut"), "{plain}");
    assert_eq!(tape("--case degradation --fix residual"), healthy, "the cure brings back what the case took away");
    assert!(tape("--case sigmoid").contains("sigmoid %") && !tape("--case sigmoid --fix relu").contains("sigmoid %"));
    let parts = tape("--accumulate 2");
    assert!(parts.contains("f32[32, 1, 8, 8]") && parts.contains("accumulate("), "{parts}");
}

/// Parameters, momentum and running statistics; in micro-batches and half precision, too.
#[test]
fn a_run_in_two_halves_is_the_run_in_one() {
    for args in ["", "--accumulate 2", "--precision f16 --checkpoint", "--case exploding --fix agc"] {
        let dir = TempDir::new().expect("a directory");
        let run = |more: &str| numbers(wgrad_in(dir.path(), &format!("{SHORT} {args} --seed 2 --json {more}")).json());
        // More steps than an epoch has.
        let whole = run("--steps 30 --save whole.st");
        run("--steps 13 --save half.st");
        let second = run("--steps 30 --resume half.st --save second.st");
        assert_eq!(second, whole, "{args}");
        let [whole, second, half] = ["whole.st", "second.st", "half.st"].map(|name| saved(&dir.path().join(name)));
        assert_eq!(second, whole, "{args}");
        assert_ne!(second.tensors, half.tensors, "{args}: training changes the states");
        if !args.contains("exploding") {
            let running = format!("state:{NORM}");
            assert_ne!(whole.tensors[&running], half.tensors[&running], "{args}: so do running statistics");
        }
    }
}

#[test]
fn a_killed_run_goes_on_with_the_same_bits() {
    kill_and_go_on(SHORT, 2);
}

#[test]
fn checkpointing_changes_no_bit() {
    let run = |more: &str| numbers(wgrad(&format!("{SHORT} --steps 5 --json {more}")).json());
    assert_eq!(run("--checkpoint"), run(""));
}

#[test]
fn a_run_of_another_network_is_refused() {
    let dir = TempDir::new().expect("a directory");
    wgrad_in(dir.path(), &format!("{SHORT} --steps 2 --json --save run.st")).json();
    for (args, holds) in [
        ("--depth 14", &["run.st", "stage/0/1"][..]),
        ("--depth 8 --seed 3", &["run.st", "seed 0", "3"]),
        ("--depth 8 --case exploding", &["run.st"]),
    ] {
        wgrad_in(dir.path(), &format!("resnet --threads 1 --steps 4 --quiet --resume run.st {args}")).fails(1, holds);
    }
    assert_eq!(names(dir.path()), ["run.st"]);
}

#[test]
fn no_sound_run_is_warned_of() {
    for case in ["healthy", "degradation --fix residual", "vanishing --fix he-init", "dead-relu --fix leaky-relu"] {
        // Which also means that nothing stands on standard error.
        wgrad(&format!("{SHORT} --steps 2 --case {case}")).fine();
    }
}

#[test]
fn a_run_ends_with_its_network_its_dead_units_and_its_cure() {
    let result = wgrad(&format!("{SHORT} --steps 3 --case vanishing")).fine();
    for part in ["A plain network of 8 layers", "parameters of", "Dead units", "in stage 3", "--fix he-init"] {
        assert!(result.stdout.contains(part), "{part:?} is missing: {result:#?}");
    }
}

/// Writes an array of bytes as an IDX file.
fn idx(path: &Path, extents: &[u32], bytes: &[u8]) {
    let header = [0, 0, 8, extents.len() as u8].into_iter().chain(extents.iter().flat_map(|n| n.to_be_bytes()));
    fs::write(path, header.chain(bytes.iter().copied()).collect::<Vec<u8>>()).expect("can be written");
}

/// A folder in the format of MNIST, of small images.
fn mnist(dir: &Path, count: usize) {
    fs::create_dir_all(dir).expect("can be made");
    for part in ["train", "t10k"] {
        let pixels: Vec<u8> = (0..count * 64).map(|i| (i * i % 251) as u8).collect();
        let labels: Vec<u8> = (0..count).map(|i| (i % 10) as u8).collect();
        idx(&dir.join(format!("{part}-images-idx3-ubyte")), &[count as u32, 8, 8], &pixels);
        idx(&dir.join(format!("{part}-labels-idx1-ubyte")), &[count as u32], &labels);
    }
}

#[test]
fn images_come_from_a_folder() {
    let dir = TempDir::new().expect("a directory");
    mnist(&dir.path().join("digits"), 130);
    let report = wgrad_in(dir.path(), &format!("{SHORT} --data digits --steps 2 --json")).json();
    assert_eq!((&report["steps"], &report["metric_name"]), (&2.into(), &"accuracy".into()), "{report:?}");
    let folder = dir.path().join("photographs");
    fs::create_dir(&folder).expect("can be made");
    let records: Vec<u8> = (0..26 * 3073).map(|i| if i % 3073 == 0 { 7 } else { (i % 256) as u8 }).collect();
    let files = (1..=5).map(|i| format!("data_batch_{i}.bin")).chain(["test_batch.bin".into()]);
    files.for_each(|name| fs::write(folder.join(name), &records).expect("can be written"));
    let text = wgrad_in(dir.path(), "tape resnet --depth 8 --data photographs").fine().stdout;
    assert!(text.contains("input  x: f32[128, 3, 32, 32]"), "{text}");
}

#[test]
fn a_folder_that_holds_something_else_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("empty")).expect("can be made");
    fs::write(at("file"), "").expect("can be written");
    for name in ["short", "packed", "parts", "classes", "words", "few"] {
        mnist(&at(name), if name == "few" { 20 } else { 130 });
    }
    let first = "train-images-idx3-ubyte";
    let whole = fs::read(at("short").join(first)).expect("can be read");
    fs::write(at("short").join(first), &whole[..whole.len() - 1]).expect("can be written");
    fs::write(at("packed").join(first), [0x1f, 0x8b, 8, 0]).expect("can be written");
    fs::remove_file(at("parts").join("t10k-labels-idx1-ubyte")).expect("can be removed");
    idx(&at("classes").join("train-labels-idx1-ubyte"), &[130], &[10; 130]);
    fs::write(at("words").join(first), "These are words.").expect("can be written");
    for (name, label, length) in [("cut", 3, 3000), ("coarse", 19, 3073)] {
        fs::create_dir(at(name)).expect("can be made");
        fs::write(at(name).join("data_batch_1.bin"), vec![label; length]).expect("can be written");
    }
    for (name, holds) in [
        ("missing", &["cannot read", "missing"][..]),
        ("file", &["cannot read", "file"]),
        ("empty", &["empty", "CIFAR-10", "MNIST"]),
        ("short", &[first, "cut short"]),
        ("packed", &[first, "gunzip"]),
        ("parts", &["cannot read", "t10k-labels-idx1-ubyte"]),
        ("classes", &["train-labels-idx1-ubyte", "label 10"]),
        ("words", &[first, "does not begin with"]),
        ("cut", &["data_batch_1.bin", "3000 bytes"]),
        ("coarse", &["data_batch_1.bin", "label 19"]),
        ("few", &["20", "128"]),
    ] {
        wgrad_in(dir.path(), &format!("{SHORT} --steps 2 --quiet --data {name}")).fails(1, holds);
    }
}

/// After some steps, with batch normalisation and without. Without it rounding grows by an order of magnitude in a few steps.
#[test]
fn a_gpu_computes_what_the_cpu_does() {
    if gpus().is_empty() {
        return;
    }
    let number = |report: &Json, field: &str| report[field].as_f64().expect("a number");
    for args in ["--steps 20", "--steps 5 --case exploding --fix agc"] {
        let run = |device: &str| wgrad(&format!("{SHORT} --json --quiet {args} --device {device}")).json();
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
