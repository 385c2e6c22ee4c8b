//! The example: a network for images, its trainer and its data.

use super::{config::Config, data::Data};
use crate::{
    Result,
    cli::Common,
    device::Place,
    run::{self, Example, Network, Objective, Plan, Runnable, Settings, name_of},
};
use wgrad::{Optimizer, ParamSet, Program, Session, Store, Tensor};
use wgrad_nn::{
    Builder, ResNet, Summary, TrainerConfig,
    data::{Batch, ImageData},
    diagnosis::Setup,
    optim::{Sgd, SgdConfig},
    probe,
};

/// A network with its parameters.
#[derive(Clone)]
struct Classifier {
    model: ResNet,
    params: ParamSet,
}

impl Network for Classifier {
    fn loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Objective<'t> {
        self.model.forward(x, true).cross_entropy(y).into()
    }

    fn metric<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        self.model.forward(x, false).accuracy(y)
    }

    fn remarks(&self, session: &mut Session, held_out: &Batch) -> Result<Vec<String>> {
        let summary = Summary::new(session.layout(), &self.params).to_string();
        let sums = summary.lines().last().unwrap_or_default();
        let kind = if self.model.config.residual { "residual" } else { "plain" };
        let depth = self.model.config.depth();
        Ok(vec![format!("A {kind} network of {depth} layers: {sums}"), self.dead(session, held_out)?])
    }
}

impl Classifier {
    /// Describes the share of dead units in each stage: units at 0 for every image of a batch, at every position.
    fn dead(&self, session: &mut Session, batch: &Batch) -> Result<String> {
        let activation = self.model.config.activation;
        let inputs = [("x", &batch["x"])];
        let step = session.record(|t| {
            let show_dead = move |path: &str, z: Tensor<'_>| {
                // The activation rises with its input, so its largest value is at the largest input.
                let largest = activation.apply(z.max_axes(&[0, 2, 3]));
                z.tape().tap(path, probe::zero_fraction(largest));
            };
            t.with_probe(
                move |path, z| {
                    if path.ends_with("/z") {
                        show_dead(path, z);
                    }
                    z
                },
                || self.model.forward(t.input_like("x", &batch["x"]), false),
            );
        })?;
        session.run(&step, &inputs)?;
        session.wait()?;
        let taps = session.taps()?;
        let mut layers = step.taps().iter().map(|tap| taps[0].scalar(&tap.name).expect("it has run"));
        let mut stages = vec![("the stem".to_string(), 1)];
        let units = |blocks: usize| blocks * self.model.blocks[0].units.len();
        let of_stage = |(i, (_, blocks)): (usize, &(usize, usize))| (format!("stage {}", i + 1), units(*blocks));
        stages.extend(self.model.config.stages.iter().enumerate().map(of_stage));
        let mut share = |(name, count): (String, usize)| {
            let sum: f64 = layers.by_ref().take(count).sum();
            format!("{:.0} % in {name}", 100.0 * sum / count as f64)
        };
        let shares: Vec<String> = stages.into_iter().map(&mut share).collect();
        Ok(format!("Dead units, at 0 for all of {} held-out images: {}", batch["x"].shape()[0], shares.join(", ")))
    }
}

/// A network before it moves to a device, its optimizer, and the plan of its training.
struct Recipe {
    store: Store,
    network: Classifier,
    optimizer: Box<dyn Optimizer>,
    plan: Plan<ImageData>,
}

impl Recipe {
    fn new(config: &Config, mut store: Store, seed: u64) -> Result<Self> {
        let Data { train, held_out } = Data::read(config, seed)?;
        let model = ResNet::new(Builder::new(&mut store, seed), &config.network(&train.images));
        let params = store.params();
        let sgd = SgdConfig {
            lr: config.lr.into(),
            momentum: config.momentum,
            weight_decay: config.weight_decay,
            ..SgdConfig::default()
        };
        let optimizer = Box::new(Sgd::new(&mut store, &params, sgd));
        let settings = Settings {
            example: "resnet",
            case: name_of(config.case),
            fix: name_of(config.fix),
            batch: config.batch,
            steps: config.steps,
            evaluate_every: config.evaluate_every,
            metric: config.metric(&train.images),
            solved: config.solved,
            seed,
        };
        let shape = train.images.shape();
        let identity = vec![
            ("depth", config.depth.to_string()),
            ("images", format!("{} of {shape:?}", train.images.len())),
            ("batch", config.batch.to_string()),
            ("seed", seed.to_string()),
        ];
        // Adaptive clipping includes the last layer, which the paper leaves out. Nothing normalises the inputs of that
        // layer here, and runs that did not clip it missed the target.
        let trainer = TrainerConfig { agc: config.agc, clip_norm: config.clip_norm, ..TrainerConfig::default() };
        let training = config.training.clone();
        let plan = Plan { settings, identity, training, trainer, data: train, held_out, seed };
        Ok(Self { store, network: Classifier { model, params }, optimizer, plan })
    }
}

/// The program of one training step, and the store of its states.
///
/// # Errors
/// If the images cannot be read.
pub fn step(config: &Config, seed: u64) -> Result<(Store, Program)> {
    let Recipe { store, network, optimizer, plan } = Recipe::new(config, Store::new(), seed)?;
    let params = network.params.clone();
    run::program(store, &network, &params, optimizer, plan)
}

impl Runnable for Config {
    fn open(&self, common: &Common, place: &Place, setup: &Setup) -> Result<(Box<dyn Example>, Session)> {
        let Recipe { store, network, optimizer, plan } = Recipe::new(self, common.rank.store(), common.seed())?;
        let params = network.params.clone();
        run::open(store, network, &params, optimizer, plan, place, setup)
    }
}
