//! Handles of one store, given to another: refused, with both named.

use super::{Refusal, refusal, session, tape};
use wgrad::{
    Accumulator, Agc, Array, Centralize, ClipGroups, ClipNorm, DType, DynamicScale, Error, FiniteGuard, Flat, Layout,
    LossScaler, Noise, OnGiveUp, Optimizer, Param, ParamSet, Rng, StateId, Store, Tape, Weighting,
};
use wgrad_nn::{
    Summary,
    optim::{Adam, AdamConfig, Ema, EmaConfig, Group, Rate, Sgd, SgdConfig},
    paths,
};

/// All that a store hands out.
struct Handles {
    param: Param,
    params: ParamSet,
    state: StateId,
    arena: StateId,
    rng: Rng,
    scaler: LossScaler,
    guard: FiniteGuard,
    accumulator: Accumulator,
    sgd: Sgd,
    ema: Ema,
}

/// A store whose names begin with a prefix.
fn build(prefix: &str) -> (Store, Handles) {
    let mut store = Store::new();
    let param = store.param(&format!("{prefix}/weight"), &Array::new([2], vec![1.0f32, 2.0]));
    let params = store.params();
    let name = |of: &str| format!("{prefix}/{of}");
    let handles = Handles {
        param,
        state: store.state(&name("rate"), &Array::scalar(0.5)),
        arena: store.layout().param(param).arena,
        rng: Rng::new(&mut store, &name("rng"), 1),
        scaler: LossScaler::dynamic(&mut store, DynamicScale { name: name("scale"), ..DynamicScale::default() }),
        guard: FiniteGuard::new(&mut store, &name("guard"), Some(1), OnGiveUp::default()),
        accumulator: Accumulator::new(&mut store, &params, &name("sum"), Weighting::Mean),
        sgd: Sgd::new(&mut store, &params, SgdConfig { name: name("sgd"), momentum: 0.9, ..SgdConfig::default() }),
        ema: Ema::new(&mut store, &params, EmaConfig { name: name("ema"), ..EmaConfig::default() }),
        params,
    };
    (store, handles)
}

type Use = for<'t> fn(&'t Tape, &Handles, &Handles);

/// Uses of handles, of the store first and of another one second.
const USES: &[(&str, Use)] = &[
    ("param", |t, _, other| _ = t.param(other.param)),
    ("state", |t, _, other| _ = t.state(other.state)),
    ("assign", |t, _, other| t.assign(other.state, t.scalar(0.0, DType::F64))),
    ("arenas", |t, _, other| _ = t.arenas(&other.params)),
    ("with_params", |t, own, other| {
        t.with_params(&Flat::new(vec![(other.arena, t.state(own.arena))]), || ());
    }),
    ("on_param_grad", |t, _, other| t.on_param_grad(other.param, |g| g)),
    ("grad", |t, own, other| drop(t.param(own.param).sum().grad(&other.params))),
    ("scaled grad", |t, own, other| drop(own.scaler.scale(t.param(own.param).sum()).grad(&other.params))),
    ("get", |t, own, other| _ = grads(t, own).get(other.param)),
    ("scale_grad", |t, own, other| drop(grads(t, own).scale_grad(&other.params, 2.0))),
    ("centralize", |t, own, other| drop(grads(t, own).centralize_with(&Centralize::new().exclude(&other.params)))),
    ("agc", |t, own, other| drop(grads(t, own).agc(Agc::new(0.1).exclude(&other.params)))),
    ("unit_dims", |t, own, other| drop(grads(t, own).agc(Agc::new(0.1).unit_dims(&other.params, 1)))),
    ("groups", |t, own, other| {
        drop(grads(t, own).clip_by_group_norm(&ClipGroups::new().group(&other.params, 1.0).keep_rest()));
    }),
    ("bits", |t, _, other| _ = other.rng.bits(t, [2])),
    ("advance", |t, _, other| other.rng.advance(t)),
    ("add_noise", |t, own, other| drop(grads(t, own).add_noise(Noise::fixed(0.1), other.rng))),
    ("scale", |t, own, other| _ = other.scaler.scale(t.param(own.param).sum())),
    ("scaler update", |t, _, other| other.scaler.update(t)),
    ("guard", |t, own, other| drop(grads(t, own).skip_if_not_finite(&other.guard))),
    ("accumulate", |t, own, other| other.accumulator.add(grads(t, own))),
    ("sum", |t, _, other| _ = other.accumulator.sum(t)),
    ("step", |t, own, other| other.sgd.step(grads(t, own))),
    ("update", |t, own, other| {
        let (grads, params) = (grads(t, own), t.arenas(&own.params));
        let _ = other.sgd.update(&params, &grads, &own.sgd.current(t, &params));
    }),
    ("averages", |t, _, other| _ = other.ema.averages(t)),
    ("average", |t, own, other| other.ema.update(t, &own.sgd)),
];

fn grads<'t>(t: &'t Tape, own: &Handles) -> wgrad::Grads<'t> {
    t.param(own.param).square().sum().grad(&own.params)
}

/// Requires a refusal that names what is foreign and what is here, each with its store's line.
#[track_caller]
fn foreign<R>(what: &str, f: impl FnOnce() -> R) {
    let Refusal { message, file, line } = refusal(f);
    assert!(file == file!(), "{what}: {message:?} is blamed on {file}:{line}");
    let (theirs, mine) = message.split_once("not to").unwrap_or_else(|| panic!("{what}: {message}"));
    let both = [theirs, mine].map(|text| text.contains("handles.rs:") && text.contains("store "));
    assert!(both == [true; 2] && theirs.contains("\"other/"), "{what}: {message}");
    assert!(mine.contains("\"mine/") || mine.contains("params/f32") || mine.contains("has no"), "{what}: {message}");
}

