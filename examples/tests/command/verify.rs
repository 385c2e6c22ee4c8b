//! `wgrad verify`, on sets of golden vectors that are written here.

use crate::{Outcome, wgrad_in};
use approx::abs_diff_eq;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;

/// A set of golden vectors in the making.
#[derive(Default)]
struct Set {
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
    cases: Vec<Value>,
}

/// A tensor by its values.
trait Stored {
    const DTYPE: Dtype;
    fn bytes(&self) -> Vec<u8>;
}

macro_rules! stored {
    ($($t:ty => $dtype:ident),*) => { $(impl Stored for $t {
        const DTYPE: Dtype = Dtype::$dtype;
        fn bytes(&self) -> Vec<u8> {
            self.to_le_bytes().to_vec()
        }
    })* };
}
stored!(f64 => F64, f32 => F32, i64 => I64, u8 => U8);

impl Stored for bool {
    const DTYPE: Dtype = Dtype::BOOL;
    fn bytes(&self) -> Vec<u8> {
        vec![u8::from(*self)]
    }
}

impl Set {
    fn tensor<T: Stored>(&mut self, name: &str, shape: &[usize], values: &[T]) -> &mut Self {
        let bytes = values.iter().flat_map(Stored::bytes).collect();
        self.tensors.push((name.into(), T::DTYPE, shape.into(), bytes));
        self
    }

    /// A vector of this name; what it is given and what it expects are the tensors that it has by now.
    fn case(&mut self, id: &str, op: &str, attrs: Value, diff: &[&str]) -> &mut Self {
        let names = |wanted: &[&str]| -> Vec<String> {
            let own = self.tensors.iter().filter_map(|(name, ..)| name.strip_prefix(id)?.strip_prefix('/'));
            own.filter(|name| wanted.iter().any(|wanted| name.starts_with(wanted))).map(Into::into).collect()
        };
        let tolerance = json!({"rtol": 1e-6, "atol": 1e-7});
        let expect = names(&["out/", "grad/"]).into_iter().map(|name| (name, tolerance.clone()));
        let case = json!({
            "id": id, "kind": "op", "op": op, "dtype": "f32", "attrs": attrs, "diff": diff, "file": "f.safetensors",
            "inputs": names(&["in/", "cot/"]), "expect": expect.collect::<serde_json::Map<_, _>>(), "note": "unknown",
        });
        self.cases.push(case);
        self
    }

    /// `y = a * b` with its gradients, all of them right.
    fn good(&mut self, id: &str) -> &mut Self {
        let mut put = |name: &str, values: [f32; 2]| {
            self.tensor(&format!("{id}/{name}"), &[2], &values);
        };
        put("in/a", [1.0, -2.0]);
        put("in/b", [3.0, 0.5]);
        put("cot/y", [1.0, 10.0]);
        put("out/y", [3.0, -1.0]);
        put("grad/a", [3.0, 5.0]);
        put("grad/b", [1.0, -20.0]);
        self.case(id, "mul", json!({}), &["a", "b"])
    }

    fn index(&self) -> Value {
        json!({"schema": 1, "set": "test", "cases": self.cases})
    }

    fn write(&self, index: &Value) -> TempDir {
        let dir = TempDir::new().expect("a directory");
        let views = self.tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many values as the shape has"))
        });
        let file = safetensors::serialize(views, None).expect("serializes");
        fs::write(dir.path().join("f.safetensors"), file).expect("can be written");
        fs::write(dir.path().join("index.json"), index.to_string()).expect("can be written");
        dir
    }

    /// Runs `wgrad verify . ARGS` in the set's directory.
    fn verify(&self, args: &str) -> Outcome {
        verify(self.write(&self.index()).path(), args)
    }
}

fn verify(dir: &Path, args: &str) -> Outcome {
    wgrad_in(dir, &format!("verify . --threads 1 {args}"))
}

