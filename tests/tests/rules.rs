//! One rule, two ways to meet it: as a trace of what is done to gradients, and in a program or a session. Both go through the
//! same [`PassState`], so a rule that is lost fails here twice.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use wgrad::{
    Accumulator,
    Action::{self, *},
    Array, DType, DynamicScale, Error, Grads, LossScaler, Optimizer, ParamSet, PassConfig, PassState, Pitfall, Session,
    Store, Tape, Weighting,
};
use wgrad_cpu::CpuBackend;
use wgrad_nn::optim::{Sgd, SgdConfig};
use wgrad_tests::Linear;

/// What a program is recorded with.
struct Setting<'a> {
    model: &'a Linear,
    params: &'a ParamSet,
    acc: &'a Accumulator,
    sgd: &'a Sgd,
    scaler: &'a LossScaler,
}

impl Setting<'_> {
    fn grads<'t>(&self, t: &'t Tape) -> Grads<'t> {
        self.model.grads(t)
    }
}

/// Programs that run in turn.
type Programs = &'static [fn(&Setting<'_>, &Tape)];

/// A rule: what breaks it, with how many micro-batches per window, how many ranks and whether there is a scaler.
struct Rule {
    broken: Pitfall,
    config: (usize, usize, bool),
    trace: &'static [Action],
    programs: Programs,
}

const RULES: [Rule; 9] = [
    Rule {
        broken: Pitfall::PassOnPartialWindow,
        config: (2, 1, false),
        trace: &[Backward, ClipNorm],
        programs: &[|s, t| s.acc.add(s.grads(t).clip_by_global_norm(1.0))],
    },
    Rule {
        broken: Pitfall::PassOnPartialWindow,
        config: (2, 1, false),
        trace: &[Backward, ClipValue],
        programs: &[|s, t| s.acc.add(s.grads(t).clip_by_value(1.0))],
    },
    Rule {
        broken: Pitfall::ClipBeforeAllReduce,
        config: (1, 2, false),
        trace: &[Backward, Agc, AllReduce],
        programs: &[|s, t| drop(s.grads(t).agc(0.1).all_reduce())],
    },
    Rule {
        broken: Pitfall::ScaleChangesInsideWindow,
        config: (2, 1, false),
        trace: &[Backward, ScalerUpdate],
        programs: &[
            |s, t| s.acc.add(s.scaler.scale(s.model.loss(t)).grad(s.params).unscale(s.scaler)),
            |s, t| s.scaler.update(t),
        ],
    },
    Rule {
        broken: Pitfall::PassBeforeBackward,
        config: (1, 1, false),
        trace: &[ClipNorm],
        programs: &[|s, t| drop(t.input("x", [], DType::F32).grad(s.params).clip_by_global_norm(1.0))],
    },
    Rule {
        broken: Pitfall::ClipBeforeFiniteCheck,
        config: (1, 1, false),
        trace: &[Backward, ClipNorm, FiniteCheck],
        programs: &[|s, t| drop(s.grads(t).clip_by_global_norm(1.0).check_finite())],
    },
    Rule {
        broken: Pitfall::StepBeforeAllReduce,
        config: (1, 2, false),
        trace: &[Backward, Step],
        programs: &[|s, t| s.sgd.step(s.grads(t))],
    },
    Rule {
        broken: Pitfall::ViolatedWindow,
        config: (2, 1, false),
        trace: &[Backward, Step],
        programs: &[|s, t| s.acc.add(s.grads(t)), |s, t| s.sgd.step(s.acc.take(t))],
    },
    Rule {
        broken: Pitfall::ViolatedWindow,
        config: (2, 1, false),
        trace: &[Backward, Backward, Backward],
        programs: &[|s, t| s.acc.add(s.grads(t)), |s, t| s.acc.add(s.grads(t)), |s, t| s.acc.add(s.grads(t))],
    },
];

/// What the last action of a trace is refused for; those before it are in order.
fn in_a_trace(rule: &Rule) -> Result<(), Pitfall> {
    let (micro_batches, ranks, scaler) = rule.config;
    let config = PassConfig { micro_batches, ranks, scaler, weighting: Some(Weighting::Mean) };
    let mut state = PassState::new(config);
    rule.trace.iter().try_for_each(|action| state.apply(*action))
}

/// What recording is refused for, or else the last run.
fn in_a_session(rule: &Rule) -> Result<(), String> {
    let (micro_batches, ranks, _) = rule.config;
    let mut store = Store::new();
    let model = Linear::new(&mut store, &[Array::new([2], vec![1.0f32, -2.0])]);
    let params = store.params();
    let acc = Accumulator::new(&mut store, &params, "acc", Weighting::Mean).micro_batches(&mut store, micro_batches);
    let sgd = Sgd::new(&mut store, &params, SgdConfig::default());
    let scaler = LossScaler::dynamic(&mut store, DynamicScale::default());
    let setting = Setting { model: &model, params: &params, acc: &acc, sgd: &sgd, scaler: &scaler };
    let layout = Arc::new(store.layout().clone());
    let mut session = Session::new(Box::new(CpuBackend::new(1).expect("a thread")), store).expect("room");
    let inputs = Linear::inputs(&[Array::new([2], vec![0.5f32, 0.25])]);
    for program in rule.programs {
        let tape = Tape::for_ranks(layout.clone(), ranks);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| program(&setting, &tape))) {
            return Err(*panic.downcast::<String>().expect("a message"));
        }
        let step = session.compile(tape.finish()).map_err(|error| error.to_string())?;
        let takes = |name: &str| step.inputs().iter().any(|input| input.name == name);
        let given: Vec<(&str, &Array)> =
            inputs.iter().map(|(name, array)| (&**name, array)).filter(|(name, _)| takes(name)).collect();
        match session.run(&step, &given) {
            Err(error @ Error::Pitfall { .. }) => return Err(error.to_string()),
            result => drop(result.expect("it is in order")),
        }
    }
    Ok(())
}

#[test]
fn a_trace_and_a_session_are_refused_for_the_same() {
    let mut lost = vec![];
    for rule in &RULES {
        let number = format!("{}: ", rule.broken.code());
        let trace = in_a_trace(rule);
        if trace != Err(rule.broken) {
            lost.push(format!("{number}the trace {:?}: {trace:?}", rule.trace));
        }
        let session = in_a_session(rule);
        if !session.as_ref().is_err_and(|message| message.starts_with(&number) && message.contains("recorded at")) {
            lost.push(format!("{number}the session: {session:?}"));
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}