#[test]
fn handles_of_another_store_are_refused_wherever_they_are_used() {
    let ((store, own), (_, other)) = (build("mine"), build("other"));
    for (what, misuse) in USES {
        let t = tape(store.layout());
        foreign_or_arena(what, || misuse(&t, &own, &other));
    }
}

/// As [`foreign`], where it may be the arena that is met first: it has one name in all stores.
#[track_caller]
fn foreign_or_arena(what: &str, f: impl FnOnce()) {
    let Refusal { message, file, line } = refusal(f);
    assert!(file == file!(), "{what}: {message:?} is blamed on {file}:{line}");
    let (theirs, mine) = message.split_once("not to").unwrap_or_else(|| panic!("{what}: {message}"));
    for text in [theirs, mine] {
        assert!(text.contains("handles.rs:") && text.contains("store "), "{what}: {message}");
    }
    assert!(["\"other/", "params/f32"].iter().any(|name| theirs.contains(name)), "{what}: {message}");
}

#[test]
fn sessions_and_layouts_refuse_them_too() {
    let ((store, own), (other_store, other)) = (build("mine"), build("other"));
    let layout = store.layout().clone();
    foreign("param", || layout.param(other.param).clone());
    foreign("state", || layout.state(other.state).clone());
    foreign("freeze", || paths::freeze(&layout, &other.params, "mine/*"));
    foreign("summary", || Summary::new(&layout, &other.params));
    let mut session = session(store);
    let value = Array::new([2], vec![1.0f32, 1.0]);
    foreign("read", || session.read(other.state));
    foreign("write", || session.write(other.state, &Array::scalar(0.0)));
    foreign("read_param", || session.read_param(other.param));
    foreign("write_param", || session.write_param(other.param, &value));
    foreign("eval", || session.eval(&[], |t| t.param(other.param)));
    session.write_param(own.param, &value).expect("its own");
    assert_eq!(session.read_param(own.param).expect("its own").to_f64(), [1.0, 1.0]);
    drop(other_store);
}

#[test]
fn stores_refuse_parameters_of_others() {
    let ((mut store, own), (_, other)) = (build("mine"), build("other"));
    foreign("optimizer", || Adam::new(&mut store, &other.params, AdamConfig::default()));
    let groups = vec![Group::without_decay(other.params.clone())];
    foreign("group", || Adam::new(&mut store, &own.params, AdamConfig { groups, ..AdamConfig::default() }));
    let lr = Rate::State(other.state);
    let config = SgdConfig { lr, name: "second".into(), ..SgdConfig::default() };
    foreign("rate", || Sgd::new(&mut store, &own.params, config));
}

/// Two stores that declare the same are two stores all the same: a handle of one is refused by the other. A program over one
/// means the same over the other; over a store that declares something else, it does not.
#[test]
fn a_twin_is_another_store() {
    let ((store, _), (twin, theirs)) = (build("mine"), build("mine"));
    let mut session = session(store);
    let refused = refusal(|| session.read_param(theirs.param));
    let stores: Vec<&str> = refused.message.matches("store ").collect();
    assert!(refused.file == file!() && stores.len() == 2, "{}", refused.message);
    let program = |layout: &Layout, param| {
        let t = tape(layout);
        t.tap("p", t.param(param));
        t.finish()
    };
    let step = session.compile(program(twin.layout(), theirs.param)).expect("declared alike");
    session.run(&step, &[]).expect("runs");
    let (other, others) = build("other");
    let error = session.compile(program(other.layout(), others.param)).expect_err("declares something else");
    assert!(matches!(&error, Error::ForeignProgram { recorded, session } if recorded != session), "{error}");
    assert!(error.to_string().matches("handles.rs:").count() == 2, "{error}");
}

#[test]
fn a_tape_over_no_store_says_so() {
    let (_, other) = build("other");
    let refused = refusal(|| _ = Tape::default().param(other.param));
    assert!(refused.file == file!() && refused.message.contains("without a store"), "{}", refused.message);
}

/// A layout that was taken early knows nothing of what was declared later.
#[test]
fn a_state_declared_later_is_told_from_a_foreign_one() {
    let mut store = Store::new();
    let t = tape(store.layout());
    let late = store.state("late", &Array::scalar(0.0));
    let refused = refusal(|| t.state(late));
    assert!(refused.message.contains("\"late\"") && refused.message.contains("after"), "{}", refused.message);
}

/// What passes are given as tensors is of their tape.
#[test]
fn passes_refuse_tensors_of_another_tape() {
    let (store, own) = build("mine");
    let other = Tape::default();
    let foreign = other.scalar(1.0, DType::F32);
    let uses: [(&str, Use2); 5] = [
        ("clip_by_global_norm", |g, x| drop(g.clip_by_global_norm(ClipNorm::new(x)))),
        ("agc", |g, x| drop(g.agc(Agc::new(x)))),
        ("clip_by_block_rms", |g, x| drop(g.clip_by_block_rms(x))),
        ("scale_grad", |g, x| {
            let all = g.present().clone();
            drop(g.scale_grad(&all, x));
        }),
        ("skip_unless", |g, x| drop(g.skip_unless(x.equals(1.0)))),
    ];
    type Use2 = for<'t> fn(wgrad::Grads<'t>, wgrad::Tensor<'t>);
    for (name, misuse) in uses {
        let t = tape(store.layout());
        super::refused_as(file!(), name, || misuse(grads(&t, &own), foreign));
    }
}
