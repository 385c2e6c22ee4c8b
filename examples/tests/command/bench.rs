//! `wgrad bench`: its results, the files that it reads, and what it refuses.

use crate::{Json, devices::gpus, wgrad, wgrad_in};
use approx::{abs_diff_eq, relative_eq};
use safetensors::{Dtype, tensor::TensorView};
use std::{collections::BTreeMap, fs, path::Path};
use tempfile::TempDir;

/// The fields of a result, in the order of the specification, which other frameworks' runners share.
const RESULT: [&str; 15] = [
    "framework",
    "version",
    "backend",
    "workload",
    "median_ms",
    "p10",
    "p90",
    "rss_mb",
    "rss_base_mb",
    "loss_first",
    "loss_last",
    "iters",
    "threads",
    "first_step_ms",
    "note",
];

#[track_caller]
fn number(result: &Json, field: &str) -> f64 {
    result[field].as_f64().unwrap_or_else(|| panic!("{field} is no number: {result:?}"))
}

#[test]
fn a_result_is_a_line_with_the_fields_of_the_specification() {
    let outcome = wgrad("bench w3 --budget 0 --threads 2 --json").fine();
    let mut places = RESULT.map(|field| outcome.stdout.find(&format!("\"{field}\":")).expect(field)).to_vec();
    assert!(places.is_sorted(), "in another order: {outcome:#?}");
    let result = outcome.json();
    places.dedup();
    assert_eq!(result.len(), places.len(), "{result:?}");
    for (field, value) in [("framework", "wgrad"), ("backend", "cpu"), ("workload", "w3")] {
        assert_eq!(result[field], value, "{result:?}");
    }
    assert_eq!((&result["iters"], &result["threads"]), (&7.into(), &2.into()));
    let [p10, median, p90] = ["p10", "median_ms", "p90"].map(|field| number(&result, field));
    assert!(0.0 < p10 && p10 <= median && median <= p90, "{result:?}");
    assert!(number(&result, "first_step_ms") > 0.0 && result["version"].is_string(), "{result:?}");
    if cfg!(target_os = "linux") {
        assert!(0.0 < number(&result, "rss_base_mb") && number(&result, "rss_base_mb") < number(&result, "rss_mb"));
    }
    assert!(number(&result, "loss_last") < number(&result, "loss_first"), "{result:?}");
    assert!(result["note"].as_str().is_some_and(|note| note.contains("drawn from the seed")), "{result:?}");
}

#[test]
fn losses_depend_on_the_seed_alone() {
    let losses = |more: &str| {
        let result = wgrad(&format!("bench w3 --budget 0 --json {more}")).json();
        [number(&result, "loss_first"), number(&result, "loss_last")]
    };
    let first = losses("--threads 1");
    assert_eq!(losses("--threads 2"), first);
    let other = losses("--threads 1 --seed 1");
    assert!(other[0] != first[0] && other[1] != first[1], "{other:?} and {first:?}");
}

#[test]
fn an_lstm_learns() {
    let result = wgrad("bench w4 --budget 0 --json").json();
    // Ten classes, before anything has been learnt.
    assert!(abs_diff_eq!(number(&result, "loss_first"), 10f64.ln(), epsilon = 0.1), "{result:?}");
    assert!(number(&result, "loss_last") < number(&result, "loss_first"), "{result:?}");
}

#[test]
fn an_operation_is_compared_by_its_mean_square() {
    let result = wgrad("bench w7 --only w7_matmul512 --budget 0 --json").json();
    assert_eq!((&result["workload"], &result["iters"]), (&"w7_matmul512".into(), &5.into()));
    // Sums of 512 products of standard normal numbers.
    assert!(abs_diff_eq!(number(&result, "loss_first"), 512.0, epsilon = 0.05 * 512.0), "{result:?}");
    assert!(result["loss_last"].is_null(), "nothing is differentiated: {result:?}");
}

