//! The tracker: it never waits, tells what it has dropped and which sink has failed; and its lines can be read back.

use crate::open;
use std::{
    io,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, channel},
    },
};
use wgrad::{Array, Store};
use wgrad_nn::{
    Builder, LossWatch, Mlp, MlpConfig, MonitorConfig, Trainer, TrainerConfig, Update,
    optim::{Sgd, SgdConfig},
    track::{End, Event, Jsonl, Page, Record, Run, Setting, Sink, Tracker},
};

/// Keeps the steps that it is given, each when it is let.
struct Gated {
    gate: Receiver<()>,
    seen: Arc<Mutex<Vec<usize>>>,
}

impl Sink for Gated {
    fn name(&self) -> String {
        "gated".into()
    }
    fn write(&mut self, record: &Record) -> io::Result<()> {
        // Once nobody holds the other end it stays open.
        let _ = self.gate.recv();
        self.seen.lock().expect("not poisoned").push(record.step);
        Ok(())
    }
}

#[test]
fn a_sink_that_hangs_makes_nobody_wait_and_what_is_dropped_is_counted() {
    let (open, gate) = channel();
    let seen = Arc::new(Mutex::new(vec![]));
    let mut tracker = Tracker::new(vec![Box::new(Gated { gate, seen: seen.clone() })], 4);
    // All of these return although the sink has not taken one.
    (0..1000).for_each(|step| tracker.value(step, "x", 0.0));
    let dropped = tracker.dropped();
    // One may be with the sink, four are in the queue.
    assert!((995..=996).contains(&dropped), "{dropped}");
    drop(open);
    let tracked = tracker.finish();
    let seen = seen.lock().expect("not poisoned");
    assert_eq!(tracked.dropped, dropped);
    assert_eq!(seen.len() as u64 + dropped, 1000);
    assert!(seen.iter().enumerate().all(|(at, step)| at == *step), "{seen:?}");
}

/// Has room for so many records.
struct Full(usize);

impl Sink for Full {
    fn name(&self) -> String {
        "a disk".into()
    }
    fn write(&mut self, _: &Record) -> io::Result<()> {
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        Ok(())
    }
}

#[test]
fn a_sink_that_fails_is_told_of_once_and_the_others_go_on() {
    let (open, gate) = channel();
    drop(open);
    let seen = Arc::new(Mutex::new(vec![]));
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(Full(2)), Box::new(Gated { gate, seen: seen.clone() })];
    let mut tracker = Tracker::new(sinks, 100);
    (0..10).for_each(|step| tracker.value(step, "x", 0.0));
    let tracked = tracker.finish();
    assert_eq!(tracked.errors.len(), 1, "{tracked:?}");
    let text = tracked.errors[0].to_string();
    assert!(text.starts_with("a disk: ") && tracked.errors[0].error.kind() == io::ErrorKind::StorageFull, "{text}");
    assert_eq!(*seen.lock().expect("not poisoned"), (0..10).collect::<Vec<_>>());
}

#[test]
fn what_is_in_the_queue_is_written_where_nobody_finishes() {
    let (open, gate) = channel();
    drop(open);
    let seen = Arc::new(Mutex::new(vec![]));
    let mut tracker = Tracker::new(vec![Box::new(Gated { gate, seen: seen.clone() })], 100);
    (0..50).for_each(|step| tracker.value(step, "x", 0.0));
    drop(tracker);
    assert_eq!(seen.lock().expect("not poisoned").len(), 50);
}

fn update(loss: f64) -> Update {
    Update { run: 3, loss, grad_norm: 2.5, clipped: Some(true), taken: true, loss_scale: 1.0, profile: None }
}

