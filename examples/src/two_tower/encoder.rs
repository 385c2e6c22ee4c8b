//! The encoder of images, which is pretrained alone.

use crate::{Result, cli::Common};
use std::{cell::OnceCell, rc::Rc};
use wgrad::{Array, Session, Store};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{
    Builder, ResNet, ResNetConfig, Schedule, Trainer, TrainerConfig,
    data::{ImageData, Loader, LoaderConfig, Position},
    optim::{Sgd, SgdConfig},
};

/// The path of the encoder in the model.
pub(crate) const PATH: &str = "vision";
/// The number of updates of its training, enough for nineteen of twenty digits.
const STEPS: usize = 500;
/// The number of images per update.
const BATCH: usize = 64;
/// The learning rate and the momentum.
const LR: f64 = 0.1;
const MOMENTUM: f64 = 0.9;

/// A trained encoder: its states by name, its parameters by path.
#[derive(Debug)]
struct Trained {
    states: Vec<(String, Array)>,
    params: Vec<(String, Array)>,
}

/// An encoder that is trained once, when it is first needed. Its copies share the result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Encoder(Rc<OnceCell<Trained>>);

impl Encoder {
    /// Writes the encoder to the states and parameters of the same names in a session. It is trained on the CPU,
    /// whatever the session's device, so that a seed gives the same bits everywhere.
    ///
    /// # Errors
    /// If threads cannot be started, or the session's device fails.
    pub fn write(
        &self,
        session: &mut Session,
        model: &ResNet,
        data: &ImageData,
        seed: u64,
        common: &Common,
    ) -> Result<()> {
        if self.0.get().is_none() {
            let trained = train(&model.config, data, seed, common)?;
            self.0.get_or_init(|| trained);
        }
        let Trained { states, params } = self.0.get().expect("it has been trained");
        let layout = session.layout().clone();
        let state = |name: &str| layout.states().find(|(_, decl)| decl.name == name).map(|(id, _)| id);
        let param = |path: &str| layout.params().find(|(_, decl)| decl.path == path).map(|(id, _)| id);
        for (name, value) in states {
            session.write(state(name).expect("declared alike"), value)?;
        }
        for (path, value) in params {
            session.write_param(param(path).expect("declared alike"), value)?;
        }
        Ok(())
    }

    /// Divides the running standard deviations of the norms in the last block of a session's encoder by a factor, as if
    /// they came from images this much darker. Two of the norms follow each other, so that the features grow by nearly
    /// the square of the factor; the epsilon of the norms reduces the growth.
    ///
    /// # Errors
    /// If the session's device fails.
    pub fn darken(session: &mut Session, model: &ResNet, factor: f64) -> Result<()> {
        let units = model.blocks.last().into_iter().flat_map(|block| block.units.iter().chain(&block.shortcut));
        for norm in units.filter_map(|unit| unit.norm.batch()) {
            let running = session.read(norm.running)?;
            let (shape, values) = (running.shape().clone(), running.to_f64());
            let divided =
                |(i, value): (usize, &f64)| if i < values.len() / 2 { *value } else { value / (factor * factor) };
            let darker: Vec<f32> = values.iter().enumerate().map(|of| divided(of) as f32).collect();
            session.write(norm.running, &Array::new(shape, darker))?;
        }
        Ok(())
    }
}

fn train(config: &ResNetConfig, data: &ImageData, seed: u64, common: &Common) -> Result<Trained> {
    let mut store = Store::new();
    let model = ResNet::new(Builder::new(&mut store, seed).at(PATH), config);
    let params = store.params();
    let falling = Schedule::WarmupCosine { base: LR, steps: 0, total: STEPS as u32, init: LR, end: 0.0 };
    let sgd = SgdConfig { lr: falling.into(), momentum: MOMENTUM, ..SgdConfig::default() };
    let sgd = Sgd::new(&mut store, &params, sgd);
    let mut trainer = Trainer::new(&mut store, &params, sgd, TrainerConfig::default(), move |batch| {
        model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
    });
    let mut session = Session::new(Box::new(CpuBackend::new(common.threads.into())?), store)?;
    let order = LoaderConfig { batch: BATCH, keep_last: false, seed, ..LoaderConfig::default() };
    for batch in Loader::new(data.clone(), order, Position::default())?.take(STEPS) {
        trainer.step(&mut session, &batch?.inputs())?;
    }
    session.wait()?;
    let layout = session.layout().clone();
    let buffers = wgrad_nn::Buffers::of(&layout);
    let mut trained = Trained { states: vec![], params: vec![] };
    for &state in buffers.states() {
        trained.states.push((layout.state(state).name.clone(), session.read(state)?));
    }
    for (param, decl) in layout.params() {
        trained.params.push((decl.path.clone(), session.read_param(param)?));
    }
    Ok(trained)
}