#[test]
fn a_batch_may_have_another_size() {
    let result = |args: &str| wgrad(&format!("bench {args} --budget 0 --json")).json();
    for (workload, losses_near) in [("w1", 96f64.ln()), ("w4", 10f64.ln())] {
        let [own, other] = ["", "--batch 2"].map(|batch| result(&format!("{workload} {batch}")));
        assert_eq!((&other["workload"], other.len()), (&workload.into(), RESULT.len()), "{other:?}");
        assert!(other["note"].as_str().is_some_and(|note| note.starts_with("batch 2; weights")), "{other:?}");
        assert!(own["note"].as_str().is_some_and(|note| !note.contains("batch 2")), "{own:?}");
        // Untrained, both expect each class equally, but of other examples.
        let [first, whole] = [&other, &own].map(|result| number(result, "loss_first"));
        assert!(abs_diff_eq!(first, losses_near, epsilon = 0.5) && first != whole, "{first} and {whole}");
    }
    // A profile shows the shapes: 3 texts of 128 symbols, each a row of 128.
    let outcome = wgrad("bench w1 --batch 3 --profile --budget 0 --json").fine();
    let profile: Json = serde_json::from_str(outcome.stdout.lines().last().expect("lines")).expect("JSON");
    let products = whole(&profile).into_iter().filter(|line| line["kernel"] == "matmul");
    let over: Vec<String> = products.map(|line| line["over"].as_str().unwrap_or_default().into()).collect();
    assert!(over.iter().any(|over| over.starts_with("384x128 by ")), "{over:?}");
}

#[test]
fn only_chooses_by_the_beginning_of_a_name_and_the_table_is_aligned() {
    let table = wgrad("bench w3 w7 --only w7_matmul512,w3 --budget 0 --threads 1").fine();
    let lines: Vec<&str> = table.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{table:#?}");
    assert!(lines[0].starts_with("cpu (1 thread)"), "{table:#?}");
    assert_eq!(
        lines[1].split_whitespace().collect::<Vec<_>>(),
        ["ms", "median", "p10", "p90", "loss_first", "loss_last"]
    );
    assert!(lines[2].starts_with("w3 ") && lines[3].starts_with("w7_matmul512 "), "{table:#?}");
    assert!(lines[1..].iter().all(|line| line.len() == lines[1].len()), "{table:#?}");
    let quiet = wgrad("bench w3 w7 --only w7_matmul5 --budget 0 --quiet").fine();
    assert_eq!(quiet.stdout.lines().count(), 1, "{quiet:#?}");
}

#[test]
fn what_does_not_exist_is_refused() {
    for (args, holds) in [
        ("w6 --only w6_clip_forloop", &["no result \"w6_clip_forloop\"", "w6_clip, w6_agc, w6_central, w6_update"][..]),
        ("w9", &["no workload \"w9\"", "w1, w2, w3, w4, w5, w6, w7"]),
        ("w7 --only softmax", &["no result \"softmax\"", "w7_softmax"]),
        ("w3 --only w4", &["no result \"w4\"", "w3"]),
        ("w3 --steps 10", &["--steps", "--budget"]),
        ("w3 --profile --steps 10", &["--steps", "--budget"]),
        ("w9 --profile", &["no workload \"w9\""]),
        ("w1 --batch 4 --data nowhere", &["--data", "leave out --batch"]),
        ("w1 w7 --batch 4", &["w7 has no batches", "w1, w2, w3, w4, w5"]),
    ] {
        wgrad(&format!("bench {args}")).fails(2, holds);
    }
    for (args, holds) in [
        ("", "WORKLOAD"),
        ("--profile", "WORKLOAD"),
        ("w3 --budget many", "many"),
        ("w3 --budget nan", "0 to 86400"),
        ("w3 --budget 1e9", "0 to 86400"),
        ("w3 --threads 60000", "1024"),
        ("w3 --batch 0", "1..=1024"),
    ] {
        let outcome = wgrad(&format!("bench {args}"));
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(2), ""), "{outcome:#?}");
        assert!(outcome.stderr.contains(holds), "expected {holds:?}: {outcome:#?}");
    }
}

