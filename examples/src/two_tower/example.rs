//! The example: two towers, their trainer and their data.

use super::{
    config::Config,
    data::{Described, Descriptions},
    encoder::{Encoder, PATH},
};
use crate::{
    Result,
    cli::Common,
    device::Place,
    run::{self, Example, Network, Objective, Plan, Runnable, Settings, name_of},
};
use wgrad::{Array, DType, Optimizer, ParamSet, Program, Session, Store, Tensor};
use wgrad_nn::{
    Bridge, Builder, Summary, TrainerConfig, TwoTower,
    data::{Batch, Dataset},
    diagnosis::Setup,
    optim::{Group, Sgd, SgdConfig},
    paths, probe,
};

/// A model with its towers' parameters.
#[derive(Clone)]
pub(crate) struct Describer {
    /// The model.
    pub model: TwoTower,
    /// The descriptions that the model learns.
    pub descriptions: Descriptions,
    /// The weight of the encoder's own loss.
    pub own_loss: Option<f64>,
    /// The encoder's parameters.
    pub vision: ParamSet,
    /// The trained parameters outside the encoder.
    pub text: ParamSet,
    /// All trained parameters.
    pub trained: ParamSet,
    /// The factor of the loss.
    pub weight: f64,
}

/// The number of held-out images whose descriptions are shown.
const SHOWN: usize = 3;

impl Describer {
    /// The loss of the descriptions, plus the weighted loss of the encoder's classes if there is one.
    fn objective<'t>(&self, x: Tensor<'t>, y: Tensor<'t>, training: bool) -> Tensor<'t> {
        let features = self.model.encode(x, training);
        let loss = self.model.loss(features, symbols(y), training);
        let Some(weight) = self.own_loss else { return loss };
        loss + self.model.vision.head.forward(features).cross_entropy(y.index(1, 0)) * weight
    }

    /// The likeliest symbol at each position of descriptions, given the symbols before it: u32 `[batch, time]`.
    fn likeliest<'t>(&self, x: Tensor<'t>, symbols: Tensor<'t>) -> Tensor<'t> {
        let before = symbols.slice(1, 0, symbols.shape()[1] - 1);
        self.model.forward(x, before, false).argmax(2)
    }

    /// Describes the norms of the features, of the projection's inputs, and of the gradient of each tower.
    fn norms(&self, session: &mut Session, batch: &Batch) -> Result<[String; 2]> {
        let step = session.record(|t| {
            let (x, y) = (t.input_like("x", &batch["x"]), t.input_like("y", &batch["y"]));
            let loss = t.with_probe(
                |path, x| {
                    if ["features", "projection/x"].contains(&path) {
                        x.tape().tap(path, probe::row_norm(x));
                    }
                    x
                },
                || self.objective(x, y, false),
            );
            t.tap("vision", loss.grad(&self.vision).norm());
            t.tap("text", loss.grad(&self.text).norm());
        })?;
        session.run(&step, &batch.inputs())?;
        session.wait()?;
        let taps = session.taps()?;
        let [features, entering, vision, text] = ["features", "projection/x", "vision", "text"]
            .map(|name| taps.last().and_then(|taps| taps.scalar(name)).expect("tapped by the step"));
        let frozen = if self.model.config.frozen { ", which is frozen" } else { "" };
        Ok([
            format!("Norm of an image's features: {features:.1e}; of what enters the projection: {entering:.1e}"),
            format!(
                "Norm of the gradient: {vision:.1e} for the encoder{frozen}; {text:.1e} for projection and decoder"
            ),
        ])
    }

    /// Describes an image, symbol by symbol.
    fn describe(&self, session: &mut Session, image: &Array) -> Result<String> {
        let time = self.descriptions.length();
        let mut symbols = vec![0u32; time];
        for at in 0..time {
            // The decoder is causal, so the symbols after a position do not matter.
            let y = Array::new([1, time], symbols.clone());
            let inputs = [("x", image), ("y", &y)];
            let likeliest =
                session.eval(&inputs, |t| self.likeliest(t.input_like("x", image), t.input_like("y", &y)))?;
            symbols[at] = likeliest.item(at) as u32;
        }
        Ok(self.descriptions.decode(&symbols))
    }
}

