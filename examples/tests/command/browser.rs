//! Pages in a real browser, headless: they open from disk without an error, show the numbers of the files beside them, can be used
//! by pointer and keyboard, and nothing is wider than the window, a narrow one or a wide one.

use crate::wgrad_in;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

/// The browser: named by the variable `WGRAD_BROWSER`, or one of these on the path. None if the variable `WGRAD_NO_BROWSER` is 1,
/// which is said.
///
/// # Panics
/// If there is no browser: no test passes because it has not run.
fn browser() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if set("WGRAD_NO_BROWSER").is_some_and(|value| value == "1") {
        eprintln!("WGRAD_NO_BROWSER is 1: no page is opened in a browser");
        return None;
    }
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"].map(PathBuf::from);
    let starts = |name: &PathBuf| {
        let version = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    let found = set("WGRAD_BROWSER").map(PathBuf::from).into_iter().chain(names).find(starts);
    Some(found.expect("no Chromium was found. With WGRAD_NO_BROWSER=1 the tests run without a browser."))
}

/// The things that a browser has seen of a page.
struct Seen {
    /// Those at 400 and those at 1400 pixels.
    looks: [Value; 2],
    /// Its console.
    console: Vec<String>,
}

/// Opens `<folder>/index.html` in a directory. `None` without a browser.
fn seen(dir: &Path, folder: &str) -> Option<Seen> {
    let browser = browser()?;
    let harness = dir.join(format!("{folder}-harness.html"));
    let page = include_str!("browser.html").replace("%%page%%", &format!("{folder}/index.html"));
    fs::write(&harness, page).expect("can be written");
    let profile = TempDir::new().expect("a directory");
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--allow-file-access-from-files", "--enable-logging=stderr", "--window-size=1500,1000"])
        .args(["--virtual-time-budget=30000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", harness.display()))
        .output()
        .expect("it starts");
    let (dom, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let console = log.lines().filter(|line| line.contains("CONSOLE")).map(String::from).collect();
    let json = dom.split_once("<pre id=\"result\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let json = json.unwrap_or_else(|| panic!("no result:\n{dom}\n{log}")).0;
    let json = json.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let looks: Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}\n{log}"));
    match looks.as_array().map(Vec::as_slice) {
        Some([narrow, wide]) => Some(Seen { looks: [narrow.clone(), wide.clone()], console }),
        _ => panic!("{looks}\n{console:#?}"),
    }
}

/// A list of texts.
fn texts(of: &Value) -> Vec<&str> {
    of.as_array().into_iter().flatten().map(|text| text.as_str().expect("a text")).collect()
}

/// The rows of a table.
fn rows(of: &Value) -> Vec<Vec<&str>> {
    of.as_array().into_iter().flatten().map(texts).collect()
}

/// True if a number is shown as it is: with four digits, or with three and a power of ten.
fn shows(shown: &str, value: &Value) -> bool {
    let close = if shown.contains('e') { 5.01e-3 } else { 5.01e-4 };
    match value.as_f64() {
        Some(value) => shown.parse::<f64>().is_ok_and(|shown| (shown - value).abs() <= close * value.abs()),
        None => value.as_str() == Some(shown),
    }
}

/// The columns of probes, each with the key of its line.
const PROBES: [(&str, &str); 9] = [
    ("rms", "rms"),
    ("mean", "mean"),
    ("max", "max"),
    ("dead units", "off"),
    ("|tanh| > 0.97", "tanh_saturated"),
    ("sigmoid flat", "sigmoid_saturated"),
    ("entropy", "entropy"),
    ("mean |dL/dz|", "flow_mean_abs"),
    ("|dL/dz|", "flow_norm"),
];

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("it is there");
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

/// A page without an error that fits its window, in which nothing is undefined.
fn is_sound(page: &Seen, name: &str) {
    assert!(page.console.is_empty(), "{name}: {:#?}", page.console);
    for look in &page.looks {
        let width = &look["width"];
        let wider = look["overflow"].as_array().expect("a list").iter().any(|by| by.as_i64() != Some(0));
        assert!(!wider, "{name} at {width}: {}", look["overflow"]);
        let text = look["text"].as_str().expect("a text");
        for bad in ["undefined", "[object", "null"] {
            assert!(!text.contains(bad), "{name} at {width}: {bad:?} in\n{text}");
        }
    }
}

/// Checks the page of a run against the lines beside it.
fn has_its_numbers(page: &Seen, folder: &Path, name: &str) {
    let lines = lines(&folder.join("metrics.jsonl"));
    let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    for look in &page.looks {
        let numbers = rows(&look["numbers"]);
        let updates = of("update");
        assert_eq!(
            (numbers[0].as_slice(), numbers.len()),
            (["step", "loss", "norm"].as_slice(), updates.len() + 1),
            "{name}"
        );
        for (row, line) in numbers[1..].iter().zip(&updates) {
            let fits =
                shows(row[0], &line["step"]) && shows(row[1], &line["loss"]) && shows(row[2], &line["grad_norm"]);
            assert!(fits, "{name}: {row:?} and {line}");
        }
        let (measured, labels) = (of("measurement"), texts(&look["slider"]));
        let label = |line: &Value, at: usize| format!("Step {}, measurement {at} of {}", line["step"], measured.len());
        let ends = [label(measured[measured.len() - 1], measured.len()), label(measured[0], 1)];
        assert_eq!(labels, ends, "{name}");
        // The slider stands at the first measurement.
        let tables: Vec<Vec<Vec<&str>>> = look["tables"].as_array().expect("a list").iter().map(rows).collect();
        let params = measured[0]["params"].as_object().expect("an object");
        assert_eq!(tables[0].len(), params.len() + 1, "{name}");
        for row in &tables[0][1..] {
            let param = &params[row[0]];
            let keys = ["norm", "mean_abs", "max", "zeros", "param_norm", "update_norm"];
            assert!(
                keys.iter().zip(&row[1..]).all(|(key, cell)| shows(cell, &param[*key])),
                "{name}: {row:?}, {param}"
            );
        }
        let sites = measured[0]["sites"].as_object().expect("an object");
        let probes = tables.last().expect("it has tables");
        assert_eq!(probes.len(), sites.len() + 1, "{name}");
        let mut compared = 0;
        for row in &probes[1..] {
            for (head, cell) in probes[0].iter().zip(row).skip(1).filter(|(_, cell)| !cell.is_empty()) {
                let site = &sites[row[0]];
                let range = || {
                    let end = |key: &str| site[key].as_f64().expect("a number");
                    Value::from(end("score_high") - end("score_low"))
                };
                let value = match PROBES.iter().find(|(known, _)| known == head) {
                    Some((_, key)) => site[*key].clone(),
                    None if *head == "score range" => range(),
                    // The page computes it from a column that is compared.
                    None => continue,
                };
                assert!(shows(cell, &value), "{name}: {head} of {row:?}, and {value}");
                compared += 1;
            }
        }
        assert!(compared > 5, "{name}: {compared}");
        let is_flow = |path: &str| path.rsplit('/').next() == Some("z") && !sites[path]["flow_mean_abs"].is_null();
        let flows = |path: &str| sites[path]["flow_steps"].as_array().map_or(1, Vec::len);
        let bars: usize = sites.keys().filter(|path| is_flow(path)).map(|path| flows(path)).sum();
        // Of each parameter two: the mean and the largest.
        assert_eq!(look["bars"].as_u64(), Some((bars + 2 * params.len()) as u64), "{name}");
        assert!(look["heat"].as_str().is_some_and(|text| text.starts_with("step ")), "{name}: {}", look["heat"]);
        let read = texts(&look["read"]);
        assert!(read.len() == 2 && read[0].starts_with("step ") && read[0] != read[1], "{name}: {read:?}");
    }
}

/// Checks the graph of the tape: it folds, and shows each node with the range that the lines tell.
fn has_its_tape(page: &Seen, folder: &Path, name: &str) {
    let lines = lines(&folder.join("metrics.jsonl"));
    let tape = lines.iter().rfind(|line| line["kind"] == "tape").expect("it has a tape");
    let nodes = tape["nodes"].as_array().expect("a list");
    assert_eq!(tape["used"].as_u64(), Some(nodes.len() as u64), "{name}");
    for look in &page.looks {
        let count = |what: &str| look[what].as_u64().unwrap_or_else(|| panic!("{name}: no {what}"));
        assert!(count("opened") > count("folded") && count("closed") == count("folded"), "{name}: {look}");
        assert!(count("unfolded") > nodes.len() as u64, "{name}");
        let shown = rows(&look["nodes"]);
        assert_eq!(shown.len(), nodes.len(), "{name}");
        let (mut ranges, mut known) = (0, std::collections::HashMap::new());
        nodes
            .iter()
            .for_each(|node| _ = known.insert(format!("%{} {}", node[0], node[1].as_str().expect("a text")), &node[7]));
        for row in shown {
            let range = known.get(row[0]).unwrap_or_else(|| panic!("{name}: no {row:?}"));
            let Some(range) = range.as_array() else {
                assert!(row[1].is_empty(), "{name}: {row:?}");
                continue;
            };
            ranges += 1;
            if range[2] == 0 && range[3] == 0 {
                let (low, high) = row[1].split_once(" to ").unwrap_or((row[1], row[1]));
                assert!(shows(low, &range[0]) && shows(high, &range[1]), "{name}: {row:?} and {range:?}");
            } else {
                assert!(row[1].contains("NaN") || row[1].contains("infinite"), "{name}: {row:?}");
            }
        }
        assert!(ranges > 20, "{name}: {ranges}");
        let node = look["node"].as_str().expect("a text");
        assert!(
            ["formula", "type and shape", "range", "line", "reads"].iter().all(|part| node.contains(part)),
            "{node}"
        );
    }
}

fn headings(page: &Seen) -> Vec<&str> {
    texts(&page.looks[1]["headings"])
}

#[test]
fn the_page_of_each_example_shows_its_run() {
    let dir = TempDir::new().expect("a directory");
    for example in ["rnn", "transformer", "resnet", "two-tower"] {
        let steps = if example == "resnet" { 12 } else { 31 };
        wgrad_in(dir.path(), &format!("{example} --steps {steps} --threads 1 --report {example} --quiet")).fine();
        let Some(page) = seen(dir.path(), example) else { return };
        is_sound(&page, example);
        has_its_numbers(&page, &dir.path().join(example), example);
        has_its_tape(&page, &dir.path().join(example), example);
        let parts = ["Loss", "Norm of the gradient", "Flow: mean |dL/dz|, layer by layer", "Settings", "tape"];
        assert!(parts.iter().all(|part| headings(&page).contains(part)), "{example}: {:?}", headings(&page));
        assert!(headings(&page).contains(&"Where the time of a step goes"), "{example}: {:?}", headings(&page));
        let state = page.looks[0]["state"].as_str().expect("a text");
        assert!(state.starts_with("The run reached its end"), "{state}");
    }
}

#[test]
fn the_page_of_a_failure_leads_from_the_cause_to_the_loss() {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("run.toml"), "model = \"mlp\"\nsteps = 60\n[inputs]\nnan_at = 30\n")
        .expect("can be written");
    wgrad_in(dir.path(), "diagnose run.toml --prove --threads 1 --capsule kept --report failure --quiet").fine();
    wgrad_in(dir.path(), "replay kept --threads 1 --report again --quiet").fine();
    for name in ["failure", "again"] {
        let Some(page) = seen(dir.path(), name) else { return };
        is_sound(&page, name);
        has_its_tape(&page, &dir.path().join(name), name);
        for look in &page.looks {
            let way = texts(&look["way"]);
            assert_eq!(look["cause"], "%0 input \"x\"", "{name}");
            assert!(way.len() > 2 && way.iter().any(|node| node.contains("matmul")), "{name}: {way:?}");
            assert!(
                look["edges"].as_u64().is_some_and(|edges| edges + 1 >= way.len() as u64),
                "{name}: {}",
                look["edges"]
            );
        }
        assert!(headings(&page).contains(&"The finding"), "{name}");
        if name == "failure" {
            has_its_numbers(&page, &dir.path().join(name), name);
            let proof = "The proof: the loss of the same steps, run again";
            let said = page.looks[0]["text"].as_str().expect("a text");
            assert!(headings(&page).contains(&proof) && said.contains("with skip-step"), "{said}");
            assert!(page.looks[0]["state"].as_str().is_some_and(|state| state.starts_with("The run broke")));
        }
    }
}