/// The fields of a profile, and of each of its lines, in the order in which `--help` names them.
const PROFILE: [&str; 12] = [
    "workload",
    "backend",
    "threads",
    "iters",
    "step_ms",
    "kernels",
    "kernels_ms",
    "between_ms",
    "between_share",
    "matmul_gflops",
    "copy_gbs",
    "profile",
];
const LINE: [&str; 12] = [
    "kernel",
    "over",
    "computes",
    "recorded_in",
    "operands",
    "count",
    "ms",
    "share",
    "gflops",
    "gbs",
    "of_limit",
    "limit",
];

/// Asserts that the lines of a profile come to what it says of the whole, and gives them.
#[track_caller]
fn whole(profile: &Json) -> Vec<Json> {
    let lines = profile["profile"].as_array().expect("a list");
    let lines: Vec<Json> = lines.iter().map(|line| line.as_object().expect("an object").clone()).collect();
    for (object, fields) in lines.iter().map(|line| (line, &LINE)).chain([(profile, &PROFILE)]) {
        let names: std::collections::BTreeSet<&str> = object.keys().map(String::as_str).collect();
        assert_eq!(names, fields.iter().copied().collect(), "{object:?}");
    }
    let sum = |field: &str| lines.iter().map(|line| number(line, field)).sum::<f64>();
    let close = |have: f64, want: f64| relative_eq!(have, want, epsilon = 0.0, max_relative = 1e-9);
    assert_eq!(sum("count"), number(profile, "kernels"), "{profile:?}");
    assert!(close(sum("ms"), number(profile, "kernels_ms")), "{profile:?}");
    assert!(close(sum("share") + number(profile, "between_share"), 1.0), "{profile:?}");
    assert!(lines.is_sorted_by(|a, b| number(a, "ms") >= number(b, "ms")), "{profile:?}");
    for limit in ["matmul_gflops", "copy_gbs"] {
        assert!(number(profile, limit) > 0.0, "{profile:?}");
    }
    for line in &lines {
        // The time in which the machine could have done it, of the time that it took.
        let of =
            |rate: &str, limit: &str| line[rate].as_f64().map(|rate| rate / number(profile, limit)).unwrap_or(f64::NAN);
        let [flops, bytes] = [of("gflops", "matmul_gflops"), of("gbs", "copy_gbs")];
        let (want, limit) = if flops > bytes { (flops, "matmul") } else { (bytes, "copy") };
        assert_eq!(line["limit"], limit, "{line:?}");
        match line["of_limit"].as_f64() {
            Some(of_limit) => assert!(close(of_limit, want), "{want}: {line:?}"),
            None => assert_eq!(number(line, "ms"), 0.0, "{line:?}"),
        }
    }
    lines
}

#[test]
fn a_profile_follows_its_result_and_accounts_for_every_kernel() {
    let outcome = wgrad("bench w3 --profile --budget 0 --threads 2 --json").fine();
    let lines: Vec<Json> = outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [result, profile] = &lines[..] else { panic!("a result and a profile: {outcome:#?}") };
    assert_eq!(result.len(), RESULT.len(), "a result is as without: {result:?}");
    assert_eq!((&result["workload"], &profile["workload"]), (&"w3".into(), &"w3".into()));
    assert_eq!((&profile["backend"], &profile["threads"], &profile["iters"]), (&"cpu".into(), &2.into(), &5.into()));
    let kernels = whole(profile);
    // Kernels are a part of each step, whatever else the machine does meanwhile.
    assert!(number(profile, "between_ms") >= 0.0 && number(profile, "step_ms") > 0.0, "{profile:?}");
    let of = |kernel: &str| kernels.iter().find(|line| line["kernel"] == kernel);
    let sequence = of("sequence").unwrap_or_else(|| panic!("a recurrent network: {profile:?}"));
    assert_eq!((&sequence["count"], &sequence["recorded_in"]), (&1.into(), &"rnn".into()), "{sequence:?}");
    // A product of 128x128 for each row of each step, and an operation for each element: 200 steps of 32 rows.
    let flops = number(sequence, "gflops") * number(sequence, "ms") * 1e6;
    assert!(abs_diff_eq!(flops / (2.0 * 200.0 * 32.0 * 128.0 * 128.0), 1.0, epsilon = 0.02), "{flops}: {sequence:?}");
    assert!(of("sequence_grad").is_some() && of("matmul").is_some(), "{profile:?}");
}

