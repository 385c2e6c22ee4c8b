//! Small training programs like those of the benchmarks: a decoder, a recurrent and a residual network, with the passes
//! of a trainer.

use wgrad::{Array, Cell, DynamicScale, Noise, Program, Rng, Store, Tape};
use wgrad_nn::{
    BlockKind, Builder, Dropout, Gpt, GptConfig, Init, Linear, LossScale, Recurrent, RecurrentInit, ResNet,
    ResNetConfig, Trainer, TrainerConfig,
    optim::{Adam, AdamConfig, AdamW, AdamWConfig, Sgd, SgdConfig},
};

/// A training program, the store of its states, and its inputs.
pub struct Case {
    /// The program's name.
    pub name: &'static str,
    /// The program of an update.
    pub program: Program,
    /// The store.
    pub store: Store,
    /// The inputs.
    pub inputs: Vec<(&'static str, Array)>,
}

fn numbers(shape: &[usize]) -> Array {
    let count = shape.iter().product();
    Array::new(shape, (0..count).map(|i: usize| (i as f32 * 0.7 + 0.3).sin()).collect::<Vec<_>>())
}

fn classes(shape: &[usize], classes: u32) -> Array {
    let count: usize = shape.iter().product();
    Array::new(shape, (0..count as u32).map(|i| (i * 7 + 1) % classes).collect::<Vec<_>>())
}

/// A configuration with the passes of a trainer.
pub fn passes() -> TrainerConfig {
    TrainerConfig {
        loss_scale: LossScale::Dynamic(DynamicScale { init: 8.0, ..DynamicScale::default() }),
        noise: Some(Noise::Fixed { sigma: 1e-3 }),
        centralize: true,
        agc: Some(0.1),
        clip_norm: Some(0.5),
        clip_value: Some(0.1),
        ema: Some(0.9),
        give_up: None,
        check_loss: false,
        ..TrainerConfig::default()
    }
}

fn case(name: &'static str, store: Store, trainer: &Trainer, inputs: [(&'static str, Array); 2]) -> Case {
    let tape = Tape::new(store.layout().clone().into());
    trainer.record_micro_batch(&tape, &inputs.each_ref().map(|(name, array)| (*name, array)));
    Case { name, program: tape.finish(), store, inputs: inputs.into() }
}

/// A decoder with dropout, like workload w1.
pub fn decoder(config: TrainerConfig) -> Case {
    let mut store = Store::new();
    let dropout = Dropout::new(0.1, Rng::new(&mut store, "dropout", 3));
    let gpt = GptConfig {
        width: 4,
        heads: 2,
        layers: 1,
        context: 3,
        hidden: 6,
        dropout: Some(dropout),
        ..GptConfig::small(5)
    };
    let model = Gpt::new(Builder::new(&mut store, 2), &gpt);
    let params = store.params();
    let adamw = AdamW::new(&mut store, &params, AdamWConfig::default());
    let trainer = Trainer::new(&mut store, &params, adamw, config, move |batch| {
        dropout.rng().advance(batch.tape());
        model.loss(batch.get("x"), batch.get("y"), true).into()
    });
    case("decoder", store, &trainer, [("x", classes(&[2, 3], 5)), ("y", classes(&[2, 3], 4))])
}

/// A recurrent network, like workload w3.
pub fn recurrent(config: TrainerConfig) -> Case {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 2);
    let rnn = Recurrent::new(b.at("rnn"), Cell::Tanh, 2, 4, &RecurrentInit::default());
    let head = Linear::new(b.at("head"), 4, 3, &Init::Normal(0.5));
    let params = store.params();
    let adam = Adam::new(&mut store, &params, AdamConfig::default());
    let trainer = Trainer::new(&mut store, &params, adam, config, move |batch| {
        head.forward(rnn.forward(batch.get("x")).last).cross_entropy(batch.get("y")).into()
    });
    case("recurrent network", store, &trainer, [("x", numbers(&[4, 2, 2])), ("y", classes(&[2], 3))])
}

/// A residual network with batch normalisation, like workload w5.
pub fn residual(config: TrainerConfig) -> Case {
    let mut store = Store::new();
    let resnet = ResNetConfig { stages: vec![(2, 1)], ..ResNetConfig::small(8, BlockKind::Basic, 1, 3).expect("8") };
    let model = ResNet::new(Builder::new(&mut store, 2), &resnet);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { momentum: 0.9, ..SgdConfig::default() });
    let trainer = Trainer::new(&mut store, &params, sgd, config, move |batch| {
        model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
    });
    case("residual network", store, &trainer, [("x", numbers(&[2, 1, 4, 4])), ("y", classes(&[2], 3))])
}
