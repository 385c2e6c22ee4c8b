//! `wgrad diagnose`: what is told of broken and of healthy runs, to people and as JSON, and what is refused.

use crate::{Json, command, interrupts::interrupted, wgrad_in};
use std::{fs, path::Path};
use tempfile::TempDir;

/// A directory with a run file of a small model.
fn file(rest: &str) -> TempDir {
    let dir = TempDir::new().expect("a directory");
    let text = format!("model = \"mlp\"\nsteps = 200\n{rest}\n");
    fs::write(dir.path().join("run.toml"), text).expect("can be written");
    dir
}

fn diagnosis(dir: &Path, more: &str) -> Json {
    let mut json = wgrad_in(dir, &format!("diagnose run.toml --json --threads 1 {more}")).json();
    assert!(json.remove("seconds").is_some_and(|seconds| seconds.is_number()));
    json
}

#[test]
fn a_broken_run_is_told_with_the_proof_of_its_cure() {
    let dir = file("[mlp]\ndepth = 3\n[optimizer]\nkind = \"sgd\"\nlr = 30");
    let json = diagnosis(dir.path(), "--prove");
    assert_eq!((&json["fault"], &json["remedy"]), (&"rate-too-high".into(), &"lower-rate".into()), "{json:?}");
    assert_eq!((&json["proven"], &json["reached"]), (&true.into(), &false.into()), "{json:?}");
    assert_eq!(json["verdict"], "exploding", "{json:?}");
    assert!(json["since"].as_u64().is_some_and(|since| (1..5).contains(&since)), "{json:?}");
    for evidence in json["evidence"].as_array().expect("a list") {
        assert!(evidence["what"].is_string() && evidence["low"].is_number() && evidence["high"].is_number());
    }
    assert_eq!(diagnosis(dir.path(), "--prove"), json, "the same bits");
    let unproven = diagnosis(dir.path(), "");
    assert_eq!((&unproven["proven"], &unproven["fault"]), (&false.into(), &json["fault"]));
}

#[test]
fn a_person_reads_the_finding_its_numbers_and_the_next_command() {
    let dir = file("[mlp]\ndepth = 3\ndetach_after = 1\n[optimizer]\nkind = \"sgd\"\nlr = 0.1");
    let text = wgrad_in(dir.path(), "diagnose run.toml --threads 1").fine().stdout;
    for part in ["cut, since step 0", "layer[1]", "model.rs:", "remedy: attach", "wgrad diagnose run.toml --prove"] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    let text = wgrad_in(dir.path(), "diagnose run.toml --prove --threads 1").fine().stdout;
    for part in ["proven: 200 steps", "with attach", "with nothing changed", "should not help"] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    assert!(text.lines().count() <= 24, "one screen:\n{text}");
    let quiet = wgrad_in(dir.path(), "diagnose run.toml --quiet --threads 1").fine().stdout;
    assert!(quiet.starts_with("cut, since step 0"), "{quiet}");
}

#[test]
fn a_healthy_run_is_told_so() {
    let dir = file("[mlp]\ndepth = 3");
    let json = diagnosis(dir.path(), "--prove");
    assert_eq!((&json["fault"], &json["verdict"]), (&"healthy".into(), &"healthy".into()), "{json:?}");
    assert!(json["remedy"].is_null() && json["remedies"].as_array().is_some_and(Vec::is_empty), "{json:?}");
    let text = wgrad_in(dir.path(), "diagnose run.toml --threads 1").fine().stdout;
    assert!(text.contains("healthy: nothing is found in 200 steps"), "{text}");
}

#[test]
fn a_few_steps_are_no_reason_for_an_alarm() {
    let dir = file("[mlp]\ndepth = 2");
    assert_eq!(diagnosis(dir.path(), "--steps 5")["fault"], "healthy");
}

