//! The README's program prints what the README shows. (That it compiles and runs is a doc test.)

use wgrad::{DType, Optimizer, Session, Step, Store};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Builder, Init, Linear,
    optim::{Sgd, SgdConfig},
};

const README: &str = include_str!("../../README.md");

/// The README's program, up to where it prints.
fn program() -> (Session, Step) {
    let mut store = Store::new();
    let model = Linear::new(Builder::new(&mut store, 0).at("linear"), 3, 1, &Init::XavierUniform { gain: 1.0 });
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let cpu = CpuBackend::new(1).expect("a thread");
    let mut session = Session::new(Box::new(cpu), store).expect("there is room");
    let step = session.record(|t| {
        let (x, y) = (t.input("x", [4, 3], DType::F32), t.input("y", [4, 1], DType::F32));
        let loss = t.scoped("forward", || model.forward(x).mse(y));
        t.tap("loss", loss);
        sgd.step(loss.grad(&params).clip_by_global_norm(1.0));
    });
    (session, step.expect("it compiles"))
}

/// What the README shows, by its place among the printed texts.
fn shown(n: usize) -> Option<&'static str> {
    README.split("```text\n").nth(n).and_then(|rest| rest.split("```").next())
}

#[test]
fn the_printed_tape_is_what_is_printed() {
    let (_, step) = program();
    assert_eq!(shown(1), Some(&*step.to_string()));
}

#[test]
fn the_printed_plan_is_what_is_printed() {
    let (session, step) = program();
    let (program, plan) = session.plan(&step);
    assert_eq!(shown(2), Some(&*format!("{}\n", plan.describe(&program))));
}

#[test]
fn the_core_is_as_small_as_it_says() {
    let core = [include_str!("../../autograd/src/op.rs"), include_str!("../../autograd/src/vjp.rs")];
    let lines: usize =
        core.iter().chain([&include_str!("../../autograd/src/grad.rs")]).map(|f| f.lines().count()).sum();
    assert!(README.contains(&format!("{} lines", lines.div_ceil(50) * 50)), "{lines} lines, rounded up to fifty");
    assert!(lines < 900);
}
