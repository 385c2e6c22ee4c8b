//! The random tapes themselves: they record whatever is left out, meet every op, and shrink to the cause of a failure.

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestError, TestRunner},
};
use std::collections::BTreeSet;
use wgrad::{
    Conv2d, DType, Node, Program, Tape,
    op::{Op, Unary},
    testing::{Kind, Leaf, Mode, Recipe, Step, array, broadcastable, operation, recipe, recipe_of, shape},
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

#[test]
fn single_operations_are_of_every_kind_and_compute_something() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    let mut of_two_leaves = 0;
    for _ in 0..2000 {
        let operation = operation().new_tree(&mut runner).expect("generated").current();
        let [step] = operation.steps[..] else { panic!("{operation:?}") };
        seen.insert(format!("{:?}", step.kind));
        let tape = Tape::default();
        let recorded = operation.record(&tape, Mode::Plain);
        let fresh = recorded.unused.last().expect("there is a result");
        assert!(recorded.leaves.iter().all(|leaf| leaf.id() != fresh.id()), "{operation:?}");
        of_two_leaves += usize::from(recorded.unused.len() < recorded.leaves.len());
    }
    let missing = |kind: &&Kind| !seen.contains(&format!("{kind:?}"));
    assert_eq!(Kind::ALL.iter().filter(missing).collect::<Vec<_>>(), [&Kind::Checkpoint]);
    assert!(of_two_leaves > 200, "{of_two_leaves}");
}

/// The failing single operation that a strategy's failing ones shrink to.
fn smallest_operation(fails: fn(&Program) -> bool) -> Recipe {
    let config = Config { cases: 10_000, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRunner::deterministic().new_rng());
    let result = runner.run(&operation(), |operation| {
        prop_assert!(!fails(&record(&operation, Mode::Plain)));
        Ok(())
    });
    let Err(TestError::Fail(_, smallest)) = result else { panic!("none fails") };
    assert_eq!(smallest.steps.len(), 1, "{smallest:?}");
    smallest
}

#[test]
fn a_convolution_shrinks_to_the_simplest_that_fails() {
    fn convolution(program: &Program) -> Option<&Node> {
        program.nodes().iter().find(|node| matches!(node.op, Op::Conv2d(_)))
    }
    fn conv(program: &Program) -> Option<Conv2d> {
        convolution(program).map(|node| match node.op {
            Op::Conv2d(conv) => conv,
            _ => unreachable!("it is a convolution"),
        })
    }
    type Fails = fn(&Program) -> bool;
    let simplest = Conv2d { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1 };
    let table: [(Fails, Conv2d); 5] = [
        (|program| conv(program).is_some(), simplest),
        (|program| conv(program).is_some_and(|conv| conv.padding[1] > 0), Conv2d { padding: [1, 1], ..simplest }),
        (|program| conv(program).is_some_and(|conv| conv.stride[1] > 1), Conv2d { stride: [1, 2], ..simplest }),
        (|program| conv(program).is_some_and(|conv| conv.dilation[1] > 1), Conv2d { dilation: [1, 2], ..simplest }),
        (|program| conv(program).is_some_and(|conv| conv.groups > 1), Conv2d { groups: 2, ..simplest }),
    ];
    for (fails, want) in table {
        let smallest = smallest_operation(fails);
        let program = record(&smallest, Mode::Plain);
        assert_eq!(conv(&program), Some(want), "{smallest:?}");
        let node = convolution(&program).expect("it fails");
        let weights = &program.node(node.inputs[1]).shape;
        let channels = want.groups;
        assert_eq!(weights[..], [channels, 1, 1, 1], "{smallest:?}");
        assert_eq!(program.node(node.inputs[0]).shape[..], [1, channels, 1, 1], "{smallest:?}");
    }
}