impl Outcome {
    /// Asserts these lines of standard output, nothing on standard error, and this status. `..` ends a line of which only
    /// the beginning is told.
    #[track_caller]
    fn tells(&self, status: i32, lines: &[&str]) {
        assert_eq!((self.status, self.stderr.as_str()), (Some(status), ""), "{self:#?}");
        assert_eq!(self.stdout.lines().count(), lines.len(), "{self:#?}");
        for (line, want) in self.stdout.lines().zip(lines) {
            let fits = want.strip_suffix("..").map_or(line == *want, |beginning| line.starts_with(beginning));
            assert!(fits, "{want:?}: {self:#?}");
        }
    }
}

#[test]
fn vectors_that_are_met_pass() {
    let mut set = Set::default();
    set.good("one").good("two");
    set.verify("").tells(0, &["2 passed, 0 failed"]);
    set.verify("--kind op --quiet").tells(0, &["2 passed, 0 failed"]);
    set.verify("--device cpu").tells(0, &["2 passed, 0 failed"]);
}

#[test]
fn a_vector_that_is_not_met_is_told_with_its_worst_element() {
    let mut set = Set::default();
    set.good("good").good("bad");
    // Two wrong tensors: the one that is further from its bound is told.
    for (name, wrong) in [("bad/grad/a", [3.0f32, 5.00001]), ("bad/out/y", [3.0, 7.0])] {
        let tensor = set.tensors.iter_mut().find(|(tensor, ..)| tensor == name).expect("it is there");
        tensor.3 = wrong.iter().flat_map(Stored::bytes).collect();
    }
    let line = "bad: out/y[1]: have -1e0, want 7e0, bound 7.1e-6 (1 of 2 beyond)";
    set.verify("").tells(1, &[line, "1 passed, 1 failed"]);
    set.verify("--quiet").tells(1, &["1 passed, 1 failed"]);
    let outcome = set.verify("--json --kind op");
    assert_eq!((outcome.status, outcome.stdout.lines().count()), (Some(1), 1), "{outcome:#?}");
    let summary: Value = serde_json::from_str(&outcome.stdout).expect("an object");
    assert_eq!((&summary["passed"], &summary["failed"]), (&json!(1), &json!(1)), "{summary}");
    assert_eq!((&summary["not_for_this_device"], &summary["kind"]), (&json!(0), &json!("op")), "{summary}");
    let rows = summary["vectors"].as_array().expect("a list");
    let outcomes: Vec<&Value> = rows.iter().map(|row| &row["outcome"]).collect();
    assert_eq!(outcomes, ["passed", "failed"], "{summary}");
    assert_eq!((&rows[0]["error_worst"], &rows[0]["why"]), (&json!(0.0), &Value::Null), "{summary}");
    // 8 of 7, relative to the largest of the tensor, which is 7; most elements are met exactly.
    let errors = ["error_median", "error_worst"].map(|field| rows[1][field].as_f64().expect("a number"));
    assert!(errors[0] == 0.0 && abs_diff_eq!(errors[1], 8.0 / 7.0, epsilon = 1e-12), "{summary}");
}

#[test]
fn masks_indices_and_absent_gradients() {
    let mut set = Set::default();
    set.tensor("where/in/c", &[2], &[true, false]);
    for (name, values) in [
        ("in/a", [1.0f64, 2.0]),
        ("in/b", [3.0, 4.0]),
        ("cot/y", [5.0, 6.0]),
        ("out/y", [1.0, 4.0]),
        ("grad/b", [0.0, 6.0]),
    ] {
        set.tensor(&format!("where/{name}"), &[2], &values);
    }
    set.case("where", "where", json!({}), &["b"]);
    set.tensor("pick/in/x", &[3], &[1.0f32, 2.0, 3.0]).tensor("pick/in/index", &[2], &[2i64, 0]);
    set.tensor("pick/out/y", &[2], &[3.0f32, 1.0]).tensor("pick/grad/x", &[3], &[0.0f32; 3]);
    // No cotangent: nothing flows back.
    set.case("pick", "gather", json!({"dim": -1}), &["x"]);
    set.tensor("max/in/x", &[2, 2], &[1.0f32, 2.0, 4.0, 4.0]).tensor("max/out/values", &[2], &[2.0f32, 4.0]);
    set.tensor("max/out/indices", &[2], &[1i64, 0]).case("max", "max_dim", json!({"dim": 1}), &[]);
    set.verify("").tells(0, &["3 passed, 0 failed"]);
}