#[test]
fn every_model_can_be_diagnosed() {
    for (model, rest) in [
        ("rnn", "batch = 4\n[rnn]\nhidden = 8\nlength = 10\n[trainer]\nclip_norm = 1.0"),
        ("transformer", "batch = 2\n[transformer]\nwidth = 8\nlayers = 1\nheads = 2\ncontext = 8\nhidden = 16"),
        ("resnet", "batch = 8\n[resnet]\ndepth = 8\nwidth = 4\n[schedule]\nwarmup = 1"),
        ("two-tower", "batch = 4"),
    ] {
        let dir = TempDir::new().expect("a directory");
        fs::write(dir.path().join("run.toml"), format!("model = {model:?}\nsteps = 3\n{rest}\n"))
            .expect("can be written");
        let json = diagnosis(dir.path(), "--prove");
        assert_eq!((&json["fault"], &json["steps"]), (&"healthy".into(), &3.into()), "{model}: {json:?}");
    }
}

#[test]
fn what_cannot_be_diagnosed_is_told() {
    let dir = file("[mlp]\nwidht = 3");
    let fails = |args: &str, status, holds: &[&str]| wgrad_in(dir.path(), args).fails(status, holds);
    fails("diagnose run.toml", 2, &["run.toml, line 4", "widht"]);
    fails("diagnose none.toml --json", 1, &["cannot read none.toml"]);
    fails("diagnose run.toml --steps 0", 2, &["run.toml"]);
    for args in ["diagnose", "diagnose run.toml --horizon 3", "diagnose run.toml --prove --horizon 0"] {
        let output = command(dir.path(), args).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{args}");
    }
}

#[test]
fn an_interrupted_diagnosis_tells_what_is_known() {
    let dir = file("[mlp]\ndepth = 3");
    let text = fs::read_to_string(dir.path().join("run.toml")).expect("readable");
    fs::write(dir.path().join("run.toml"), text.replace("steps = 200", "steps = 100000000")).expect("can be written");
    let outcome = interrupted(dir.path(), "diagnose run.toml --prove --threads 1", || true).fine();
    assert!(outcome.stdout.contains("Interrupted after "), "{outcome:#?}");
}

/// The examples' cases: what is found, and the remedy that stands for what their `--fix` does.
const CASES: [(&str, &str, &str); 13] = [
    ("rnn --case exploding", "exploding-time", "clip-norm"),
    ("rnn --case vanishing", "vanishing-time", "omega"),
    ("transformer --case exploding", "rate-too-high", "clip-norm"),
    ("transformer --case post-norm", "post-norm", "pre-norm"),
    ("transformer --case scores", "attention-logits", "qk-norm"),
    ("transformer --case underflow", "underflow", "loss-scale"),
    ("resnet --case degradation", "vanishing-depth", "residual"),
    ("resnet --case exploding", "rate-too-high", "clip-norm"),
    ("resnet --case vanishing", "vanishing-init", "init"),
    ("resnet --case sigmoid", "vanishing-activation", "activation"),
    ("resnet --case dead-relu", "rate-too-high", "leaky-activation"),
    ("two-tower --case boundary", "scale-mismatch", "norm"),
    ("two-tower --case imbalance", "imbalance", "scale-grad"),
];

/// The cases whose proof takes a few seconds. That of the others is in the notes of a release.
const PROVEN: [&str; 3] = ["rnn --case exploding", "two-tower --case boundary", "two-tower --case imbalance"];

#[test]
fn the_cases_of_the_examples_are_told_with_their_cure_among_the_remedies() {
    let dir = TempDir::new().expect("a directory");
    for (args, fault, cure) in CASES {
        let prove = if PROVEN.contains(&args) { "--prove" } else { "" };
        let json = wgrad_in(dir.path(), &format!("{args} --diagnose {prove} --json")).json();
        assert_eq!(json["fault"], fault, "{args}: {json:?}");
        let remedies = json["remedies"].as_array().expect("a list");
        assert!(remedies.iter().any(|remedy| remedy == cure), "{args}: {json:?}");
        assert_eq!(json["proven"], !prove.is_empty(), "{args}: {json:?}");
    }
}

