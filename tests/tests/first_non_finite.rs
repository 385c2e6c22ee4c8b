//! The first value that is not finite is found: of thousands that are put into every value of small training programs each
//! one, on the CPU and on a GPU; and in programs that break by themselves.

use std::collections::BTreeSet;
use wgrad::{
    Array, Backend, DType, Error, Optimizer, Phase, Session, Store,
    testing::{INJECTED_AT, INJECTED_NAN, INJECTED_NODE, injectable},
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    TrainerConfig,
    optim::{Sgd, SgdConfig},
};
use wgrad_tests::{
    gpu,
    steps::{Case, decoder, passes, recurrent, residual},
};
use wgrad_wgpu::WgpuBackend;

/// What has become of injections.
#[derive(Default)]
struct Score {
    located: usize,
    harmless: usize,
    missed: Vec<String>,
    phases: BTreeSet<String>,
}

/// Injects NaN and infinity into float values of a program, one of so many, and looks for it. `off` is added to the node that
/// is looked for.
fn inject(case: Case, backend: Box<dyn Backend>, stride: usize, off: usize) -> Score {
    let live = case.program.live();
    let (program, guarded) = injectable(&case.program, |node| live[node] && node % stride == 0);
    let mut session = Session::new(backend, case.store).expect("there is room");
    let step = session.compile(program.clone()).expect("it compiles");
    let probe = session.probe(&step).expect("it compiles");
    let mut score = Score::default();
    let scalar = |value: usize| Array::new([], vec![value as u32]);
    let run = |session: &mut Session, node: usize, at: usize, nan: usize| {
        let extra = [(INJECTED_NODE, scalar(node)), (INJECTED_AT, scalar(at)), (INJECTED_NAN, scalar(nan))];
        let inputs: Vec<(&str, &Array)> =
            case.inputs.iter().chain(&extra).map(|(name, array)| (*name, array)).collect();
        probe.chain(session, &inputs).expect("it runs")
    };
    assert!(run(&mut session, u32::MAX as usize, 0, 0).is_empty(), "{}: nothing is wrong without", case.name);
    for (count, guard) in guarded.iter().enumerate() {
        let node = &case.program.nodes()[guard.node];
        for nan in [0, 1] {
            let chain = run(&mut session, guard.node, (count * 5 + nan) % node.shape.numel(), nan);
            match chain.first() {
                None => score.harmless += 1,
                Some(found) if found.index() == guard.division.index() + off && chain.contains(&guard.stands) => {
                    score.located += 1;
                    let pass = case.program.passes().iter().rev().find(|p| p.nodes.contains(&(guard.node as u32)));
                    let backward = case.program.scope_path(node.scope).iter().any(|scope| scope.name == "backward");
                    let phase = pass.map_or(if backward { "backward" } else { "forward" }, |pass| pass.name);
                    score.phases.insert(phase.into());
                }
                Some(found) => score.missed.push(format!(
                    "{}: {} was put into {} ({}) by {}, and {found} ({}) was found",
                    case.name,
                    if nan == 1 { "NaN" } else { "infinity" },
                    guard.node,
                    node.op.name(),
                    guard.division,
                    program.node(*found).op.name()
                )),
            }
        }
    }
    score
}

/// Injections into all three, of which each is located.
fn all_are_located(backend: impl Fn() -> Box<dyn Backend>, config: &TrainerConfig, stride: usize) -> usize {
    let mut located = 0;
    for case in [decoder, recurrent, residual] {
        let case = case(config.clone());
        let name = case.name;
        let start = std::time::Instant::now();
        let score = inject(case, backend(), stride, 0);
        let Score { located: found, harmless, missed, phases } = &score;
        let seconds = start.elapsed().as_secs();
        println!(
            "{name}: {found} located, {harmless} without effect, {} missed, {seconds} s; {phases:?}",
            missed.len()
        );
        assert!(missed.is_empty(), "{}", missed.join("\n"));
        assert!(["forward", "backward"].into_iter().all(|phase| phases.contains(phase)), "{phases:?}");
        located += found;
    }
    located
}

#[test]
fn what_is_put_into_any_value_is_located() {
    let located = all_are_located(|| Box::new(CpuBackend::new(2).expect("threads")), &passes(), 1);
    assert!(located >= 1000, "{located} located");
}

#[test]
fn what_is_put_into_any_value_is_located_on_a_gpu() {
    let Some(gpu) = gpu() else { return };
    // Each kernel is compiled: fewer passes, and some values of all kinds.
    let config = TrainerConfig { clip_norm: Some(0.5), check_loss: false, give_up: None, ..TrainerConfig::default() };
    all_are_located(|| Box::new(WgpuBackend::on(gpu).expect("it is there")), &config, 23);
}

/// The control: who looks beside the node finds nothing.
#[test]
fn a_locator_that_is_off_by_one_is_caught() {
    let score = inject(recurrent(passes()), Box::new(CpuBackend::new(1).expect("a thread")), 9, 1);
    assert!(score.located == 0 && !score.missed.is_empty());
}