#[test]
fn what_cannot_be_run_fails_and_says_why() {
    let mut set = Set::default();
    set.good("op").case("unknown", "frobnicate", json!({}), &[]).good("kind").good("pipeline").good("lacks");
    set.cases[1]["expect"]["out/y"] = json!({"rtol": 0.0, "atol": 0.0});
    set.cases[2]["kind"] = "riddle".into();
    set.cases[3]["kind"] = "pipeline".into();
    set.cases[4]["expect"]["out/z"] = json!({"rtol": 0.0, "atol": 0.0});
    set.tensor("type/in/x", &[1], &[0.0f64]).tensor("type/out/y", &[1], &[1.0f32]).case("type", "exp", json!({}), &[]);
    set.tensor("byte/in/x", &[1], &[1u8]).tensor("byte/out/y", &[1], &[1.0f32]).case("byte", "exp", json!({}), &[]);
    set.tensor("far/in/x", &[2], &[1.0f32; 2]).tensor("far/in/index", &[1], &[2i64]);
    set.tensor("far/out/y", &[1], &[1.0f32]).case("far", "gather", json!({"dim": 0}), &[]);
    set.tensor("huge/in/x", &[2], &[1.0f32; 2]).tensor("huge/in/index", &[1], &[i64::MAX]);
    set.tensor("huge/out/y", &[1], &[1.0f32]).case("huge", "gather", json!({"dim": 0}), &[]);
    set.tensor("axis/in/x", &[2], &[1.0f32; 2]).tensor("axis/out/y", &[2], &[0.5f32; 2]);
    set.case("axis", "softmax", json!({"dim": 1}), &[]);
    set.tensor("misfit/in/a", &[2], &[1.0f32; 2]).tensor("misfit/in/b", &[3], &[1.0f32; 3]);
    set.tensor("misfit/out/y", &[3], &[1.0f32; 3]).case("misfit", "add", json!({}), &[]);
    set.tensor("input/in/y", &[1], &[1.0f32]).tensor("input/out/y", &[1], &[1.0f32]).case(
        "input",
        "exp",
        json!({}),
        &[],
    );
    set.tensor("nothing/in/x", &[1], &[1.0f32]).case("nothing", "exp", json!({}), &[]);
    set.verify("").tells(
        1,
        &[
            "unknown: this version has no operation \"frobnicate\"",
            "kind: this version cannot run vectors of kind \"riddle\"",
            "pipeline: this version has no operation \"mul\"",
            "lacks: f.safetensors has no tensor \"lacks/out/z\"",
            "type: out/y: have f64[1], want f32[1]",
            "byte: f.safetensors: the tensor \"byte/in/x\" is of type u8, and f64, f32, f16, i64, i32, u32 or bool is needed",
            "far: gather: index 2 is out of range for an axis of 2..",
            "huge: the tensor \"huge/in/index\" holds 9223372036854775807, which fits into neither u32..",
            "axis: its attribute \"dim\" must be an axis of the input, and is 1",
            "misfit: add of f32[2] and f32[3]: the shapes do not broadcast..",
            "input: it has no input \"x\"",
            "nothing: it expects no result",
            "1 passed, 12 failed",
        ],
    );
    set.verify("--kind pipeline").tells(1, &["pipeline: this version has no operation..", "0 passed, 1 failed"]);
}