#[test]
fn healthy_examples_are_told_so() {
    let dir = TempDir::new().expect("a directory");
    for example in ["rnn", "transformer", "resnet", "two-tower"] {
        let json = wgrad_in(dir.path(), &format!("{example} --diagnose --prove --json")).json();
        assert_eq!((&json["fault"], &json["reached"]), (&"healthy".into(), &true.into()), "{example}: {json:?}");
    }
}

#[test]
fn a_diagnosis_saves_nothing_and_says_so() {
    let dir = TempDir::new().expect("a directory");
    for args in ["rnn --diagnose --save a", "rnn --diagnose --resume a", "rnn --prove"] {
        let output = command(dir.path(), args).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{args}");
    }
}

#[test]
fn a_run_that_breaks_names_the_first_value_that_is_not_finite() {
    let dir = file("[inputs]\nnan_at = 60");
    let text = wgrad_in(dir.path(), "diagnose run.toml --threads 1").fine().stdout;
    assert!(text.contains("nan-input, since step 60"), "{text}");
    let named = "The first value that is not finite, at step 60 in the forward pass: %0 input \"x\"";
    assert!(text.contains(named) && text.contains("the step receives this value as data"), "{text}");
}

#[test]
fn a_run_that_breaks_late_is_warned_of_before() {
    let dir = file("[optimizer]\nkind = \"sgd\"\nlr = 0.01\nmomentum = 0.9995");
    let text = wgrad_in(dir.path(), "diagnose run.toml --threads 1 --steps 600").fine().stdout;
    assert!(text.contains("momentum-too-high, since step "), "{text}");
    assert!(text.contains("The first sign was at step ") && text.contains("the loss rises"), "{text}");
}

/// The lines of a file of metrics.
fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).expect("it is there");
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn what_runs_show_can_be_kept() {
    let dir = file("[mlp]\ndepth = 2");
    let path = dir.path().join("metrics.jsonl");
    for args in ["train run.toml --metrics metrics.jsonl", "diagnose run.toml --metrics metrics.jsonl"] {
        let json = wgrad_in(dir.path(), &format!("{args} --json")).json();
        let lines = lines(&path);
        let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
        assert_eq!(of("update"), json["steps"].as_u64().expect("a number") as usize, "{args}");
        assert!(of("measurement") > 10 && of("value") > 0, "{args}");
        let last = lines.iter().rev().find(|line| line["kind"] == "value").expect("seen above");
        assert_eq!((&last["name"], &last["value"]), (&"accuracy".into(), &json["metric"]), "{args}");
        // A file that is there is not lost.
        wgrad_in(dir.path(), args).fails(1, &["metrics.jsonl: it exists already"]);
        fs::remove_file(&path).expect("it is there");
    }
    wgrad_in(dir.path(), "train run.toml --metrics none/metrics.jsonl").fails(1, &["none/metrics.jsonl", "directory"]);
    // A run that goes on goes on with its file.
    let train = "train run.toml --threads 1 --metrics metrics.jsonl --quiet";
    wgrad_in(dir.path(), &format!("{train} --steps 60 --save a")).fine();
    wgrad_in(dir.path(), &format!("{train} --steps 100 --resume a")).fine();
    let steps = lines(&path).into_iter().filter(|line| line["kind"] == "update");
    let steps: Vec<u64> = steps.map(|line| line["step"].as_u64().expect("a number")).collect();
    assert_eq!(steps, (0..100).collect::<Vec<u64>>());
}

/// The numbers of a page.
fn shown(folder: &Path) -> serde_json::Value {
    let html = fs::read_to_string(folder.join("index.html")).expect("it is there");
    let (_, rest) = html.split_once("type=\"application/json\">").expect("it has numbers");
    serde_json::from_str(rest.split_once("</script>").expect("they end").0).expect("they are JSON")
}