#[test]
fn each_result_of_a_workload_has_its_profile() {
    let outcome =
        wgrad("bench w6 w7 --only w6_clip,w6_agc,w7_matmul512 --profile --budget 0 --threads 1 --json").fine();
    let lines: Vec<Json> = outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<&Json> = lines.iter().collect();
    for (pair, name) in names.chunks(2).zip(["w6_clip", "w6_agc", "w7_matmul512"]) {
        let [result, profile] = pair else { panic!("{outcome:#?}") };
        assert!(result["workload"] == name && profile["workload"] == name, "{outcome:#?}");
        assert!(result.contains_key("median_ms") && !whole(profile).is_empty(), "{outcome:#?}");
        // Both limits are measured once.
        assert_eq!(profile["copy_gbs"], lines[1]["copy_gbs"], "{outcome:#?}");
    }
    assert_eq!(lines.len(), 6, "{outcome:#?}");
    let product = &whole(&lines[5])[0];
    assert_eq!((&product["kernel"], &product["over"]), (&"matmul".into(), &"512x512 by 512x512".into()), "{product:?}");
}

#[test]
fn the_table_of_a_profile_has_a_line_for_each_kind_of_kernel() {
    let table = wgrad("bench w7 --only w7_conv --profile --budget 0 --threads 1").fine();
    let (row, profile) = table.stdout.split_once("\n\n").expect("an empty line between");
    assert!(row.lines().count() == 3 && row.contains("\nw7_conv "), "{table:#?}");
    let lines: Vec<&str> = profile.lines().collect();
    assert!(lines[0].starts_with("w7_conv: ") && lines[0].ends_with(" ms, the median of 5 steps that were watched"));
    assert!(lines[1].contains(" GFLOP/s of a matrix product, ") && lines[1].ends_with(" GB/s of a copy"), "{table:#?}");
    let headings = ["ms", "share", "GFLOP/s", "GB/s", "of limit", "times", "kernel", "over", "computes", "recorded in"];
    let mut rest = lines[3];
    for heading in headings {
        (_, rest) = rest.split_once(heading).unwrap_or_else(|| panic!("{heading}: {table:#?}"));
    }
    let at = lines[3].find("kernel").expect("seen above");
    let kernels: Vec<&str> = lines[4..].iter().map(|line| line.get(at..).unwrap_or("")).collect();
    for kernel in ["conv2d ", "conv_input_grad ", "conv_weight_grad "] {
        assert_eq!(kernels.iter().filter(|line| line.starts_with(kernel)).count(), 1, "{kernel}: {table:#?}");
    }
    let [.., all, between] = &kernels[..kernels.len() - 1] else { panic!("{table:#?}") };
    assert_eq!((*all, *between), ("all kernels", "between kernels"), "{table:#?}");
    assert!(lines.iter().all(|line| line.len() <= 150), "{table:#?}");
}

#[test]
fn kernels_of_a_gpu_are_timed_too() {
    let adapters = gpus();
    let Some(best) = adapters.first() else { return };
    let outcome = wgrad("bench w7 --only w7_softmax --device gpu --quiet --profile --budget 0 --json");
    if best.missing.iter().any(|feature| feature == "timestamp_query") {
        outcome.fails(1, &[&best.name, "does not tell how long its kernels take", "--device cpu"]);
        return;
    }
    let outcome = outcome.fine();
    let profile: Json = serde_json::from_str(outcome.stdout.lines().last().expect("lines")).expect("JSON");
    assert!(profile["backend"].as_str().is_some_and(|backend| backend.starts_with("wgpu:")), "{profile:?}");
    let lines = whole(&profile);
    let rows: Vec<&Json> = lines.iter().filter(|line| line["kernel"] == "row").collect();
    let [row] = rows[..] else { panic!("a softmax is one kernel: {profile:?}") };
    assert!(number(row, "ms") > 0.0 && row["over"] == "4096 rows of 1024", "{profile:?}");
}