#[test]
fn passes_are_vectors_too() {
    let mut set = Set::default();
    for id in ["clip", "order", "bound", "other", "short"] {
        set.tensor(&format!("{id}/in/g0"), &[2], &[3.0f32, 4.0]).tensor(
            &format!("{id}/out/total_norm"),
            &[],
            &[5.0f32],
        );
        set.tensor(&format!("{id}/out/o0"), &[2], &[1.5f32, 2.0]);
        let attrs = json!({"max_norm": 2.5, "norm_type": 2.0, "eps": 0.0, "frozen": [1]});
        set.case(id, "clip_global_norm", attrs, &[]);
    }
    set.cases.iter_mut().for_each(|case| case["kind"] = "pass".into());
    set.cases[1]["attrs"]["norm_type"] = "second".into();
    set.cases[2]["attrs"]["max_norm"] = json!(-1.0);
    set.cases[3]["op"] = "frobnicate".into();
    set.cases[4]["op"] = "accumulate".into();
    set.verify("--kind pass").tells(
        1,
        &[
            "order: its attribute \"norm_type\" must be a number, and is \"second\"",
            "bound: clip_by_global_norm: max_norm is -1, and must be at least 0",
            "other: this version has no operation \"frobnicate\"",
            "short: it has no input \"gk\"",
            "1 passed, 4 failed",
        ],
    );
}

#[test]
fn traces_are_vectors_too() {
    let mut set = Set::default();
    set.good("good");
    let mut index = set.index();
    index["traces"] = "traces.json".into();
    let dir = set.write(&index);
    verify(dir.path(), "").fails(1, &["traces.json", "cannot read"]);
    let trace = |id: &str, ops: &[&str], expect: &[&str]| {
        let config = json!({"K": 1, "R": 1, "scaler": "none", "weighting": "mean"});
        json!({"id": id, "config": config, "ops": ops, "expect": expect})
    };
    let write = |traces: Value| fs::write(dir.path().join("traces.json"), traces.to_string()).expect("can be written");
    let legal = trace("legal", &["backward", "clip_norm", "step", "zero", "tick"], &[]);
    let late = trace("late", &["backward", "step", "clip_norm"], &["P1"]);
    write(json!([legal, late]));
    verify(dir.path(), "").tells(0, &["3 passed, 0 failed"]);
    verify(dir.path(), "--kind traces").tells(0, &["2 passed, 0 failed"]);
    let missed = trace("missed", &["backward", "step", "clip_norm"], &[]);
    let imagined = trace("imagined", &["backward", "step"], &["P1", "P2"]);
    let unknown = trace("unknown", &["backward", "frobnicate"], &[]);
    write(json!([missed, imagined, unknown, {"id": "bare", "ops": []}]));
    let lines = [
        "missed: finds P1, want nothing",
        "imagined: finds nothing, want P1, P2",
        "unknown: this version has no step of a trace \"frobnicate\"",
        "bare: its attribute \"config\" must be an object, and is missing",
        "0 passed, 4 failed",
    ];
    verify(dir.path(), "--kind traces").tells(1, &lines);
    verify(dir.path(), "--kind op").tells(0, &["1 passed, 0 failed"]);
    fs::write(dir.path().join("traces.json"), "{}").expect("can be written");
    verify(dir.path(), "").fails(1, &["traces.json", "the file of traces"]);
}

