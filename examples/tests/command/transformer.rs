//! `wgrad transformer`: its flags, its text, its files, and what it says at the end.

use crate::{devices::gpus, files::kill_and_go_on, names, numbers, saved, wgrad, wgrad_in};
use approx::{abs_diff_eq, relative_eq};
use std::{fs, path::Path};
use tempfile::TempDir;

/// A directory with `text.txt`, of some characters, whose last tenth is a few windows.
fn with_text() -> TempDir {
    let dir = TempDir::new().expect("a directory");
    write_text(&dir.path().join("text.txt"), "abcdefgh \n");
    dir
}

/// Writes words drawn from some characters.
fn write_text(path: &Path, characters: &str) {
    let characters: Vec<char> = characters.chars().collect();
    let mut state = 1u32;
    let text: String = (0..2500)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            characters[(state >> 16) as usize % characters.len()]
        })
        .collect();
    fs::write(path, text).expect("can be written");
}

/// A run on the text that is built in.
pub const BUILT_IN: &str = "transformer --threads 1";
/// A run on that of such a directory.
const SHORT: &str = "transformer --text text.txt --threads 1";

#[test]
fn help_lists_cases_and_cures() {
    let help = wgrad("transformer --help").fine();
    for word in [
        "healthy",
        "exploding",
        "post-norm",
        "scores",
        "underflow",
        "clip-norm",
        "pre-norm",
        "warmup",
        "qk-norm",
        "temperature",
        "loss-scale",
        "--text",
        "--sample",
        "--size",
        "medium",
        "--precision",
        "--accumulate",
        "--checkpoint",
        "--save",
        "--resume",
    ] {
        assert!(help.stdout.contains(word), "{word}: {help:#?}");
    }
}

#[test]
fn flags_that_do_not_go_together() {
    for (args, holds) in [
        ("--case exploding --fix qk-norm", &["--fix qk-norm", "--case exploding", "clip-norm"][..]),
        ("--case post-norm --fix clip-norm", &["--fix clip-norm", "--case post-norm", "pre-norm", "warmup"]),
        ("--case scores --fix warmup", &["--fix warmup", "--case scores", "qk-norm", "temperature"]),
        ("--case underflow --fix pre-norm", &["--fix pre-norm", "--case underflow", "loss-scale"]),
        ("--fix loss-scale", &["--fix loss-scale", "--case exploding", "underflow"]),
        ("--case scores --size medium", &["--case scores", "--size small"]),
        ("--steps 0", &["--steps 0", "at least 1"]),
        ("--accumulate 0", &["--accumulate 0", "divisor", "8"]),
        ("--accumulate 3", &["--accumulate 3", "divisor", "8"]),
    ] {
        wgrad(&format!("transformer {args}")).fails(2, holds);
        wgrad(&format!("tape transformer {args}")).fails(2, holds);
    }
}

#[test]
fn the_tape_shows_what_flags_change() {
    let dir = with_text();
    let tape = |args: &str| wgrad_in(dir.path(), &format!("tape transformer --text text.txt {args}")).fine().stdout;
    let healthy = tape("");
    for part in [
        "param  tokens/weight: f32[10, 64]",
        "block[0 .. 3]: 4 turns alike",
        "attention causal, scale 0.25: o of ",
        "pass clip_by_global_norm(",
        "pass adamw(",
    ] {
        assert!(healthy.contains(part), "{part:?} is missing:\n{healthy}");
    }
    let exploding = tape("--case exploding");
    assert!(exploding.contains("pass sgd(") && !exploding.contains("clip_by_global_norm"), "{exploding}");
    assert!(tape("--case exploding --fix clip-norm").contains("clip_by_global_norm"));
    assert!(tape("--case post-norm").contains("block/11/norm2/weight") && !healthy.contains("block/4/"));
    assert!(tape("--case scores --fix qk-norm").contains("q_norm") && !healthy.contains("q_norm"));
    let underflow = tape("--case underflow");
    assert!(underflow.contains("f16[") && !underflow.contains("scaler_update"), "{underflow}");
    assert!(tape("--case underflow --fix loss-scale").contains("pass scaler_update("));
    assert!(tape("--accumulate 4").contains("trainer/accumulator"));
    assert_ne!(tape("--checkpoint"), healthy);
}

