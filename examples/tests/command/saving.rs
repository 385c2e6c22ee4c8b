//! What `--save` does to what is there, what it leaves, and who may save to a file.

use crate::{Outcome, command, names, numbers, resnet, saved, transformer, two_tower, wait_until, wgrad_in};
use safetensors::{Dtype, tensor::TensorView};
use std::{collections::HashMap, fs, path::Path, process::Command, time::Duration};
use tempfile::TempDir;

/// A short run of each subcommand that trains.
const EACH: [&str; 4] = ["rnn --length 20 --threads 1", transformer::BUILT_IN, resnet::SHORT, two_tower::SHORT];
/// A run that does not end by itself.
const ENDLESS: &str = "rnn --case vanishing --length 30 --threads 1 --quiet --steps 100000000";

#[test]
fn the_same_run_saves_the_same_bytes() {
    let dir = TempDir::new().expect("a directory");
    let bytes = |name: &str| fs::read(dir.path().join(name)).expect("it is saved");
    for args in EACH {
        for name in ["a.st", "b.st"] {
            wgrad_in(dir.path(), &format!("{args} --steps 3 --json --save {name}")).json();
        }
        assert!(bytes("a.st") == bytes("b.st"), "{args}");
    }
}

#[cfg(unix)]
#[test]
fn what_is_there_keeps_its_kind_and_its_mode() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = TempDir::new().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("folder")).expect("can be made");
    fs::write(at("folder/real"), "old").expect("can be written");
    let set_mode = |name: &str, bits| {
        fs::set_permissions(at(name), fs::Permissions::from_mode(bits)).expect("it is ours");
    };
    set_mode("folder/real", 0o600);
    symlink("folder/real", at("link")).expect("can be made");
    symlink("folder/new", at("dangling")).expect("can be made");
    symlink("/dev/null", at("device")).expect("can be made");
    symlink("circle", at("circle")).expect("can be made");
    let run = |name: &str| wgrad_in(dir.path(), &format!("{} --steps 3 --quiet --save {name}", EACH[0]));
    for (link, leads_to) in [("link", "folder/real"), ("dangling", "folder/new")] {
        run(link).fine();
        saved(&at(leads_to));
        assert!(fs::symlink_metadata(at(link)).expect("there").is_symlink());
    }
    assert_eq!(fs::metadata(at("folder/real")).expect("there").permissions().mode() & 0o777, 0o600);
    set_mode("folder/real", 0o400);
    let before = fs::read(at("folder/real")).expect("can be read");
    for (name, why) in [("link", "read-only"), ("device", "it is a device"), ("circle", "in a circle")] {
        run(name).fails(1, &[&format!("cannot write {name}"), why]);
    }
    assert!(fs::read(at("folder/real")).expect("can be read") == before);
    assert_eq!(names(dir.path()), ["circle", "dangling", "device", "folder", "link"]);
    assert_eq!(names(&at("folder")), ["new", "real"]);
}

/// Each subcommand, also through a link; and no longer than the first run lives.
#[test]
fn two_runs_do_not_save_to_one_file() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("run.st");
    let mut first = command(dir.path(), &format!("{ENDLESS} --save run.st")).spawn().expect("the command starts");
    wait_until("the first run has saved", || path.exists());
    #[cfg(unix)]
    let name = {
        std::os::unix::fs::symlink("run.st", dir.path().join("link")).expect("can be made");
        "link"
    };
    #[cfg(not(unix))]
    let name = "run.st";
    for args in EACH {
        let second = wgrad_in(dir.path(), &format!("{args} --steps 1000000 --save {name}"));
        second.fails(1, &[&format!("cannot write {name}"), "another run that has not ended saves to it"]);
    }
    assert!(first.try_wait().expect("it can be asked").is_none(), "the first run goes on");
    first.kill().expect("the run is there");
    first.wait().expect("it ends");
    wgrad_in(dir.path(), &format!("{} --steps 3 --quiet --save {name}", EACH[0])).fine();
    assert!(!names(dir.path()).iter().any(|name| name.starts_with('.')), "{:?}", names(dir.path()));
}

#[test]
fn runs_that_are_killed_leave_nothing_that_the_next_does_not_remove() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("run.st");
    for kill in 0..20u64 {
        let mut run = command(dir.path(), &format!("{ENDLESS} --save run.st")).spawn().expect("the command starts");
        // From before the first save to after some.
        std::thread::sleep(Duration::from_millis(kill * 7919 % 400));
        run.kill().expect("the run is there");
        run.wait().expect("it ends");
        if path.exists() {
            saved(&path);
        }
    }
    wgrad_in(dir.path(), &format!("{} --steps 3 --quiet --save run.st", EACH[0])).fine();
    assert_eq!(names(dir.path()), ["run.st"]);
}

/// Rewrites a checkpoint with other tensors and metadata.
type Tensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;
fn rewrite(path: &Path, change: impl FnOnce(&mut Tensors, &mut HashMap<String, String>)) {
    let bytes = fs::read(path).expect("can be read");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("whole");
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).expect("a header");
    let mut metadata = header.metadata().clone().expect("a checkpoint has metadata");
    let tensor =
        |(name, view): (&str, TensorView<'_>)| (name.into(), view.dtype(), view.shape().to_vec(), view.data().to_vec());
    let mut tensors: Tensors = file.iter().map(tensor).collect();
    change(&mut tensors, &mut metadata);
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("bytes fit the shape"))
    });
    fs::write(path, safetensors::serialize(views, Some(metadata)).expect("serializes")).expect("can be written");
}