#[test]
fn a_set_that_cannot_be_read_is_no_success() {
    let dir = TempDir::new().expect("a directory");
    wgrad_in(dir.path(), "verify nowhere").fails(1, &["nowhere", "index.json", "cannot read"]);
    verify(dir.path(), "").fails(1, &["index.json", "cannot read"]);
    let mut set = Set::default();
    set.good("good");
    let whole = set.index();
    for (index, holds) in [
        (json!({}), "schema"),
        (json!({"schema": 2, "cases": []}), "schema 2"),
        (json!({"schema": 1, "cases": [{"id": "x"}]}), "missing field"),
        (json!({"schema": 1, "cases": []}), "no golden vectors"),
    ] {
        verify(set.write(&index).path(), "").fails(1, &[holds]);
    }
    let dir = set.write(&whole);
    fs::write(dir.path().join("index.json"), &whole.to_string()[..100]).expect("can be written");
    verify(dir.path(), "").fails(1, &["index.json", "the index of golden vectors"]);
    let dir = set.write(&whole);
    let file = dir.path().join("f.safetensors");
    let bytes = fs::read(&file).expect("can be read");
    for len in [0, 7, 8, 100, bytes.len() - 1] {
        fs::write(&file, &bytes[..len]).expect("can be written");
        verify(dir.path(), "").fails(1, &["f.safetensors", "cut short"]);
    }
    fs::remove_file(&file).expect("can be removed");
    verify(dir.path(), "").fails(1, &["f.safetensors", "cannot read"]);
    verify(dir.path(), "--kind pass").fails(1, &["no golden vectors of kind \"pass\""]);
}

#[test]
fn what_is_no_kind_or_no_option_here_is_wrong_usage() {
    let dir = TempDir::new().expect("a directory");
    verify(dir.path(), "--steps 3").fails(2, &["--steps"]);
    let outcome = verify(dir.path(), "--kind riddle");
    assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(2), ""), "{outcome:#?}");
    for kind in ["riddle", "op", "pass", "optim", "scaler", "schedule", "pipeline", "traces"] {
        assert!(outcome.stderr.contains(kind), "{kind}: {outcome:#?}");
    }
    assert_eq!(wgrad_in(dir.path(), "verify").status, Some(2));
}

#[test]
fn an_attribute_that_is_not_read_is_refused() {
    let mut set = Set::default();
    let attrs = |more: &str| {
        let mut attrs = json!({"lr": 0.5, "steps": 2, "absent": {"w": [1]}});
        attrs[more] = 0.0.into();
        attrs
    };
    for (id, more, last) in [("good", "momentum", 0.5f32), ("wrong", "momentum", 0.0), ("more", "amsgrad", 0.5)] {
        set.tensor(&format!("{id}/in/p0_w"), &[1], &[1.0f32]);
        set.tensor(&format!("{id}/in/grad_w"), &[2, 1], &[1.0f32, 7.0]);
        set.tensor(&format!("{id}/out/param_w"), &[2, 1], &[0.5f32, last]);
        set.case(id, "SGD", attrs(more), &[]);
    }
    set.cases.iter_mut().for_each(|case| case["kind"] = "optim".into());
    set.verify("").tells(
        1,
        &[
            "wrong: out/param_w[1, 0]: have 5e-1, want 0e0..",
            "more: this version has no attribute \"amsgrad\" of SGD",
            "1 passed, 2 failed",
        ],
    );
}

/// The vectors that are kept with the tests, of each kind that is verified.
#[test]
fn the_golden_vectors_pass() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    const KINDS: &[(&str, usize)] =
        &[("op", 654), ("pass", 130), ("optim", 64), ("scaler", 17), ("schedule", 7), ("pipeline", 12), ("traces", 58)];
    for (kind, count) in KINDS {
        let outcome = wgrad_in(&golden, &format!("verify . --kind {kind}"));
        let last = format!("{count} passed, 0 failed");
        assert_eq!((outcome.status, outcome.stdout.trim_end().lines().last()), (Some(0), Some(&*last)));
    }
}