fn lines(path: &std::path::Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).expect("it is there");
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn lines_have_what_updates_and_measurements_have() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics.jsonl");
    let sink = Jsonl::create(&path).expect("it can be made");
    let mut tracker = Tracker::new(vec![Box::new(sink)], 100).with_watch(LossWatch::new(3));
    let mut store = Store::new();
    let config = MlpConfig { inputs: 3, outputs: 2, depth: 1, width: 4, ..MlpConfig::default() };
    let model = Mlp::new(Builder::new(&mut store, 0), &config);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let monitor = Some(MonitorConfig { every: 1, histograms: true, ..MonitorConfig::default() });
    let config = TrainerConfig { monitor, ..TrainerConfig::default() };
    let mut trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
    });
    let mut session = open(store);
    let (x, y) = (Array::new([2, 3], vec![1f32, 2.0, -1.0, 0.5, 0.0, 1.0]), Array::new([2], vec![0u32, 1]));
    trainer.step(&mut session, &[("x", &x), ("y", &y)]).expect("it runs");
    session.wait().expect("it ran");
    let taps = session.taps().expect("they have arrived");
    let (updates, measured) = (trainer.updates(&taps), trainer.measurements(&taps));
    assert_eq!(tracker.update(0, &updates[0]), vec![]);
    tracker.measurement(0, &measured[0]);
    assert_eq!(tracker.update(1, &update(f64::NAN)).len(), 1);
    tracker.alert(2, "mine", "look");
    tracker.value(3, "accuracy", f64::NEG_INFINITY);
    let tracked = tracker.finish();
    assert!(tracked.dropped == 0 && tracked.errors.is_empty(), "{tracked:?}");

    let lines = lines(&path);
    let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().expect("each has a kind")).collect();
    assert_eq!(kinds, ["update", "measurement", "update", "alert", "alert", "value"]);
    assert_eq!(lines[0]["loss"].as_f64(), Some(updates[0].loss));
    assert_eq!(lines[0]["grad_norm"].as_f64(), Some(updates[0].grad_norm));
    assert!(lines[0]["clipped"].is_null() && lines[0]["taken"] == true);
    for param in &measured[0].params {
        let line = &lines[1]["params"][&param.path];
        assert_eq!(line["norm"].as_f64(), Some(param.grad.norm), "{}", param.path);
        assert_eq!(line["update_norm"].as_f64(), Some(param.grad.update_norm));
        let counts = line["histogram"]["positive"].as_array().expect("counts");
        let want = &param.histogram.as_ref().expect("asked for").positive;
        assert_eq!(counts.iter().map(|count| count.as_u64().expect("a count")).collect::<Vec<_>>(), *want);
    }
    for site in &measured[0].sites {
        let rms = site.values.as_ref().map(|values| values.rms);
        assert_eq!(lines[1]["sites"][&site.path]["rms"].as_f64(), rms, "{}", site.path);
    }
    assert_eq!(lines[2]["loss"], "NaN");
    assert!(lines[3]["alert"] == "non-finite" && lines[3]["message"] == "the loss is NaN" && lines[3]["step"] == 1);
    assert!(lines[4]["alert"] == "mine" && lines[5]["value"] == "-inf");
}

#[test]
fn a_file_that_is_there_is_kept_or_gone_on_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics.jsonl");
    let record = |step| Record { step, event: Event::Value("x".into(), step as f64) };
    let write = |mut sink: Jsonl, step| {
        sink.write(&record(step)).expect("there is room");
        sink.flush().expect("there is room");
    };
    write(Jsonl::create(&path).expect("it is new"), 1);
    let there = Jsonl::create(&path).expect_err("it is there");
    assert_eq!(there.kind(), io::ErrorKind::AlreadyExists);
    write(Jsonl::append(&path).expect("it goes on"), 2);
    // A run that was cut off in the middle of a line, which was a long one.
    let whole = std::fs::read_to_string(&path).expect("it is there");
    std::fs::write(&path, format!("{whole}{{\"step\":3,{}", "x".repeat(200_000))).expect("there is room");
    write(Jsonl::append(&path).expect("it goes on"), 4);
    let steps: Vec<u64> = lines(&path).iter().map(|line| line["step"].as_u64().expect("a number")).collect();
    assert_eq!(steps, [1, 2, 4]);
    // And one with no line at all.
    std::fs::write(&path, "{\"st").expect("there is room");
    write(Jsonl::append(&path).expect("it goes on"), 5);
    assert_eq!(lines(&path).len(), 1);
}

/// The numbers of a page.
fn shown(path: &std::path::Path) -> serde_json::Value {
    let html = std::fs::read_to_string(path).expect("it is there");
    let (_, rest) = html.split_once("<script id=\"data\" type=\"application/json\">").expect("it has numbers");
    let (data, _) = rest.split_once("</script>").expect("they end");
    serde_json::from_str(data).expect("they are JSON")
}

#[test]
fn a_page_is_whole_at_any_time_and_says_how_the_run_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).join("index.html");
    let page = |name: &str| Page::create(folder.path().join(name), "a <run> & more").expect("it can be made");
    // Before anything is known.
    let first = page("finished");
    assert_eq!(shown(&path("finished"))["state"], "running");
    let mut tracker = Tracker::new(vec![Box::new(first)], 100);
    let lr = vec![("lr".into(), Setting::Number(0.1)), ("norm".into(), Setting::Flag(true))];
    tracker.settings(lr, "accuracy");
    for step in 0..5 {
        let loss = if step == 3 { f64::NAN } else { 1.0 / (1.0 + f64::from(step)) };
        let update =
            Update { run: 0, loss, grad_norm: 2.0, clipped: Some(true), taken: true, loss_scale: 1.0, profile: None };
        tracker.update(step as usize, &update);
    }
    tracker.value(5, "accuracy", 0.5);
    tracker.text(5, "finding", "</script><script>alert(1)</script>");
    tracker.end(5, End::Finished);
    assert!(tracker.finish().errors.is_empty());
    let data = shown(&path("finished"));
    assert_eq!(
        (&data["state"], &data["count"], &data["updates"]["clipped"]),
        (&"finished".into(), &5.into(), &5.into())
    );
    assert_eq!(data["updates"]["loss"]["low"], serde_json::json!([1.0, 0.5, 0.33333334, "NaN", 0.2]));
    assert_eq!(data["settings"], serde_json::json!({ "lr": 0.1, "norm": true }));
    assert_eq!(
        (&data["finding"], &data["title"]),
        (&"</script><script>alert(1)</script>".into(), &"a <run> & more".into())
    );
    let html = std::fs::read_to_string(path("finished")).expect("it is there");
    assert!(html.contains("<title>a &lt;run&gt; &amp; more</title>"), "{}", &html[..400]);
    assert!(!html.contains("alert(1)</script>") && !html.contains("%%"), "{html}");
    // Nothing of another run is replaced, and nothing else is left there.
    let again = Page::create(folder.path().join("finished"), "").expect_err("there is one");
    assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read_dir(folder.path().join("finished")).expect("it is there").count(), 1);

    let mut broken = Tracker::new(vec![Box::new(page("broken"))], 100);
    broken.end(3, End::Broken);
    drop(broken);
    assert_eq!(shown(&path("broken"))["state"], "broken");
    let mut interrupted = Tracker::new(vec![Box::new(page("interrupted"))], 100);
    interrupted.end(3, End::Interrupted);
    drop(interrupted);
    assert_eq!(shown(&path("interrupted"))["state"], "interrupted");
    drop(Tracker::new(vec![Box::new(page("stopped"))], 100));
    assert_eq!(shown(&path("stopped"))["state"], "stopped");
}

