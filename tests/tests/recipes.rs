//! The random tapes themselves: they record whatever is left out, meet every op, and shrink to the cause of a failure.

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestError, TestRunner},
};
use std::collections::BTreeSet;
use wgrad::{
    DType, Program, Tape,
    op::{Op, Unary},
    testing::{Kind, Leaf, Mode, Recipe, Step, array, broadcastable, recipe, recipe_of, shape},
};
use wgrad_tests::proptest_config as config;

fn record(recipe: &Recipe, mode: Mode) -> Program {
    let t = Tape::default();
    t.tap("loss", recipe.record(&t, mode).loss);
    t.finish()
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn shapes_that_broadcast_do(((a, b), x) in (broadcastable(), shape().prop_flat_map(|s| array(s, DType::F32)))) {
        prop_assert!(a.broadcast(&b).is_some());
        prop_assert!(x.shape().rank() <= 4 && x.shape().numel() <= 60);
        prop_assert!(x.to_f64().iter().all(|v| (0.0999..=2.0).contains(&v.abs())));
    }
}

/// Values that grow from step to step stay within the bank of indices that later steps take theirs from.
#[test]
fn no_value_outgrows_the_indices() {
    let leaf = Leaf { shape: [21, 1].into(), values: vec![0.5; 21] };
    for offset in 0..=u8::MAX {
        let step = |kind, n| Step { kind, key: 1, a: 0, b: 0, n };
        let steps = vec![step(Kind::Assemble, [1, 2, 0, 0]), step(Kind::ScatterAdd, [0, 3, offset, 0])];
        let recipe = Recipe { dtype: DType::F64, leaves: vec![leaf.clone()], steps };
        record(&recipe, Mode::Plain);
    }
}

#[test]
fn recipes_meet_every_op() {
    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for _ in 0..400 {
        let recipe = recipe(12).new_tree(&mut runner).expect("generated").current();
        seen.extend(record(&recipe, Mode::Plain).nodes().iter().map(|node| node.op.name()));
    }
    let all = [
        "add",
        "argmax",
        "assemble",
        "barrier",
        "cast",
        "const",
        "cos",
        "custom",
        "detach",
        "div",
        "equal",
        "erf",
        "exp",
        "expand",
        "gather",
        "hook",
        "input",
        "iota",
        "is_finite",
        "less",
        "log",
        "matmul",
        "max",
        "mul",
        "neg",
        "norm",
        "permute",
        "pow",
        "random",
        "recip",
        "reduce_max",
        "reshape",
        "scatter_add",
        "segment_broadcast",
        "segment_sum",
        "select",
        "sequence",
        "sin",
        "slice",
        "sqrt",
        "sub",
        "sum",
        "tanh",
    ];
    assert_eq!(all.into_iter().filter(|name| !seen.contains(name)).collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn a_failing_recipe_shrinks_to_its_cause() {
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 1000, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() },
        TestRunner::deterministic().new_rng(),
    );
    // The failure: the sine of an error function.
    let faulty = |program: &Program| {
        program.nodes().iter().any(|node| {
            let of = |op: &Op| matches!(op, Op::Unary(Unary::Erf));
            node.op == Op::Unary(Unary::Sin) && of(&program.node(node.inputs[0]).op)
        })
    };
    let result = runner.run(&recipe(14), |recipe| {
        prop_assert!(!faulty(&record(&recipe, Mode::Plain)));
        Ok(())
    });
    let Err(TestError::Fail(_, smallest)) = result else { panic!("no recipe has one in it") };
    let kinds: Vec<Kind> = smallest.steps.iter().map(|step| step.kind).collect();
    assert!(kinds.len() == 2 && kinds[0] == Kind::Erf, "{smallest:?}");
    assert!(smallest.steps.iter().all(|step| step.n == [0; 4] && step.a == 0), "{smallest:?}");
    // What is printed is the recipe as Rust, and the tape.
    let text = format!("{smallest:?}");
    assert!(
        text.contains(&format!(
            "Step {{ kind: Kind::Erf, key: {}, a: 0, b: 0, n: [0, 0, 0, 0] }}",
            smallest.steps[0].key
        )) && text.contains("erf x"),
        "{text}"
    );
}

#[test]
fn kinds_can_be_chosen_and_left_out() {
    let mut runner = TestRunner::deterministic();
    const SOME: [Kind; 2] = [Kind::Add, Kind::MatMul];
    for _ in 0..50 {
        let recipe = recipe_of(&SOME, 6).new_tree(&mut runner).expect("generated").current();
        assert!(recipe.steps.iter().all(|step| SOME.contains(&step.kind)));
        assert!(recipe.without(&[Kind::Add]).steps.iter().all(|step| step.kind == Kind::MatMul));
    }
}