#[test]
fn the_page_of_a_comparison_shows_both_runs() {
    let dir = TempDir::new().expect("a directory");
    let run = "rnn --case exploding --steps 60 --threads 1 --quiet";
    wgrad_in(dir.path(), &format!("{run} --report before")).fine();
    wgrad_in(dir.path(), &format!("{run} --fix clip-norm --report after")).fine();
    let json = wgrad_in(dir.path(), "compare before after --report both --json").json();
    let Some(page) = seen(dir.path(), "both") else { return };
    is_sound(&page, "both");
    for look in &page.looks {
        let rows = rows(&look["rows"]);
        let row = |name: &str| rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("no {name}: {rows:?}"));
        assert_eq!(rows[0], ["", "before", "after"]);
        assert_eq!(row("setting fix")[1..], ["none", "clip-norm"]);
        for (what, key) in [("first loss", "loss_first"), ("largest norm", "norm_max"), ("accuracy", "metric")] {
            let both = [&json["before"][key], &json["after"][key]];
            assert!(both.iter().zip(&row(what)[1..]).all(|(value, cell)| shows(cell, value)), "{what}: {rows:?}");
        }
        let labels = texts(&look["slider"]);
        assert_eq!(labels, ["step 50 of before, step 50 of after", "step 0 of before, step 0 of after"]);
        assert_eq!(look["bars"].as_u64(), Some(100), "50 time steps of each");
    }
    assert!(page.looks[0]["state"].as_str().is_some_and(|text| text.starts_with("after, beside before: ")));
}

/// The control: an error of a page's script, and what is wider than the window, are seen.
#[test]
fn a_page_that_is_wrong_is_caught() {
    let dir = TempDir::new().expect("a directory");
    wgrad_in(dir.path(), "rnn --steps 20 --threads 1 --report wrong --quiet").fine();
    let path = dir.path().join("wrong").join("index.html");
    let page = fs::read_to_string(&path).expect("it is there");
    let wrong = page.replace("</main>", "<div style=\"width: 3000px\">x</div></main>");
    fs::write(&path, wrong.replace("\nnumbers();\n", "\nnumbers();\nnowhere();\n")).expect("can be written");
    let Some(page) = seen(dir.path(), "wrong") else { return };
    assert!(page.console.iter().any(|line| line.contains("nowhere")), "{:#?}", page.console);
    assert!(page.looks.iter().all(|look| look["overflow"][0].as_i64().is_some_and(|by| by > 1000)));
}
