//! A diffusion model of points on a circle: a network that tells noise from data (Ho et al. 2020).

use crate::{circle, is_cured, is_healthy, normal, study, told, uniform};
use wgrad::{Array, Store, Tensor};
use wgrad_nn::{
    Builder, Fan, Init, Linear, Trainer, TrainerConfig,
    diagnosis::{Diagnosis, MicroBatch, Setup},
    optim::{AdamW, AdamWConfig},
};

fn diagnosed(init: Init, lr: f64) -> Diagnosis {
    let build = move |setup: &Setup, store: &mut Store| {
        let mut b = Builder::new(store, 0);
        let sizes = [3, 48, 48, 48, 48, 2];
        let layer = |(i, size): (usize, &[usize])| Linear::new(b.at(&format!("layer[{i}]")), size[0], size[1], &init);
        let layers: Vec<Linear> = sizes.windows(2).enumerate().map(layer).collect();
        let params = store.params();
        let adamw = AdamW::new(store, &params, AdamWConfig { lr: lr.into(), ..AdamWConfig::default() });
        Trainer::new(store, &params, adamw, setup.of(TrainerConfig::default()), move |batch| {
            let (data, noise, time) = (batch.get("data"), batch.get("noise"), batch.get("time"));
            let seen = data * (1.0 - time.square() + 1e-6).sqrt() + noise * time;
            let mut h = Tensor::concat(&[seen, time], 1);
            for (i, layer) in layers.iter().enumerate() {
                let _scope = h.tape().enter_turn("layer", i);
                h = layer.forward(h);
                if i + 1 < layers.len() {
                    h = h.probe("z").relu();
                }
            }
            h.mse(noise).into()
        })
    };
    told(study(300, build, batch))
}

fn batch(step: usize) -> MicroBatch {
    let time: Vec<f32> = uniform("time", step, [64, 1]).iter().map(|t| 0.1 + 0.9 * t).collect();
    vec![
        ("data".into(), circle(step, 64)),
        ("noise".into(), normal("noise", step, [64, 2])),
        ("time".into(), Array::new([64, 1], time)),
    ]
}

const HE: Init = Init::He { fan: Fan::In };

#[test]
fn a_sound_run_is_healthy() {
    is_healthy(&diagnosed(HE, 3e-3));
}

#[test]
fn weights_that_start_too_large_are_found() {
    is_cured(&diagnosed(Init::Normal(2.0), 1e-3), "exploding-init", "init");
}

#[test]
fn a_rate_that_is_too_low_is_found() {
    is_cured(&diagnosed(HE, 1e-6), "rate-too-low", "raise-rate");
}
