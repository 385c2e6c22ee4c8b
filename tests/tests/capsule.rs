//! Capsules: a step is stored and run again bit for bit, also by another session; what is no capsule is told.

use std::{fs, path::Path, sync::Arc};
use tempfile::TempDir;
use wgrad::{
    Accumulator, Array, Backend, DType, Optimizer, PassKind, Program, Session, StateId, Store, StoredProgram, Tape,
    Weighting,
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Capsule, Error,
    optim::{Adam, AdamConfig, Sgd, SgdConfig},
};
use wgrad_tests::{
    Mlp, gpu,
    steps::{Case, decoder, passes, recurrent, residual},
};
use wgrad_wgpu::WgpuBackend;

fn cpu() -> Box<dyn Backend> {
    Box::new(CpuBackend::poisoned(2).expect("threads"))
}

fn named(case: &Case) -> Vec<(&'static str, &Array)> {
    case.inputs.iter().map(|(name, array)| (*name, array)).collect()
}

/// The taps of a run, and the states after it.
fn outcome(session: &mut Session, program: &Program, inputs: &[(&str, &Array)]) -> Vec<(String, Vec<u64>)> {
    let step = session.compile(program.clone()).expect("it compiles");
    let bits = |array: &Array| array.to_f64().into_iter().map(f64::to_bits).collect::<Vec<_>>();
    let taps = session.run_now(&step, inputs).expect("it runs");
    let mut all: Vec<_> = taps.iter().map(|(name, value)| (name.to_string(), bits(value))).collect();
    let layout = session.layout().clone();
    let states: Vec<(StateId, String)> = layout.states().map(|(id, decl)| (id, decl.name.clone())).collect();
    all.extend(states.into_iter().map(|(id, name)| (name, bits(&session.read(id).expect("readable")))));
    all
}

fn capsules() -> Vec<(Case, Capsule)> {
    [decoder(passes()), recurrent(passes()), residual(passes())]
        .into_iter()
        .map(|case| {
            let values = case.store.layout().states().zip(case.store.values());
            let states = values.map(|((_, decl), value)| Array::new(decl.shape.clone(), value.clone())).collect();
            let (_, store) = case.program.stored().open(states).expect("it is a program");
            let mut session = Session::new(cpu(), store).expect("there is room");
            let mut capsule = Capsule::of(&mut session, &case.program, &named(&case)).expect("readable");
            capsule.notes.insert("name".into(), case.name.into());
            (case, capsule)
        })
        .collect()
}

#[test]
fn a_step_that_is_stored_gives_the_same_bits() {
    let folder = TempDir::new().expect("a folder");
    for (case, capsule) in capsules() {
        let path = folder.path().join(case.name);
        capsule.save(&path).expect("there is room");
        let read = Capsule::load(&path).expect("it is one");
        assert!(read == capsule, "{}", case.name);
        assert_eq!(read.notes["name"], case.name);
        let on_gpu = gpu().map(|gpu| Box::new(WgpuBackend::on(gpu).expect("it is there")) as Box<dyn Backend>);
        for (own, other) in [
            (Some(cpu()), Some(cpu())),
            (on_gpu, gpu().map(|gpu| Box::new(WgpuBackend::on(gpu).expect("it is there")) as Box<dyn Backend>)),
        ] {
            let (Some(own), Some(other)) = (own, other) else { continue };
            let (mut again, step) = read.open(own).expect("it opens");
            let have = outcome(&mut again, &step, &read.inputs());
            let layout = case.store.layout().states().zip(case.store.values());
            let states = layout.map(|((_, decl), value)| Array::new(decl.shape.clone(), value.clone())).collect();
            let (_, store) = case.program.stored().open(states).expect("it is a program");
            let mut session = Session::new(other, store).expect("there is room");
            let want = outcome(&mut session, &case.program, &named(&case));
            assert!(have == want, "{} on {}", case.name, session.device());
        }
        // Lines and scopes are what they were.
        let (_, step) = read.open(cpu()).expect("it opens");
        for (have, want) in step.nodes().iter().zip(case.program.nodes()) {
            assert_eq!((have.site, &have.op.name()), (want.site, &want.op.name()));
            assert!(step.scope_path(have.scope) == case.program.scope_path(want.scope));
        }
    }
}

fn fails(path: &Path, holds: &str) {
    let text = Capsule::load(path).expect_err("it is none").to_string();
    assert!(text.contains(holds) && text.contains("capsule"), "{text}");
}

#[test]
fn what_is_no_capsule_is_told() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("capsule");
    let missing = Capsule::load(&path).expect_err("there is none").to_string();
    assert!(missing.starts_with("cannot read"), "{missing}");
    fs::write(&path, "no capsule").expect("there is room");
    fails(&path, "is not a safetensors file");
    let (_, capsule) = capsules().remove(1);
    capsule.save(&path).expect("there is room");
    let whole = fs::read(&path).expect("it is there");
    fs::write(&path, &whole[..whole.len() - 4]).expect("there is room");
    fails(&path, "cut short");
    // The length of the header stays the same.
    let changed = |from: &str, to: &str| {
        let at = whole.windows(from.len()).position(|part| part == from.as_bytes()).expect("it is in the header");
        let mut bytes = whole.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).expect("there is room");
    };
    changed("\"wgrad.capsule\":\"1\"", "\"wgrad.capsule\":\"9\"");
    fails(&path, "its format is \"9\", and this version reads \"1\"");
    changed("\"wgrad.capsule\"", "\"wgrad.capsulf\"");
    fails(&path, "another safetensors file");
    changed("\"input:x\"", "\"input:z\"");
    fails(&path, "it has no tensor \"input:x\"");
    changed("MatMul", "MatMat");
    fails(&path, "its program does not read");
    // A program that reads, and that no tape has recorded.
    changed("\\\"ta\\\":false,\\\"tb\\\":true", "\\\"ta\\\":true,\\\"tb\\\":false");
    fails(&path, "this file is not a valid program");
}

