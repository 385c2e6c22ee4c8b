//! A network that solves a differential equation: u'' = -pi^2 sin(pi x), with u = 0 at -1 and 1 (Raissi et al. 2019).

use crate::{is_cured, is_healthy, study, told, uniform};
use std::f64::consts::PI;
use wgrad::{Array, Optimizer, Store, Tensor};
use wgrad_nn::{
    Builder, Init, Linear, Trainer, TrainerConfig,
    diagnosis::{Diagnosis, MicroBatch, Setup},
    optim::{Adam, AdamConfig},
};

/// Four layers of tanh; what a diagnosis looks at is named by `probe`.
#[derive(Clone)]
struct Solution(Vec<Linear>);

impl Solution {
    fn new(store: &mut Store, init: &Init) -> Self {
        let mut b = Builder::new(store, 0);
        let sizes = [1, 24, 24, 24, 24, 1];
        let layer = |(i, size): (usize, &[usize])| Linear::new(b.at(&format!("layer[{i}]")), size[0], size[1], init);
        Self(sizes.windows(2).enumerate().map(layer).collect())
    }

    fn at<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let (last, hidden) = self.0.split_last().expect("there are five");
        let hidden = hidden.iter().enumerate().fold(x, |h, (i, layer)| {
            let _scope = x.tape().enter_turn("layer", i);
            layer.forward(h).probe("z").tanh()
        });
        last.forward(hidden)
    }
}

fn diagnosed(init: Init, lr: f64) -> Diagnosis {
    let build = move |setup: &Setup, store: &mut Store| {
        let solution = Solution::new(store, &init);
        let params = store.params();
        let adam = Adam::new(store, &params, AdamConfig { lr: lr.into(), ..AdamConfig::default() });
        let adam: Box<dyn Optimizer> = Box::new(adam);
        Trainer::new(store, &params, adam, setup.of(TrainerConfig::default()), move |batch| {
            let x = batch.get("x");
            let u = solution.at(x);
            let slope = u.sum().grad_wrt(&[x])[0].expect("u depends on x");
            let bend = slope.sum().grad_wrt(&[x])[0].expect("so does its slope");
            let inside = (bend + (x * PI).sin() * (PI * PI)).square().mean();
            // The first two points are the ends.
            (inside + u.slice(0, 0, 2).square().mean() * 10.0).into()
        })
    };
    told(study(300, build, points))
}

fn points(step: usize) -> MicroBatch {
    let mut x: Vec<f32> = uniform("x", step, [32, 1]).iter().map(|x| 2.0 * x - 1.0).collect();
    (x[0], x[1]) = (-1.0, 1.0);
    vec![("x".into(), Array::new([32, 1], x))]
}

#[test]
fn a_sound_run_is_healthy() {
    is_healthy(&diagnosed(Init::XavierUniform { gain: 1.0 }, 3e-3));
}

#[test]
fn weights_that_start_too_small_are_found() {
    is_cured(&diagnosed(Init::Normal(0.005), 3e-4), "vanishing-init", "init");
}

#[test]
fn a_rate_that_is_too_high_is_found() {
    is_cured(&diagnosed(Init::XavierUniform { gain: 1.0 }, 1.0), "rate-too-high", "lower-rate");
}