/// A file of tensors: their types, shapes and bytes.
type Tensors<'a> = BTreeMap<&'a str, (Dtype, Vec<usize>, Vec<u8>)>;

fn floats(shape: &[usize], value: f32) -> (Dtype, Vec<usize>, Vec<u8>) {
    (Dtype::F32, shape.to_vec(), value.to_le_bytes().repeat(shape.iter().product()))
}

fn write(dir: &Path, name: &str, tensors: &Tensors<'_>) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes as the shape holds"))
    });
    fs::write(dir.join(name), safetensors::serialize(views, None).expect("serializes")).expect("can be written");
}

/// The network of w3 with weights of zero, which gives `bo` whatever it reads, and a target that is always `y`.
fn constant_network(bo: f32, y: f32) -> Tensors<'static> {
    Tensors::from([
        ("wx", floats(&[2, 128], 0.0)),
        ("wh", floats(&[128, 128], 0.0)),
        ("b", floats(&[128], 0.0)),
        ("wo", floats(&[128, 1], 0.0)),
        ("bo", floats(&[1], bo)),
        ("data.x", floats(&[4, 200, 32, 2], 0.5)),
        ("data.y", floats(&[4, 32], y)),
    ])
}

/// `loss_last` is that of step 10, and a step is descent at 0.01 along a gradient clipped to 1, from the file's weights.
#[test]
fn ten_steps_from_a_file_are_as_on_paper() {
    let dir = TempDir::new().expect("a directory");
    // An error e has the gradient 2 e: at most 1 it shrinks e by 2 %, beyond it e goes down by 0.01.
    for (bo, error, after_nine) in [(0.5, 0.5, 0.5 * 0.98f64.powi(9)), (-0.5, 1.5, 1.5 - 0.09)] {
        write(dir.path(), "w3.safetensors", &constant_network(bo, bo + error as f32));
        let result = wgrad_in(dir.path(), "bench w3 --data . --budget 0 --json").json();
        let close =
            |field: &str, want: f64| relative_eq!(number(&result, field), want, epsilon = 0.0, max_relative = 1e-5);
        assert!(close("loss_first", error * error) && close("loss_last", after_nine * after_nine), "{result:?}");
        assert_eq!(result["note"], "", "{result:?}");
    }
}

/// Every parameter is 0.5 and every gradient 0.01, so what a pass makes of them can be told on paper.
#[test]
fn gradient_passes_of_a_file_are_as_on_paper() {
    let dir = TempDir::new().expect("a directory");
    let shapes: [(usize, &[usize]); 4] = [(40, &[512, 384]), (40, &[384, 128]), (4, &[64, 64, 3, 3]), (116, &[512])];
    let shapes: Vec<&[usize]> = shapes.iter().flat_map(|&(count, shape)| vec![shape; count]).collect();
    let names: Vec<[String; 2]> = (0..shapes.len()).map(|i| ["p", "g"].map(|of| format!("{of}{i:03}"))).collect();
    let tensors = names
        .iter()
        .zip(&shapes)
        .flat_map(|([p, g], shape)| [(p.as_str(), floats(shape, 0.5)), (g.as_str(), floats(shape, 0.01))]);
    write(dir.path(), "w6.safetensors", &tensors.collect());
    let outcome = wgrad_in(dir.path(), "bench w6 --data . --budget 0 --json").fine();
    let results: Vec<Json> = (outcome.stdout.lines()).map(|line| serde_json::from_str(line).expect("JSON")).collect();

    let numel = |shape: &[usize]| shape.iter().product::<usize>() as f64;
    let all: f64 = shapes.iter().map(|shape| numel(shape)).sum();
    let vectors: f64 = shapes.iter().filter(|shape| shape.len() == 1).map(|shape| numel(shape)).sum();
    let norm = 0.01 * all.sqrt();
    // The ratio of gradient to weight is 0.02 in each unit. A step of AdamW decays, and then moves by its whole rate.
    let clipped = 1.0 / all.sqrt();
    let updated = 0.5 * (1.0 - 1e-3 * 0.01) - 1e-3 * clipped / (clipped + 1e-8);
    let want = [
        ("w6_clip", 0.01 * all / (norm + 1e-6)),
        ("w6_agc", 0.005 * all),
        ("w6_central", 0.01 * vectors),
        ("w6_update", updated * all),
    ];
    assert_eq!(results.len(), want.len(), "{outcome:#?}");
    for (result, (name, sum)) in results.iter().zip(want) {
        assert_eq!((&result["workload"], &result["iters"], &result["note"]), (&name.into(), &5.into(), &"".into()));
        assert!(result["loss_first"].is_null(), "{result:?}");
        assert!(
            relative_eq!(number(result, "loss_last"), sum, epsilon = 0.0, max_relative = 1e-5),
            "{sum}, but {result:?}"
        );
    }
}