/// Passes keep their part in an update. Programs stored before that was written tell a step by its flag.
#[test]
fn passes_keep_their_kind_and_those_of_earlier_files_get_one() {
    let mut store = Store::new();
    let weight = store.param("weight", &Array::new([2], vec![0.5f32, -1.0]));
    let params = store.params();
    let sum = Accumulator::new(&mut store, &params, "window", Weighting::Mean);
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let (layout, values) = store.into_parts();
    let tape = Tape::new(layout.clone());
    let x = tape.input("x", [2], DType::F32);
    sum.add((tape.param(weight) * x).sum().grad(&params));
    sgd.step(sum.take(&tape).clip_by_global_norm(1.0));
    let program = tape.finish();
    let kinds = |program: &Program| program.passes().iter().map(|pass| pass.kind).collect::<Vec<_>>();
    let recorded = kinds(&program);
    use PassKind::{Accumulate, ClipGlobalNorm, Step, TakeAccumulated};
    assert_eq!(recorded, [Accumulate, TakeAccumulated, ClipGlobalNorm, Step]);
    let states =
        || layout.states().zip(&values).map(|((_, of), data)| Array::new(of.shape.clone(), data.clone())).collect();
    let mut stored = serde_json::to_value(program.stored()).expect("it serializes");
    let read = |stored: &serde_json::Value| {
        let stored: StoredProgram = serde_json::from_value(stored.clone()).expect("it is a stored program");
        kinds(&stored.open(states()).expect("it is a program").0)
    };
    assert_eq!(read(&stored), recorded);
    for pass in stored["passes"].as_array_mut().expect("a list") {
        let pass = pass.as_object_mut().expect("an object");
        let kind = pass.remove("kind").expect("it is written");
        pass.insert("steps".into(), (kind == "Step").into());
    }
    assert_eq!(read(&stored), [Accumulate, PassKind::Other, PassKind::Other, Step]);
}

/// Changes one number of a stored program, each of them in turn, and reads it: it is refused or it is a program, and runs.
#[test]
fn programs_with_a_wrong_number_are_refused_or_run() {
    let (_, capsule) = capsules().remove(1);
    let states = capsule.states().to_vec();
    let (_, step) = capsule.open(cpu()).expect("it opens");
    let text = serde_json::to_string(&step.stored()).expect("it serializes");
    let digits: Vec<usize> = text
        .char_indices()
        .filter(|(at, c)| c.is_ascii_digit() && !text[..*at].ends_with(|c: char| c.is_ascii_digit()))
        .map(|(at, _)| at)
        .collect();
    let (mut refused, mut ran) = (0, 0);
    for &at in digits.iter().step_by(7) {
        for other in ["0", "1", "2", "3", "9", "77"] {
            let end = at + text[at..].find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
            let changed = format!("{}{other}{}", &text[..at], &text[end..]);
            let Ok(stored) = serde_json::from_str::<wgrad::StoredProgram>(&changed) else { continue };
            let Ok((program, store)) = stored.open(states.clone()) else {
                refused += 1;
                continue;
            };
            let mut session = Session::new(cpu(), store).expect("there is room");
            let Ok(step) = session.compile(program) else { continue };
            // An index out of range, or an input of another name, is an error of the run.
            let _ = session.run_now(&step, &capsule.inputs());
            ran += 1;
        }
    }
    assert!(refused > 100 && ran > 100, "{refused} refused, {ran} ran");
}

#[test]
#[should_panic(expected = "capsule: the key Some(\"wgrad.x\") is reserved")]
fn keys_of_the_format_are_reserved() {
    let (_, mut capsule) = capsules().remove(1);
    capsule.notes.insert("wgrad.x".into(), String::new());
    let _: Result<(), Error> = capsule.save("never");
}

#[test]
fn a_stored_program_keeps_its_parts_and_a_broken_one_is_refused() {
    let mut store = Store::new();
    let model = Mlp::new(&mut store, DType::F32);
    store.shard(2);
    let adam = Adam::new(&mut store, &model.params(), AdamConfig::default());
    let t = Tape::for_ranks(Arc::new(store.layout().clone()), 2);
    adam.step(model.loss(&t).grad(&model.params()).all_reduce());
    let text = serde_json::to_string(&t.finish().stored()).expect("it serializes");
    let states: Vec<Array> = store
        .layout()
        .states()
        .zip(store.values())
        .map(|((_, decl), data)| Array::new(&decl.shape, data.clone()))
        .collect();
    let open = |text: &str| {
        let stored: StoredProgram = serde_json::from_str(text).expect("it is a stored program");
        stored.open(states.clone())
    };
    let again = open(&text).expect("it is a program").0;
    assert_eq!(serde_json::to_string(&again.stored()).expect("it serializes"), text);
    let most = usize::MAX.to_string();
    for (what, with) in [
        ("\"whole\":384,\"ranks\":2", "\"whole\":384,\"ranks\":0"),
        ("\"whole\":384,\"ranks\":2", "\"whole\":384,\"ranks\":3"),
        ("\"whole\":384", &format!("\"whole\":{most}")),
        ("{\"Gather\":2}", "{\"Gather\":0}"),
        ("{\"Gather\":2}", &format!("{{\"Gather\":{most}}}")),
        ("\"ranks\":2,\"states\"", "\"ranks\":1,\"states\""),
    ] {
        let broken = text.replace(what, with);
        assert!(broken != text, "{what}: {text}");
        assert!(open(&broken).is_err(), "{with}");
    }
}
