//! Event files, as TensorBoard's own reader finds them: value by value, whole or cut short.

use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use wgrad::{Array, Session, Store};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Activation, Builder, Histogram, Measurement, Mlp, MlpConfig, MonitorConfig, Trainer, TrainerConfig, Update,
    optim::{Sgd, SgdConfig},
    track::{End, Setting, TensorBoard, Tracker},
};

/// The interpreter that has TensorBoard; `None` where these tests are to do without.
fn python() -> Option<PathBuf> {
    if std::env::var_os("WGRAD_NO_TENSORBOARD").is_some_and(|value| value == "1") {
        println!("WGRAD_NO_TENSORBOARD=1: event files are not read");
        return None;
    }
    let beside = || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tensorboard").join("bin/python");
    let python = std::env::var_os("WGRAD_TENSORBOARD").map_or_else(beside, PathBuf::from);
    assert!(
        python.exists(),
        "there is no TensorBoard to read event files with: `cargo xtask test` installs it, or leave these tests out with \
         WGRAD_NO_TENSORBOARD=1"
    );
    Some(python)
}

/// The content of a folder, as the reader finds it.
fn read(python: &Path, folder: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/read_events.py");
    let output = Command::new(python).arg(script).arg(folder).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

/// A scalar as the reader gives it: an f32 in the file, and a number of Python's.
fn scalar(step: usize, value: f64) -> Value {
    json!([step, f64::from(value as f32)])
}

/// Real updates and measurements, with a histogram of each gradient.
fn run() -> Vec<(Update, Option<Measurement>)> {
    let mut store = Store::new();
    let config =
        MlpConfig { inputs: 3, width: 5, depth: 2, outputs: 2, activation: Activation::Tanh, ..MlpConfig::default() };
    let model = Mlp::new(Builder::new(&mut store, 0), &config);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let monitor = MonitorConfig { every: 2, histograms: true, ..MonitorConfig::default() };
    let config = TrainerConfig { clip_norm: Some(0.1), monitor: Some(monitor), ..TrainerConfig::default() };
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
    });
    let mut session = Session::new(Box::new(CpuBackend::new(1).expect("threads")), store).expect("there is room");
    let x = Array::new([4, 3], (0..12).map(|i| (i as f32).sin()).collect::<Vec<_>>());
    let y = Array::new([4], vec![0u32, 1, 1, 0]);
    let mut all = vec![];
    for _ in 0..6 {
        trainer.step(&mut session, &[("x", &x), ("y", &y)]).expect("it runs");
        session.wait().expect("it ran");
        let taps = session.taps().expect("it ran");
        all.extend(trainer.updates(&taps).into_iter().map(|update| (update, trainer.measurements(&taps).pop())));
    }
    all
}

#[test]
fn tensorboard_reads_every_value() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let board = TensorBoard::create(folder.path().join("run")).expect("it can be made");
    let mut tracker = Tracker::new(vec![Box::new(board)], 1000);
    let settings = [
        ("optimizer.lr".to_string(), Setting::Number(0.1)),
        ("model".into(), Setting::Text("mlp".into())),
        ("residual".into(), Setting::Flag(true)),
    ];
    tracker.settings(settings.to_vec(), "accuracy");
    let all = run();
    for (step, (update, measured)) in all.iter().enumerate() {
        tracker.update(step, update);
        measured.iter().for_each(|measured| _ = tracker.measurement(step, measured));
    }
    tracker.value(6, "accuracy", 0.75);
    tracker.value(6, "odd", f64::NAN);
    tracker.alert(5, "spike", "the loss is *high*");
    tracker.text(6, "finding", "healthy: `é`");
    tracker.end(6, End::Finished);
    let tracked = tracker.finish();
    assert!(tracked.dropped == 0 && tracked.errors.is_empty(), "{tracked:?}");

    let found = read(&python, &folder.path().join("run"));
    assert_eq!(found["version"], 2.0);
    let updates = |of: fn(&Update) -> f64| -> Vec<Value> {
        all.iter().enumerate().map(|(step, (update, _))| scalar(step, of(update))).collect()
    };
    assert_eq!(found["scalars"]["update/loss"], json!(updates(|update| update.loss)));
    assert_eq!(found["scalars"]["update/grad_norm"], json!(updates(|update| update.grad_norm)));
    assert_eq!(found["scalars"]["update/taken"], json!(updates(|_| 1.0)));
    assert_eq!(found["scalars"]["update/clipped"], json!(updates(|update| f64::from(update.clipped == Some(true)))));
    assert_eq!(found["scalars"]["value/accuracy"], json!([scalar(6, 0.75)]));
    assert_eq!(found["scalars"]["value/odd"], json!([[6, "nan"]]));
    let measured: Vec<(usize, &Measurement)> =
        all.iter().enumerate().filter_map(|(step, (_, measured))| Some((step, measured.as_ref()?))).collect();
    assert_eq!(measured.len(), 3);
    for at in 0..measured[0].1.params.len() {
        let path = &measured[0].1.params[at].path;
        let norms: Vec<Value> = measured.iter().map(|(step, of)| scalar(*step, of.params[at].grad.norm)).collect();
        assert_eq!(found["scalars"][format!("param/{path}/norm")], json!(norms), "{path}");
        let histograms = found["histograms"][format!("gradient/{path}")].as_array().expect("there are some");
        assert_eq!(histograms.len(), 3);
        for ((step, of), histogram) in measured.iter().zip(histograms) {
            is_histogram(histogram, *step, &of.params[at]);
        }
    }
    for (at, site) in measured[0].1.sites.iter().enumerate() {
        let rms: Vec<Value> = measured
            .iter()
            .map(|(step, of)| scalar(*step, of.sites[at].values.expect("measured in full").rms))
            .collect();
        assert_eq!(found["scalars"][format!("site/{}/rms", site.path)], json!(rms), "{}", site.path);
    }
    assert_eq!(found["texts"]["alert/spike"], json!([[5, ["the loss is *high*"]]]));
    assert_eq!(found["texts"]["finding"], json!([[6, ["healthy: `é`"]]]));
    assert_eq!(found["texts"]["flow/rows"], json!([[0, ["- `layer[0]/z`\n- `layer[1]/z`\n"]]]));
    // After one measurement, after two, and at the end; two layers of three measurements.
    let images = found["images"]["flow"].as_array().expect("there are some");
    let sizes: Vec<Value> = images.iter().map(|image| json!([image[0], image[1], image[2]])).collect();
    assert_eq!(sizes, [json!([0, 8, 16]), json!([2, 16, 16]), json!([6, 24, 16])]);
    assert!(images.iter().all(|image| image[3].as_str().is_some_and(|png| png.starts_with("89504e470d0a1a0a"))));
    let start = &found["settings"]["_hparams_/session_start_info"]["session_start_info"];
    assert_eq!(start["hparams"], json!({ "optimizer.lr": 0.1, "model": "mlp", "residual": true }));
    let experiment = &found["settings"]["_hparams_/experiment"]["experiment"];
    assert_eq!(experiment["metric_infos"], json!([{ "name": { "tag": "value/accuracy" } }]));
    assert_eq!(
        experiment["hparam_infos"],
        json!([
            { "name": "optimizer.lr", "type": "DATA_TYPE_FLOAT64" },
            { "name": "model", "type": "DATA_TYPE_STRING" },
            { "name": "residual", "type": "DATA_TYPE_BOOL" }
        ])
    );
    let end = &found["settings"]["_hparams_/session_end_info"]["session_end_info"];
    assert_eq!(end["status"], "STATUS_SUCCESS");
}