#[cfg(unix)]
#[test]
fn a_report_of_an_interrupted_run_says_so() {
    let dir = file("[mlp]\ndepth = 3");
    let text = fs::read_to_string(dir.path().join("run.toml")).expect("readable");
    fs::write(dir.path().join("run.toml"), text.replace("steps = 200", "steps = 100000000")).expect("can be written");
    let page = dir.path().join("report/index.html");
    interrupted(dir.path(), "train run.toml --report report --threads 1", || page.exists()).fine();
    let data = shown(&dir.path().join("report"));
    assert_eq!(data["state"], "interrupted");
    assert!(data["count"].as_u64() > Some(0) && data["tape"]["moment"] == "after the last step", "{}", data["count"]);
}

#[test]
fn a_report_has_the_numbers_of_the_lines_beside_it() {
    let dir = file("[mlp]\ndepth = 2");
    let folder = dir.path().join("report");
    for (args, found) in [("train run.toml", None), ("diagnose run.toml", Some("healthy: nothing is found"))] {
        let result = wgrad_in(dir.path(), &format!("{args} --report report --threads 1")).fine();
        assert!(result.stdout.ends_with("The report: report/index.html\n"), "{result:#?}");
        let (data, lines) = (shown(&folder), lines(&folder.join("metrics.jsonl")));
        let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).cloned().collect::<Vec<_>>();
        let number = |value: &serde_json::Value| value.as_f64().expect("a number") as f32;
        let numbers =
            |value: &serde_json::Value| -> Vec<f32> { value.as_array().expect("a list").iter().map(number).collect() };
        assert_eq!(data["state"], "finished", "{args}");
        let losses: Vec<f32> = of("update").iter().map(|line| number(&line["loss"])).collect();
        assert_eq!(numbers(&data["updates"]["loss"]["low"]), losses, "{args}");
        let (measured, looks) = (of("measurement"), data["measured"]["all"].as_array().expect("a list").clone());
        assert!(measured.len() == looks.len() && looks.len() > 10, "{args}");
        for (line, look) in measured.iter().zip(&looks) {
            assert_eq!(line["step"], look["step"]);
            let rows = data["measured"]["names"]["flow"].as_array().expect("a list").iter();
            let flow: Vec<f32> =
                rows.map(|row| number(&line["sites"][row.as_str().expect("a name")]["flow_mean_abs"])).collect();
            assert_eq!(numbers(&look["flow"]), flow, "{args}");
            let params = data["measured"]["names"]["params"].as_array().expect("a list").iter();
            for (path, param) in params.zip(look["params"].as_array().expect("a list")) {
                let wanted = &line["params"][path.as_str().expect("a name")];
                assert_eq!(
                    (number(&param[0]), number(&param[5])),
                    (number(&wanted["norm"]), number(&wanted["update_norm"]))
                );
            }
        }
        let tape = data["texts"]["tape"].as_str().expect("a text");
        assert!(tape.contains("matmul") && tape.contains("layer[0]"), "{tape}");
        assert_eq!(data["settings"]["case"], "run", "{args}");
        assert!(found.is_none_or(|found| data["finding"].as_str().is_some_and(|text| text.starts_with(found))));
        let events = fs::read_dir(&folder).expect("it is there").filter_map(Result::ok);
        assert_eq!(events.filter(|file| file.file_name().to_string_lossy().contains("tfevents")).count(), 1);
        // Another run into the same folder is refused, and loses nothing.
        let before = fs::read(folder.join("metrics.jsonl")).expect("it is there");
        wgrad_in(dir.path(), &format!("{args} --report report")).fails(1, &["report/index.html: it exists already"]);
        assert_eq!(fs::read(folder.join("metrics.jsonl")).expect("it is there"), before);
        fs::remove_dir_all(&folder).expect("it is there");
    }
    let broken = file("[inputs]\nnan_at = 60");
    wgrad_in(broken.path(), "train run.toml --report report --threads 1 --quiet").fine();
    assert_eq!(shown(&broken.path().join("report"))["state"], "broken");
}