#[test]
fn a_run_tells_what_attention_sees_and_writes_a_text() {
    let dir = with_text();
    let run = |more: &str| wgrad_in(dir.path(), &format!("{SHORT} --steps 3 {more}")).fine().stdout;
    let shown = run("--sample 70 --save run.st");
    for part in ["block[3]/ffn", "Attention on held-out text", "  block[3]: scores from -", "A sample of 70 characters"]
    {
        assert!(shown.contains(part), "{part:?} is missing:\n{shown}");
    }
    let sampled = |shown: &str| shown.split_once("A sample of 70").expect("a sample").1.to_string();
    let text: String = sampled(&shown).lines().filter_map(|line| line.strip_prefix("  | ")).collect();
    assert!(text.chars().count() > 40 && text.chars().all(|c| "abcdefgh ".contains(c)), "{text:?}");
    // From the saved model, without another step, it is the same text; from another seed another.
    let again = wgrad_in(dir.path(), &format!("{SHORT} --sample 70 --resume run.st")).fine().stdout;
    assert!(again.contains("after 3 steps") && again.contains("no new steps"), "{again}");
    assert_eq!(sampled(&again), sampled(&shown));
    assert_ne!(sampled(&run("--sample 70 --seed 1")), sampled(&shown));
    assert!(!run("--sample 0").contains("A sample"));
}

#[test]
fn a_run_in_two_halves_is_the_run_in_one() {
    for args in ["--checkpoint", "--case underflow --fix loss-scale --accumulate 4", "--case exploding"] {
        let dir = with_text();
        let run = |more: &str| {
            numbers(wgrad_in(dir.path(), &format!("transformer --text text.txt {args} --seed 2 --json {more}")).json())
        };
        let whole = run("--threads 1 --steps 5 --save whole.st");
        run("--threads 1 --steps 3 --save half.st");
        assert_eq!(run("--threads 2 --steps 5 --resume half.st --save second.st"), whole, "{args}");
        assert_eq!(saved(&dir.path().join("second.st")), saved(&dir.path().join("whole.st")), "{args}");
        assert_eq!(names(dir.path()), ["half.st", "second.st", "text.txt", "whole.st"], "{args}");
    }
}

#[test]
fn a_killed_run_goes_on_with_the_same_bits() {
    let dir = with_text();
    let text = dir.path().join("text.txt");
    kill_and_go_on(&format!("transformer --text {} --threads 1", text.display()), 3);
}

#[test]
fn micro_batches_and_recomputation_change_no_loss() {
    let dir = with_text();
    let run = |more: &str| wgrad_in(dir.path(), &format!("{SHORT} --steps 3 --json {more}")).json();
    let whole = run("");
    for more in ["--accumulate 4", "--accumulate 8", "--checkpoint"] {
        let other = run(more);
        for field in ["loss_first", "loss_last", "grad_norm_max", "metric"] {
            let [have, want] = [&other, &whole].map(|report| report[field].as_f64().expect("a number"));
            assert!(
                relative_eq!(have, want, epsilon = 0.0, max_relative = 1e-4),
                "{more}: {field} is {have}, and {want} in one"
            );
        }
    }
    let half = run("--precision f16");
    let [have, want] = [&half, &whole].map(|report| report["loss_last"].as_f64().expect("a number"));
    assert!(have != want && abs_diff_eq!(have, want, epsilon = 1e-2 * want), "{have} in half precision, else {want}");
}