fn session(store: Store) -> Session {
    Session::new(Box::new(CpuBackend::new(1).expect("a thread")), store).expect("there is room")
}

#[test]
fn a_run_that_breaks_by_itself_is_explained() {
    let mut store = Store::new();
    let weight = store.param("layer/weight", &Array::new([2, 2], vec![1.0f32, 2.0, 3.0, 4.0]));
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let mut session = session(store);
    let step = session
        .record(|t| {
            let x = t.input("x", [2, 2], DType::F32);
            let h = t.scoped("encoder", || x.matmul(t.param(weight)));
            // The root of 0 has an infinite slope.
            let loss = t.scoped("loss", || h.square().sum_axes(&[1]).sqrt().sum());
            t.tap("loss", loss);
            sgd.step(loss.grad(&params).check_finite());
        })
        .expect("it compiles");
    let fine = Array::new([2, 2], vec![1f32, 2.0, 3.0, 4.0]);
    assert_eq!(session.first_non_finite(&step, &[("x", &fine)]).expect("it runs"), None);
    let zero = Array::new([2, 2], vec![0f32, 0.0, 3.0, 4.0]);
    let before = session.read_param(weight).expect("readable");
    let origin = session.first_non_finite(&step, &[("x", &zero)]).expect("it runs").expect("a slope of infinity");
    assert_eq!(session.read_param(weight).expect("readable"), before, "nothing is committed");
    assert!(origin.place.phase == Phase::Backward && origin.is_produced(), "{origin}");
    assert!(origin.place.scope.contains("loss") && origin.place.site.file() == file!(), "{origin}");
    let text = origin.to_string();
    for part in ["the backward sweep", "computed from", "infinite", file!()] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

#[test]
fn what_comes_with_data_and_states_is_named() {
    let mut store = Store::new();
    let good = store.param("good", &Array::new([2], vec![1.0f32, 2.0]));
    let bad = store.param("bad", &Array::new([2], vec![1.0f32, f32::NAN]));
    let mut session = session(store);
    let both = session.record(|t| t.tap("y", t.input("x", [2], DType::F32) * t.param(good))).expect("it compiles");
    let x = Array::new([2], vec![1f32, f32::INFINITY]);
    let origin = session.first_non_finite(&both, &[("x", &x)]).expect("it runs").expect("an infinite input");
    assert_eq!((&*origin.place.what, origin.value.infinite), ("input \"x\"", 1));
    assert!(!origin.is_produced() && origin.to_string().contains("the step receives this value;"), "{origin}");
    let step = session.record(|t| t.tap("y", t.param(bad) + t.param(good))).expect("it compiles");
    let origin = session.first_non_finite(&step, &[]).expect("it runs").expect("a parameter");
    assert_eq!((origin.params.clone(), origin.value.nan), (vec!["bad".to_string()], 1));
    assert!(origin.to_string().contains("parameters bad"), "{origin}");
}

#[test]
fn infinities_that_are_meant_are_not_blamed() {
    let mut session = session(Store::new());
    let step = session
        .record(|t| {
            let x = t.input("x", [3], DType::F32);
            let masked = x.less(0.0).select(t.full([3], f64::NEG_INFINITY, DType::F32), x);
            // A branch that is not taken, too.
            let ratio = x.equals(0.0).select(x.zeros_like(), x.recip());
            t.tap("y", (masked.softmax(0) * ratio).log());
        })
        .expect("it compiles");
    let run = |session: &mut Session, x: [f32; 3]| {
        let x = Array::new([3], x.to_vec());
        session.first_non_finite(&step, &[("x", &x)]).expect("it runs")
    };
    assert_eq!(run(&mut session, [1.0, 2.0, 3.0]), None);
    // The logarithm of 0 is what breaks, and neither the mask nor the reciprocal before it.
    for x in [[1.0, -2.0, 3.0], [1.0, 0.0, 3.0]] {
        assert_eq!(run(&mut session, x).expect("a logarithm of 0").place.what, "log");
    }
}

#[test]
fn other_runs_are_left_as_they_are() {
    let mut store = Store::new();
    let count = store.state("count", &Array::new([], vec![0f32]));
    let mut session = session(store);
    let step = session
        .record(|t| {
            let x = t.input("x", [], DType::F32);
            t.assign(count, t.state(count) + 1.0);
            t.tap("x", x.log());
        })
        .expect("it compiles");
    let x = Array::new([], vec![-1f32]);
    session.run(&step, &[("x", &x)]).expect("it runs");
    for _ in 0..3 {
        assert!(session.first_non_finite(&step, &[("x", &x)]).expect("it runs").is_some());
    }
    assert_eq!(session.read(count).expect("readable").item(0), 1.0);
    assert_eq!(session.taps().expect("it ran").len(), 1, "the taps of the run, and no others");
    assert!(matches!(session.first_non_finite(&step, &[]), Err(Error::MissingInput { .. })));
}