/// The symbols of descriptions, which follow the class in each row.
fn symbols(y: Tensor<'_>) -> Tensor<'_> {
    y.slice(1, 1, y.shape()[1] - 1)
}

impl Network for Describer {
    fn loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Objective<'t> {
        let loss = self.objective(x, y, true);
        match self.weight {
            1.0 => loss.into(),
            weight => Objective { value: loss * weight, mean: Some(loss) },
        }
    }

    /// The share of images whose description is right to the last symbol. The decoder's own description of an image is
    /// right exactly if each symbol is right given the right symbols before it.
    fn metric<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        let symbols = symbols(y);
        self.likeliest(x, symbols).equals(symbols).cast(DType::F32).min_axes(&[1]).mean()
    }

    fn remarks(&self, session: &mut Session, held_out: &Batch) -> Result<Vec<String>> {
        let summary = Summary::new(session.layout(), &self.trained).to_string();
        let mut remarks = vec![format!("Two towers: {}", summary.lines().last().unwrap_or_default())];
        remarks.extend(self.norms(session, held_out)?);
        let (x, y) = (&held_out["x"], &held_out["y"]);
        let shape = x.shape().with(0, 1);
        let size = shape.numel();
        let classes = y.shape()[1];
        let count = x.shape()[0];
        let mut said = vec![];
        for image in (0..SHOWN).map(|i| i * count / SHOWN) {
            let pixels = Array::new(shape.clone(), x.data().slice(image * size..(image + 1) * size));
            said.push(format!("of a {}: {:?}", y.item(image * classes), self.describe(session, &pixels)?));
        }
        remarks.push(format!("What it says {}", said.join(", ")));
        Ok(remarks)
    }
}

/// A model before it moves to a device, its optimizer, and the plan of its training.
struct Recipe {
    store: Store,
    network: Describer,
    optimizer: Box<dyn Optimizer>,
    plan: Plan<Described>,
}

impl Recipe {
    fn new(config: &Config, mut store: Store, seed: u64) -> Self {
        let [train, test] = Described::digits(seed);
        let descriptions = train.descriptions.clone();
        let model = TwoTower::new(Builder::new(&mut store, seed), &config.model(&descriptions));
        let vision = paths::select(store.layout(), &format!("{PATH}/**"));
        let without = |params: &ParamSet, pattern: &str| paths::freeze(store.layout(), params, pattern);
        // The scale is not trained, because its gradient is as large as the features that it scales down.
        let learning = match config.bridge {
            Bridge::Scale(_) => without(&store.params(), "bridge/*"),
            Bridge::Plain | Bridge::Norm => store.params(),
        };
        let text = without(&learning, &format!("{PATH}/**"));
        let trained = match (config.frozen, config.own_loss) {
            (true, _) => text.clone(),
            // Without the encoder's own loss, no gradient reaches the encoder's head.
            (false, None) => without(&learning, &format!("{PATH}/head/*")),
            (false, Some(_)) => learning,
        };
        let slower =
            |factor: f64| Group { params: vision.clone(), lr: Some((config.lr * factor).into()), weight_decay: None };
        let sgd = SgdConfig {
            lr: config.lr.into(),
            momentum: config.momentum,
            groups: config.vision_rate.map(slower).into_iter().collect(),
            ..SgdConfig::default()
        };
        let optimizer = Box::new(Sgd::new(&mut store, &trained, sgd));
        let settings = Settings {
            example: "two-tower",
            case: name_of(config.case),
            fix: name_of(config.fix),
            batch: config.batch,
            steps: config.steps,
            evaluate_every: config.evaluate_every,
            metric: config.metric,
            solved: config.solved,
            seed,
        };
        let scale = config.vision_scale.map(|factor| (vision.clone(), factor));
        let trainer = TrainerConfig { scale_grad: scale.into_iter().collect(), ..TrainerConfig::default() };
        let held_out = vec![test.pick(&(0..test.len()).collect::<Vec<_>>(), 0)];
        let plan = Plan {
            settings,
            identity: vec![("seed", seed.to_string())],
            training: config.training.clone(),
            trainer,
            data: train,
            held_out,
            seed,
        };
        let network = Describer { model, descriptions, own_loss: config.own_loss, vision, text, trained, weight: 1.0 };
        Self { store, network, optimizer, plan }
    }
}

/// The program of one training step, and the store of its states. The encoder in the store is untrained, because a
/// program does not depend on values.
///
/// # Errors
/// If the data has no batch.
pub fn step(config: &Config, seed: u64) -> Result<(Store, Program)> {
    let Recipe { store, network, optimizer, plan } = Recipe::new(config, Store::new(), seed);
    let trained = network.trained.clone();
    run::program(store, &network, &trained, optimizer, plan)
}

impl Runnable for Config {
    fn open(&self, common: &Common, place: &Place, setup: &Setup) -> Result<(Box<dyn Example>, Session)> {
        let Recipe { store, network, optimizer, plan } = Recipe::new(self, common.rank.store(), common.seed());
        let (trained, vision) = (network.trained.clone(), network.model.vision.clone());
        let images = plan.data.images.clone();
        let (example, mut session) = run::open(store, network, &trained, optimizer, plan, place, setup)?;
        self.encoder.write(&mut session, &vision, &images, common.seed(), common)?;
        if let Some(factor) = self.darker {
            Encoder::darken(&mut session, &vision, factor)?;
        }
        Ok((example, session))
    }
}