/// A change of any attribute changes what comes out, or is refused.
#[test]
fn every_attribute_of_a_pipeline_is_read() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let text = fs::read_to_string(golden.join("index.json")).expect("can be read");
    let index: Value = serde_json::from_str(&text).expect("an index");
    let first = ["accumulate", "all_reduce_mean", "unscale", "finite_check"];
    let order = |between: &[&str]| json!([&first[..], between, &["step"]].concat());
    // The vector, a path into its attributes, another value, and how the line goes on.
    let changes = [
        ("amp_skip", "/updates", 5.into(), "\"x\" of shape [6, 2, 5, 4] does not begin with [5, 2, 5]"),
        (
            "amp_skip",
            "/ranks",
            0.into(),
            "this version has no pipeline of 6 updates with 5 examples on each of 0 replicas",
        ),
        ("amp_skip", "/micro_sizes", json!([3, 2]), "out/.."),
        ("amp_skip", "/weighting", "mean".into(), "out/.."),
        ("amp_skip", "/weighting", "sum".into(), "this version has no weighting \"sum\" of micro-batches"),
        ("amp_skip", "/inject_inf", Value::Null, "out/.."),
        ("amp_skip", "/inject_inf", json!([3, 1]), "out/.."),
        ("amp_skip", "/inject_inf", json!([6, 1]), "inject_inf: there is no update and replica [6, 1]"),
        ("amp_skip", "/scale/init", 512.0.into(), "out/.."),
        ("amp_skip", "/scale/interval", 3.into(), "out/.."),
        ("amp_skip", "/scale/dynamic", false.into(), "this version has no attribute \"interval\" of a constant scale"),
        ("amp_skip", "/noise/eta", 0.02.into(), "out/.."),
        ("amp_skip", "/noise/gamma", 0.5.into(), "out/.."),
        ("amp_skip", "/noise", Value::Null, "out/.."),
        ("amp_skip", "/centralize", false.into(), "out/.."),
        ("amp_skip", "/clip_global", 0.5.into(), "out/.."),
        ("amp_skip", "/optimizer", "AdamW".into(), "out/.."),
        ("amp_skip", "/optimizer", "Rprop".into(), "this version has no operation \"Rprop\""),
        ("amp_skip", "/opt/lr", 0.03.into(), "out/.."),
        ("amp_skip", "/opt", json!({"lr": 0.02, "steps": 6}), "this version has no attribute \"steps\" of Adam"),
        ("amp_skip", "/warmup", 4.into(), "out/.."),
        ("amp_skip", "/order", order(&["centralize", "noise", "clip_global"]), "out/.."),
        ("amp_skip", "/order", order(&["noise", "clip_global"]), "its order has 0 places for \"centralize\""),
        (
            "amp_skip",
            "/order",
            order(&["noise", "noise", "centralize", "clip_global"]),
            "its order has 2 places for \"noise\"",
        ),
        (
            "amp_skip",
            "/order",
            json!(["unscale", "step"]),
            "this version has no order [\"unscale\", \"step\"] of passes",
        ),
        ("agc", "/agc/clipping", 0.02.into(), "out/.."),
        ("agc", "/agc/eps", 9.0.into(), "out/.."),
        ("agc", "/agc/on", json!(["w1"]), "out/.."),
        ("agc", "/agc/on", json!(["w3"]), "agc: there is no parameter \"w3\""),
    ];
    let mut set = index.clone();
    let mut lines = vec![];
    let cases = changes.iter().map(|(vector, path, value, line)| {
        let id = format!("pipe_{vector}.f64");
        let all = index["cases"].as_array().expect("a list");
        let mut case = all.iter().find(|case| case["id"] == id.as_str()).expect("it is there").clone();
        *case["attrs"].pointer_mut(path).expect("it has the attribute") = value.clone();
        lines.push(format!("{id}: {line}"));
        case
    });
    set["cases"] = cases.collect();
    set.as_object_mut().expect("an object").remove("traces");
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("index.json"), set.to_string()).expect("can be written");
    fs::copy(golden.join("pipeline.safetensors"), dir.path().join("pipeline.safetensors")).expect("can be copied");
    lines.push(format!("0 passed, {} failed", changes.len()));
    verify(dir.path(), "").tells(1, &lines.iter().map(String::as_str).collect::<Vec<_>>());
}
