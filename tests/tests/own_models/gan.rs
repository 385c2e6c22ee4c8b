//! A generative adversarial network with a gradient penalty (Gulrajani et al. 2017), which learns points on a circle. The
//! critic is what is trained and diagnosed; the generator's step is recorded after its own.

use crate::{circle, is_cured, is_healthy, normal, study, told, uniform};
use wgrad::{Array, Optimizer, Store, Tensor};
use wgrad_nn::{
    Builder, Fan, Init, Linear, Trainer, TrainerConfig,
    diagnosis::{Diagnosis, MicroBatch, Setup},
    optim::{Adam, AdamConfig},
};

/// Two hidden layers.
#[derive(Clone)]
struct Net([Linear; 3]);

impl Net {
    fn new(store: &mut Store, name: &str, outputs: usize, last: &Init) -> Self {
        let mut b = Builder::new(store, 0);
        let he = Init::He { fan: Fan::In };
        let mut layer =
            |i: usize, inputs, outputs, init| Linear::new(b.at(&format!("{name}/layer[{i}]")), inputs, outputs, init);
        Self([layer(0, 2, 32, &he), layer(1, 32, 32, &he), layer(2, 32, outputs, last)])
    }

    fn of<'t>(&self, x: Tensor<'t>) -> Tensor<'t> {
        let h = self.0[0].forward(x).leaky_relu(0.2);
        self.0[2].forward(self.0[1].forward(h).leaky_relu(0.2))
    }
}

/// The norm of each row: guarded, or with a slope that is infinite at 0.
fn norms(rows: Tensor<'_>, is_guarded: bool) -> Tensor<'_> {
    let squares = rows.square().sum_axes(&[1]);
    if is_guarded { (squares + 1e-12).sqrt() } else { squares.sqrt() }
}

fn diagnosed(last: Init, lr: f64, is_guarded: bool) -> Diagnosis {
    let build = move |setup: &Setup, store: &mut Store| {
        let critic = Net::new(store, "critic", 1, &last);
        let generator = Net::new(store, "generator", 2, &Init::He { fan: Fan::In });
        let [critics, generators] =
            ["critic/", "generator/"].map(|net| store.params_where(|path| path.starts_with(net)));
        let betas = (0.5, 0.9);
        let adam = |store: &mut Store, name: &str, params, lr: f64| {
            Adam::new(store, params, AdamConfig { name: name.into(), lr: lr.into(), betas, ..AdamConfig::default() })
        };
        let (own, other) = (adam(store, "critic_adam", &critics, lr), adam(store, "generator_adam", &generators, 1e-3));
        let (judge, made) = (critic.clone(), generator.clone());
        let trainer = Trainer::new(store, &critics, own, setup.of(TrainerConfig::default()), move |batch| {
            let (real, mix) = (batch.get("real"), batch.get("mix"));
            let fake = made.of(batch.get("z")).detach();
            let between = real * mix + fake * (1.0 - mix);
            let slopes = judge.of(between).sum().grad_wrt(&[between])[0].expect("the score depends on it");
            let penalty = (norms(slopes, is_guarded) - 1.0).square().mean();
            (judge.of(fake).mean() - judge.of(real).mean() + penalty * 10.0).into()
        });
        trainer.after_update(move |batch| {
            let score = critic.of(generator.of(batch.get("z"))).mean();
            other.step((-score).grad(&generators));
        })
    };
    told(study(300, build, batch))
}

fn batch(step: usize) -> MicroBatch {
    vec![
        ("real".into(), circle(step, 64)),
        ("z".into(), normal("z", step, [64, 2])),
        ("mix".into(), Array::new([64, 1], uniform("mix", step, [64, 1]))),
    ]
}

const HE: Init = Init::He { fan: Fan::In };

#[test]
fn a_sound_run_is_healthy() {
    is_healthy(&diagnosed(HE, 1e-3, true));
}

#[test]
fn a_penalty_without_a_guard_is_found() {
    // A critic that says the same of all points has no slope.
    is_cured(&diagnosed(Init::Zeros, 1e-3, false), "unguarded", "guard");
}

#[test]
fn a_rate_that_is_too_high_is_found() {
    is_cured(&diagnosed(HE, 3.0, true), "rate-too-high", "lower-rate");
}