#[test]
fn without_a_loss_scale_gradients_underflow() {
    let dir = with_text();
    let run = |more: &str| wgrad_in(dir.path(), &format!("{SHORT} --steps 3 --json --case underflow {more}")).json();
    let (broken, healed) = (run(""), run("--fix loss-scale"));
    assert_eq!((&broken["verdict"], &broken["flow_ratio"]), (&"vanishing".into(), &0.0.into()), "{broken:?}");
    assert!(healed["flow_ratio"].as_f64().expect("a number") > 0.1, "{healed:?}");
    // The loss is reported as it is, whatever its gradient is divided by.
    let plain = wgrad_in(dir.path(), &format!("{SHORT} --steps 3 --json")).json();
    for report in [broken, healed] {
        let [have, want] = [&report, &plain].map(|report| report["loss_first"].as_f64().expect("a number"));
        assert!(abs_diff_eq!(have, want, epsilon = 1e-2 * want), "{have} and {want}");
    }
}

#[test]
fn a_text_that_cannot_be_learnt_is_refused() {
    let dir = with_text();
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).expect("can be written");
    write("empty.txt", b"");
    write("short.txt", b"To be, or not to be");
    write("latin.txt", b"caf\xe9 au lait");
    write("few.txt", "to be or not ".repeat(30).as_bytes());
    write("one.txt", b"a");
    write("same.txt", &[b'a'; 5000]);
    write("mark.txt", b"\xef\xbb\xbf");
    write("late.txt", b"\xef\xbb\xbfcaf\xe9 au lait");
    fs::create_dir(dir.path().join("folder")).expect("can be made");
    for (name, holds) in [
        ("missing.txt", &["missing.txt", "cannot read"][..]),
        ("folder", &["folder", "cannot read"]),
        ("empty.txt", &["empty.txt", "it is empty"]),
        ("latin.txt", &["latin.txt", "byte 3 is not UTF-8"]),
        ("late.txt", &["late.txt", "byte 6 is not UTF-8"]),
        ("mark.txt", &["mark.txt", "it is empty"]),
        ("one.txt", &["every character of the text is 'a'"]),
        ("same.txt", &["every character of the text is 'a'"]),
        ("short.txt", &["19 characters", "at least 193"]),
        ("few.txt", &["samples", "at least 8"]),
    ] {
        wgrad_in(dir.path(), &format!("transformer --text {name} --steps 3 --quiet")).fails(1, holds);
    }
}

#[test]
fn a_checkpoint_of_another_text_is_refused() {
    let dir = with_text();
    wgrad_in(dir.path(), &format!("{SHORT} --steps 3 --json --save good.st")).json();
    write_text(&dir.path().join("more.txt"), "abcdefghij \n");
    write_text(&dir.path().join("other.txt"), "hgfedcba\n ");
    for (args, holds) in [
        ("--text more.txt", &["another vocabulary (12 characters)", "saved with (10)", "\"ij\" only in the text"][..]),
        ("--text other.txt", &["good.st", "text ", "(2500 characters)"]),
        ("--text text.txt --seed 3", &["good.st", "seed 0", "3"]),
        ("--text text.txt --size medium", &["good.st", "f32[10, 64]", "f32[10, 128]"]),
        ("--text text.txt --case post-norm", &["good.st", "block/4/norm1/weight"]),
    ] {
        wgrad_in(dir.path(), &format!("transformer {args} --steps 9 --quiet --resume good.st")).fails(1, holds);
    }
    for name in ["missing.st", "text.txt"] {
        wgrad_in(dir.path(), &format!("{SHORT} --steps 9 --quiet --resume {name}")).fails(1, &[name]);
    }
}

#[test]
fn a_run_on_the_gpu_agrees_with_the_cpu() {
    if gpus().is_empty() {
        return;
    }
    let dir = with_text();
    let run = |device: &str| {
        wgrad_in(dir.path(), &format!("transformer --text text.txt --steps 3 --json --quiet --device {device}")).json()
    };
    let [gpu, cpu] = ["gpu", "cpu"].map(run);
    for field in ["loss_first", "loss_last", "metric", "grad_norm_max"] {
        let [have, want] = [&gpu, &cpu].map(|report| report[field].as_f64().expect("a number"));
        assert!(relative_eq!(have, want, epsilon = 0.0, max_relative = 1e-3), "{field} is {have}, on the CPU {want}");
    }
}
