//! Several steps on one tape: which values of the parameters a gradient is taken of, and whose parameters a step moves.

use std::{cell::Cell, rc::Rc};
use wgrad::{Array, DType, Grads, Optimizer, Param, ParamSet, Store, Tape, Tensor};
use wgrad_nn::optim::{Sgd, SgdConfig};
use wgrad_tests::Machine;

/// Two parameters of one arena, and an optimizer for each.
struct Pair {
    store: Store,
    a: Param,
    b: Param,
    first: Sgd,
    second: Sgd,
}

fn pair() -> Pair {
    let mut store = Store::new();
    let a = store.param("a", &Array::new([2], vec![1.0f64, 2.0]));
    let b = store.param("b", &Array::new([2], vec![3.0f64, 4.0]));
    let mut sgd = |param: Param, name: &str| {
        let params: ParamSet = [param].into_iter().collect();
        Sgd::new(&mut store, &params, SgdConfig { name: name.into(), lr: 0.1.into(), ..SgdConfig::default() })
    };
    let (first, second) = (sgd(a, "first"), sgd(b, "second"));
    Pair { store, a, b, first, second }
}

fn loss<'t>(t: &'t Tape, a: Param, b: Param) -> Tensor<'t> {
    (t.param(a) * t.param(b)).sum()
}

fn values(machine: &mut Machine, param: Param) -> Vec<f64> {
    machine.session.read_param(param).expect("reads").to_f64()
}

#[test]
fn a_gradient_taken_after_another_step_is_of_the_values_that_the_loss_read() {
    let Pair { store, a, b, first, second } = pair();
    let only = |param| [param].into_iter().collect::<ParamSet>();
    let mut machine = Machine::poisoned(1, store);
    let record = |t: &Tape| {
        let loss = loss(t, a, b);
        first.step(loss.grad(&only(a)));
        let g: Grads<'_> = loss.grad(&only(b));
        assert!(g.absent().is_empty(), "the loss reaches b, though a has moved since");
        second.step(g);
    };
    let step = machine.session.record(record).expect("compiles");
    machine.run(&step, &[]);
    assert_eq!(values(&mut machine, a), [1.0 - 0.1 * 3.0, 2.0 - 0.1 * 4.0]);
    assert_eq!(values(&mut machine, b), [3.0 - 0.1 * 1.0, 4.0 - 0.1 * 2.0]);
}

#[test]
fn an_optimizer_moves_its_own_parameters_only() {
    let Pair { store, a, b, first, .. } = pair();
    let all = store.params();
    let mut machine = Machine::poisoned(1, store);
    let step = machine.session.record(|t| first.step(loss(t, a, b).grad(&all))).expect("compiles");
    machine.run(&step, &[]);
    assert_eq!(values(&mut machine, a), [0.7, 1.6]);
    assert_eq!(values(&mut machine, b), [3.0, 4.0]);
}

#[test]
fn two_unrolled_steps_are_two_runs_of_one_and_hooks_run_once_for_each() {
    let calls = Rc::new(Cell::new(0));
    let record = |t: &Tape, Pair { a, b, first, store, .. }: &Pair, calls: Rc<Cell<i32>>| {
        let hooked = (t.param(*a) * t.param(*b)).on_grad(move |g| {
            calls.set(calls.get() + 1);
            g
        });
        first.step((hooked * hooked).sum().grad(&store.params()));
    };
    let once = pair();
    let programs: Vec<wgrad::Program> = [1, 2]
        .into_iter()
        .map(|steps| {
            let tape = Tape::new(std::sync::Arc::new(once.store.layout().clone()));
            (0..steps).for_each(|_| record(&tape, &once, calls.clone()));
            tape.finish()
        })
        .collect();
    assert_eq!(calls.get(), 3, "each gradient runs the hooks of its own forward pass, not of the step before");
    let run = |program: &wgrad::Program, times: usize| {
        let Pair { store, a, .. } = pair();
        let mut machine = Machine::poisoned(1, store);
        let step = machine.session.compile(program.clone()).expect("compiles");
        (0..times).for_each(|_| drop(machine.run(&step, &[])));
        values(&mut machine, a)
    };
    assert_eq!(run(&programs[0], 2), run(&programs[1], 1));
    assert_ne!(run(&programs[0], 1), run(&programs[1], 1));
}

#[test]
fn a_gradient_within_other_values_is_of_those() {
    let Pair { store, a, b, .. } = pair();
    let all = store.params();
    let arena = store.layout().param(a).arena;
    let mut machine = Machine::poisoned(1, store);
    let record = |t: &Tape| {
        let doubled = wgrad::Flat::new(vec![(arena, t.state(arena) * 2.0)]);
        let inside = t.with_params(&doubled, || loss(t, a, b).grad(&all).get(a).expect("reached"));
        t.tap("inside", inside);
        let outside = t.with_params(&doubled, || loss(t, a, b)).grad(&all).get(a).expect("reached");
        t.tap("outside", outside);
    };
    let step = machine.session.record(record).expect("compiles");
    let out = machine.run(&step, &[]);
    assert_eq!(out.tap("inside").to_f64(), [6.0, 8.0], "the other factor, doubled");
    assert_eq!(out.tap("outside").to_f64(), [12.0, 16.0], "and through the doubling");
    assert_eq!(out.tap("inside").dtype(), DType::F64);
}