#[test]
fn a_page_that_can_no_longer_be_written_is_told_of_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = Page::create(folder.path().join("gone"), "").expect("it can be made");
    let lines = folder.path().join("metrics.jsonl");
    std::fs::remove_dir_all(folder.path().join("gone")).expect("it was there");
    let mut tracker = Tracker::new(vec![Box::new(page), Box::new(Jsonl::create(&lines).expect("it can be made"))], 100);
    tracker.value(0, "x", 1.0);
    tracker.text(0, "note", "a text");
    tracker.settings(vec![("a".into(), Setting::Text("b".into()))], "x");
    tracker.end(1, End::Finished);
    let tracked = tracker.finish();
    assert!(tracked.errors.len() == 1 && tracked.errors[0].sink.ends_with("index.html"), "{tracked:?}");
    let kinds: Vec<String> = std::fs::read_to_string(&lines)
        .expect("it is there")
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["kind"].to_string())
        .collect();
    assert_eq!(kinds, ["\"value\"", "\"text\"", "\"settings\"", "\"end\""]);
}

#[test]
fn a_run_is_read_from_its_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics.jsonl");
    let mut tracker = Tracker::new(vec![Box::new(Jsonl::create(&path).expect("it can be made"))], 100);
    let settings = vec![("z".into(), Setting::Number(0.1)), ("a".into(), Setting::Text("x".into()))];
    tracker.settings(settings.clone(), "accuracy");
    let losses = [2.0, 1.5, f64::NAN];
    losses.iter().enumerate().for_each(|(step, loss)| _ = tracker.update(step, &update(*loss)));
    tracker.value(2, "accuracy", 0.25);
    tracker.value(3, "accuracy", f64::INFINITY);
    tracker.alert(1, "own", "look here");
    tracker.text(3, "finding", "healthy");
    tracker.end(3, End::Broken);
    assert!(tracker.finish().errors.is_empty());
    let run = Run::read(&path).expect("it is one");
    assert_eq!((&run.settings, &*run.metric, run.judged()), (&settings, "accuracy", Some(f64::INFINITY)));
    assert!(run.updates.len() == 3 && run.updates[2].1.loss.is_nan(), "{run:?}");
    assert_eq!(run.updates[1], (1, Update { run: 0, ..update(1.5) }));
    assert_eq!((run.end, run.finding.as_deref()), (Some(End::Broken), Some("healthy")));
    assert!(run.alerts.iter().any(|(step, alert)| (*step, &*alert.kind) == (1, "own")), "{:?}", run.alerts);
    // A run that was killed while it wrote a line is one without an end.
    let text = std::fs::read_to_string(&path).expect("it is there");
    let whole: Vec<&str> = text.lines().collect();
    let cut = folder.path().join("cut.jsonl");
    std::fs::write(&cut, format!("{}\n{{\"step\":2,\"ki", whole[..3].join("\n"))).expect("it can be written");
    let run = Run::read(&cut).expect("it is one");
    assert_eq!((run.updates.len(), run.end), (2, None));
    for (line, wrong) in
        [(1, "no json"), (2, "{\"step\":1}"), (1, "{\"step\":0,\"kind\":\"update\",\"loss\":\"many\"}")]
    {
        let lines = [vec![whole[0]; line - 1], vec![wrong, ""]].concat();
        std::fs::write(&cut, lines.join("\n")).expect("it can be written");
        let error = Run::read(&cut).expect_err("it is none").to_string();
        assert!(error.contains(&format!("cut.jsonl, line {line}: ")), "{error}");
    }
    assert!(Run::read(folder.path().join("none")).expect_err("there is none").to_string().contains("cannot read"));
}
