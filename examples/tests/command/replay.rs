//! `wgrad replay`: a step that a diagnosis has kept, run again; and what is no capsule.

use crate::wgrad_in;
use std::fs;
use tempfile::TempDir;

/// A directory with the capsule of a run whose batch holds a NaN at step 30.
fn kept() -> TempDir {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("run.toml"), "model = \"mlp\"\nsteps = 60\n[inputs]\nnan_at = 30\n")
        .expect("can be written");
    let text = wgrad_in(dir.path(), "diagnose run.toml --threads 1 --capsule kept").fine().stdout;
    assert!(text.contains("nan-input, since step 30") && text.contains("wgrad replay kept"), "{text}");
    dir
}

#[test]
fn a_step_is_run_again_and_the_model_is_told_from_the_device() {
    let dir = kept();
    for against in ["", "--against cpu", "--against reference --threads 1"] {
        let text = wgrad_in(dir.path(), &format!("replay kept {against}")).fine().stdout;
        for part in ["kept: update 30, micro-batch 0", "input \"x\"", "and not the device"] {
            assert!(text.contains(part), "{part:?} is missing:\n{text}");
        }
    }
    let json = wgrad_in(dir.path(), "replay kept --json").json();
    assert_eq!((&json["agrees"], &json["produced"]), (&true.into(), &false.into()), "{json:?}");
    assert!(json["parting"].is_null() && json["against"] == "reference", "{json:?}");
    assert_eq!((&json["origin"]["what"], &json["origin"]["node"]), (&"input \"x\"".into(), &0.into()), "{json:?}");
    let quiet = wgrad_in(dir.path(), "replay kept --quiet").fine().stdout;
    assert!(quiet.starts_with("The first value that is not finite"), "{quiet}");
}

#[test]
fn a_run_that_does_not_break_keeps_nothing() {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("run.toml"), "model = \"mlp\"\nsteps = 20\n").expect("can be written");
    let text = wgrad_in(dir.path(), "diagnose run.toml --capsule kept").fine().stdout;
    assert!(text.contains("kept is not written") && !dir.path().join("kept").exists(), "{text}");
}

#[test]
fn what_is_no_capsule_is_told() {
    let dir = kept();
    let fails = |args: &str, status, holds: &[&str]| wgrad_in(dir.path(), args).fails(status, holds);
    fails("replay none", 1, &["cannot read none"]);
    fails("replay run.toml", 1, &["run.toml is not a safetensors file"]);
    wgrad_in(dir.path(), "rnn --steps 2 --save a --quiet").fine();
    fails("replay a", 1, &["a is no capsule", "another safetensors file"]);
    let bytes = fs::read(dir.path().join("kept")).expect("it is there");
    let at = bytes.windows(19).position(|part| part == b"\"wgrad.capsule\":\"1\"").expect("its format");
    let mut other = bytes.clone();
    other[at + 17] = b'7';
    fs::write(dir.path().join("other"), other).expect("can be written");
    fails("replay other --json", 1, &["its format is \"7\"", "this version reads \"1\""]);
    fs::write(dir.path().join("short"), &bytes[..bytes.len() / 2]).expect("can be written");
    fails("replay short", 1, &["cut short"]);
}
