//! The README's program prints what the README shows. (That it compiles and runs is a doc test.)

use wgrad::{DType, Optimizer, Store, Tape};
use wgrad_nn::{
    Builder, Init, Linear,
    optim::{Sgd, SgdConfig},
};

const README: &str = include_str!("../../README.md");

#[test]
fn the_printed_tape_is_what_is_printed() {
    let mut store = Store::new();
    let model = Linear::new(Builder::new(&mut store, 0).at("linear"), 3, 1, &Init::XavierUniform { gain: 1.0 });
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let t = Tape::new(store.into_parts().0);
    let (x, y) = (t.input("x", [4, 3], DType::F32), t.input("y", [4, 1], DType::F32));
    let loss = t.scoped("forward", || model.forward(x).tanh().mse(y));
    t.tap("loss", loss);
    sgd.step(loss.grad(&params).clip_by_global_norm(1.0));
    let printed = t.finish().to_string();
    let shown = README.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(shown, Some(&*printed));
}

#[test]
fn the_core_is_as_small_as_it_says() {
    let core = [include_str!("../../autograd/src/op.rs"), include_str!("../../autograd/src/vjp.rs")];
    let lines: usize =
        core.iter().chain([&include_str!("../../autograd/src/grad.rs")]).map(|f| f.lines().count()).sum();
    assert!(README.contains(&format!("{} lines", lines.div_ceil(50) * 50)), "{lines} lines, rounded up to fifty");
    assert!(lines < 900);
}