#[test]
fn a_file_that_does_not_fit_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let fails = |holds: &[&str]| wgrad_in(dir.path(), "bench w3 --data . --budget 0").fails(1, holds);
    fails(&["w3.safetensors", "cannot read"]);
    wgrad_in(dir.path(), "bench w3 --data nowhere").fails(1, &["w3.safetensors", "nowhere", "cannot read"]);
    let good = constant_network(0.0, 1.0);
    for (name, tensor, holds) in [
        ("wx", floats(&[2, 64], 0.0), &["wx", "f32[2, 64]", "f32[2, 128]"][..]),
        ("wh", floats(&[128], 0.0), &["wh", "f32[128]", "f32[128, 128]"]),
        ("data.x", floats(&[1, 200, 32, 2], 0.0), &["data.x", "f32[1, 200, 32, 2]", "f32[4, 200, 32, 2]"]),
        ("data.y", (Dtype::I64, vec![4, 32], vec![0; 1024]), &["data.y", "i64[4, 32]", "f32[4, 32]"]),
    ] {
        let mut bad = good.clone();
        bad.insert(name, tensor);
        write(dir.path(), "w3.safetensors", &bad);
        fails(&[&["w3.safetensors"], holds].concat());
        bad.remove(name);
        write(dir.path(), "w3.safetensors", &bad);
        fails(&["w3.safetensors", &format!("no tensor \"{name}\"")]);
    }
    write(dir.path(), "w3.safetensors", &good);
    let path = dir.path().join("w3.safetensors");
    let whole = fs::read(&path).expect("can be read");
    for bytes in
        [&whole[..whole.len() - 1], &whole[..100], &whole[..4], b"", b"These are words, and more than eight bytes."]
    {
        fs::write(&path, bytes).expect("can be written");
        fails(&["w3.safetensors is not a safetensors file, or it was cut short"]);
    }
    fs::remove_file(&path).expect("can be removed");
    fs::create_dir(&path).expect("can be made");
    fails(&["w3.safetensors", "cannot read"]);
}

#[test]
fn an_integer_that_is_no_class_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let gates = 4 * 256;
    for value in [10i64, -1, 1 << 32] {
        let mut classes = 0i64.to_le_bytes().repeat(4 * 32);
        classes[800..808].copy_from_slice(&value.to_le_bytes());
        let tensors = Tensors::from([
            ("wx", floats(&[64, gates], 0.0)),
            ("wh", floats(&[256, gates], 0.0)),
            ("b", floats(&[gates], 0.0)),
            ("wo", floats(&[256, 10], 0.0)),
            ("bo", floats(&[10], 0.0)),
            ("data.x", floats(&[4, 100, 32, 64], 0.0)),
            ("data.y", (Dtype::I64, vec![4, 32], classes)),
        ]);
        write(dir.path(), "w4.safetensors", &tensors);
        let outcome = wgrad_in(dir.path(), "bench w4 --data .");
        outcome.fails(1, &["w4.safetensors", "data.y", &value.to_string(), "0 to 9"]);
    }
}

/// All files are there before anything is timed.
#[test]
fn a_missing_file_is_found_before_the_first_step() {
    let dir = TempDir::new().expect("a directory");
    write(dir.path(), "w3.safetensors", &constant_network(0.0, 1.0));
    wgrad_in(dir.path(), "bench w3 w4 --data .").fails(1, &["w4.safetensors", "cannot read"]);
}