fn tensor<'a>(tensors: &'a mut Tensors, name: &str) -> &'a mut (String, Dtype, Vec<usize>, Vec<u8>) {
    tensors.iter_mut().find(|(n, ..)| n == name).expect("there")
}

/// More than there was room for while losses were in the header, which a run of 4.7 million steps filled.
#[test]
fn a_run_of_six_million_steps_can_be_saved() {
    const STEPS: usize = 6_000_000;
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("run.st");
    wgrad_in(dir.path(), &format!("{} --steps 3 --json --save run.st", EACH[0])).json();
    rewrite(&path, |tensors, _| {
        for name in ["losses", "flow_ratios"] {
            let (.., shape, bytes) = tensor(tensors, &format!("extra:history/{name}"));
            (*shape, *bytes) = (vec![STEPS], 1.5f32.to_le_bytes().repeat(STEPS));
        }
        // Every 512th step of the last fifth.
        let rows = STEPS / 512 - (STEPS - STEPS / 5 - 1) / 512;
        for (name, width) in [("flow", 20), ("weights", 3)] {
            let (.., shape, bytes) = tensor(tensors, &format!("extra:history/{name}"));
            (*shape, *bytes) = (vec![rows, width], 0.5f32.to_le_bytes().repeat(rows * width));
        }
    });
    let more = STEPS + 3;
    let report =
        wgrad_in(dir.path(), &format!("{} --steps {more} --json --resume run.st --save run.st", EACH[0])).json();
    assert_eq!(report["steps"], more);
    let bytes = fs::read(&path).expect("can be read");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    assert!(header < 3000 && bytes.len() > 8 * STEPS, "{header} of {} bytes", bytes.len());
    assert_eq!(saved(&path).tensors["extra:history/losses"].0, [more]);
}

/// Bits of f32 as the former form had them.
fn numbers_of(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

#[test]
fn a_checkpoint_whose_history_is_in_its_header_goes_on() {
    let dir = TempDir::new().expect("a directory");
    let run = |more: &str| numbers(wgrad_in(dir.path(), &format!("{} --json {more}", EACH[0])).json());
    let whole = run("--steps 30");
    run("--steps 12 --save run.st");
    rewrite(&dir.path().join("run.st"), |tensors, metadata| {
        let mut bits = |name: &str| numbers_of(&tensor(tensors, &format!("extra:history/{name}")).3);
        let mut history: serde_json::Value = serde_json::from_str(&metadata["history"]).expect("a summary");
        history["losses"] = serde_json::json!(bits("losses"));
        history["ratios"] = serde_json::json!(bits("flow_ratios"));
        for (name, width) in [("flow", 20), ("weights", 3)] {
            let recent: Vec<Vec<u32>> = bits(name).chunks(width).map(<[u32]>::to_vec).collect();
            history[name] = serde_json::json!({ "recent": recent, "at_peak": bits(&format!("{name}_at_peak")) });
        }
        metadata.insert("history".into(), history.to_string());
        tensors.retain(|(name, ..)| !name.starts_with("extra:"));
    });
    assert_eq!(run("--steps 30 --resume run.st"), whole);
}

#[test]
fn a_damaged_history_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("run.st");
    let damaged = |change: &dyn Fn(&mut Tensors, &mut HashMap<String, String>), why: &str| {
        wgrad_in(dir.path(), &format!("{} --steps 12 --json --save run.st", EACH[0])).json();
        rewrite(&path, change);
        let refused = wgrad_in(dir.path(), &format!("{} --steps 30 --quiet --resume run.st", EACH[0]));
        refused.fails(1, &["the history in run.st is damaged: it has ", why]);
    };
    damaged(&|_, metadata| drop(metadata.remove("history")), "no summary");
    damaged(&|_, metadata| drop(metadata.insert("history".into(), "{".into())), "no summary");
    damaged(&|t, _| t.retain(|(name, ..)| !name.starts_with("extra:")), "none that reads");
    damaged(&|t, _| tensor(t, "extra:history/losses").3[..4].copy_from_slice(&f32::NAN.to_le_bytes()), "NaN at step 1");
    damaged(&|t, _| tensor(t, "extra:history/losses").1 = Dtype::I32, "as i32[12]");
    let shorter = |t: &mut Tensors| {
        let (.., shape, bytes) = tensor(t, "extra:history/flow_ratios");
        shape[0] -= 1;
        bytes.truncate(44);
    };
    damaged(&|t, _| shorter(t), "12 losses and 11 flow ratios");
    damaged(&|t, _| tensor(t, "extra:history/flow").2 = vec![6, 10], "the flow of 6 steps, where 3 of 12 are kept");
}

/// As a disk that is full, where nobody ignores the signal that the system sends.
#[cfg(unix)]
#[test]
fn a_limit_on_the_size_of_files_ends_in_a_sentence() {
    let dir = TempDir::new().expect("a directory");
    wgrad_in(dir.path(), &format!("{} --steps 3 --json --save run.st", EACH[0])).json();
    let before = saved(&dir.path().join("run.st"));
    let limited = |script: &str, more: &str| {
        let wgrad = command(dir.path(), &format!("{} --steps 5 --json {more}", EACH[0]));
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(wgrad.get_program()).args(wgrad.get_args()).current_dir(dir.path());
        Outcome::new(more, shell.output().expect("the shell starts"))
    };
    limited(r#"ulimit -f 1; exec "$0" "$@""#, "--save run.st").fails(1, &["cannot write run.st"]);
    assert_eq!((saved(&dir.path().join("run.st")), names(dir.path())), (before, vec!["run.st".to_string()]));
    limited(r#"ulimit -f 0; exec "$0" "$@" > out"#, "").fails(1, &["cannot write to standard output"]);
}