/// A histogram as the reader gives it: `[step, min, max, num, sum, sum_squares, limits, counts]`.
fn is_histogram(found: &Value, step: usize, of: &wgrad_nn::ParamMeasure) {
    let histogram = of.histogram.as_ref().expect("it is counted");
    let number = |at: usize| found[at].as_f64().expect("a number");
    let numbers = |at: usize| -> Vec<f64> {
        found[at].as_array().expect("a list").iter().map(|value| value.as_f64().expect("a number")).collect()
    };
    assert_eq!((found[0].clone(), number(3)), (json!(step), of.grad.elements as f64));
    assert_eq!((number(1), number(2)), (-of.grad.max, of.grad.max));
    assert!((number(4) - of.grad.mean * of.grad.elements as f64).abs() < 1e-12);
    assert!((number(5) - of.grad.norm.powi(2)).abs() < 1e-12);
    let (limits, counts) = (numbers(6), numbers(7));
    assert!(limits.is_sorted_by(|a, b| a < b) && limits.len() == counts.len(), "{limits:?}");
    // Between the edges, as it was counted.
    let edges = Histogram::EDGES;
    let at = |limit: f64| limits.iter().position(|have| *have == limit).expect("an edge");
    assert_eq!(counts[at(f64::MIN_POSITIVE)], histogram.zeros as f64);
    for bin in 1..edges.len() {
        assert_eq!(counts[at(edges[bin])], histogram.positive[bin] as f64, "up to {}", edges[bin]);
        assert_eq!(counts[at(-edges[bin - 1])], histogram.negative[bin] as f64, "up to {}", -edges[bin - 1]);
    }
    assert_eq!(counts.iter().sum::<f64>(), of.grad.elements as f64);
}

#[test]
fn what_a_killed_run_leaves_can_be_read() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let board = TensorBoard::create(folder.path()).expect("it can be made");
    let path = board.path().to_owned();
    let mut tracker = Tracker::new(vec![Box::new(board)], 1000);
    (0..100).for_each(|step| tracker.value(step, "x", step as f64));
    tracker.finish();
    let bytes = fs::read(&path).expect("it is there");
    // In the middle of the last record.
    fs::write(&path, &bytes[..bytes.len() - 7]).expect("it can be written");
    let found = read(&python, folder.path());
    let all: Vec<Value> = (0..99).map(|step| scalar(step, step as f64)).collect();
    assert_eq!(found["scalars"]["value/x"], json!(all));
}

#[test]
fn two_runs_in_one_folder_have_files_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let boards: Vec<TensorBoard> =
        (0..3).map(|_| TensorBoard::create(folder.path()).expect("it can be made")).collect();
    let mut paths: Vec<&Path> = boards.iter().map(TensorBoard::path).collect();
    paths.dedup();
    assert_eq!(paths.len(), 3);
}
