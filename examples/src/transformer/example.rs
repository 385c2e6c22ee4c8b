//! The example: a decoder, its optimizer, a text in windows, and remarks on its attention.

use super::{
    config::{Config, Update},
    sample::sample,
};
use crate::{
    Result,
    cli::Common,
    device::Place,
    run::{self, Example, Network, Objective, Plan, Runnable, Settings, name_of},
};
use wgrad::{Array, Optimizer, Param, ParamSet, Program, Session, Store, Tensor};
use wgrad_nn::{
    Builder, Gpt, GptConfig, TrainerConfig,
    data::{Batch, Text, Vocabulary},
    diagnosis::Setup,
    optim::{AdamW, AdamWConfig, Sgd, SgdConfig},
    probe,
};

/// The largest number of windows of held-out text in an evaluation.
const HELD_OUT: usize = 256;
/// The number of windows in a batch of an evaluation.
const AT_ONCE: usize = 32;

/// A decoder with its vocabulary.
#[derive(Clone)]
struct Decoder {
    model: Gpt,
    vocabulary: Vocabulary,
    divisor: f64,
    /// The number of characters to sample at the end, and the seed of the sample.
    sample: usize,
    seed: u64,
}

/// A model before it moves to a device, its optimizer, and the plan of its training.
struct Recipe {
    store: Store,
    network: Decoder,
    params: ParamSet,
    optimizer: Box<dyn Optimizer>,
    plan: Plan<Text>,
}

impl Recipe {
    fn new(config: &Config, mut store: Store, seed: u64) -> Result<Self> {
        let text = config.read(seed)?;
        let vocabulary = text.vocabulary().clone();
        let gpt = GptConfig { vocabulary: vocabulary.len(), ..config.model.clone() };
        let model = Gpt::new(Builder::new(&mut store, seed), &gpt);
        let params = store.params();
        let lr = config.lr.into();
        let optimizer: Box<dyn Optimizer> = match config.update {
            Update::AdamW => Box::new(AdamW::new(&mut store, &params, AdamWConfig { lr, ..AdamWConfig::default() })),
            Update::Momentum(momentum) => {
                Box::new(Sgd::new(&mut store, &params, SgdConfig { lr, momentum, ..SgdConfig::default() }))
            }
        };
        let settings = Settings {
            example: "transformer",
            case: name_of(config.case),
            fix: name_of(config.fix),
            batch: config.batch,
            steps: config.steps,
            evaluate_every: config.evaluate_every,
            metric: config.metric(),
            solved: f64::NAN,
            seed,
        };
        let plan = Plan {
            settings,
            identity: vec![
                ("size", name_of(config.size)),
                ("text", text.fingerprint().into()),
                (VOCABULARY, vocabulary.characters()),
                ("seed", seed.to_string()),
            ],
            training: config.training.clone(),
            trainer: TrainerConfig {
                clip_norm: config.clip,
                loss_scale: config.loss_scale.clone(),
                ..TrainerConfig::default()
            },
            held_out: held_out(&text),
            data: text,
            seed,
        };
        let network = Decoder { model, vocabulary, divisor: config.divisor, sample: config.sample, seed };
        Ok(Self { store, network, params, optimizer, plan })
    }
}

/// The entry of a checkpoint's metadata for the characters of a model.
pub(super) const VOCABULARY: &str = "vocabulary";

/// The held-out windows in batches; evenly spaced windows if there are more than [`HELD_OUT`].
pub(crate) fn held_out(text: &Text) -> Vec<Batch> {
    let windows = text.validation_windows();
    let wanted = windows.min(HELD_OUT);
    let chosen: Vec<Batch> = (0..wanted).map(|i| text.validation(i * windows / wanted, 1)).collect();
    let joined = |part: &[Batch], name: &str| {
        let symbols = part.iter().flat_map(|batch| batch[name].to_f64()).map(|symbol| symbol as u32);
        Array::new([part.len(), text.context()], symbols.collect::<Vec<u32>>())
    };
    chosen.chunks(AT_ONCE).map(|part| Batch::new(joined(part, "x"), joined(part, "y"))).collect()
}

/// The program of one training step, and the store of its states.
///
/// # Errors
/// If the text cannot be read.
pub fn step(config: &Config, seed: u64) -> Result<(Store, Program)> {
    let Recipe { store, network, params, optimizer, plan } = Recipe::new(config, Store::new(), seed)?;
    run::program(store, &network, &params, optimizer, plan)
}

impl Runnable for Config {
    fn open(&self, common: &Common, place: &Place, setup: &Setup) -> Result<(Box<dyn Example>, Session)> {
        let Recipe { store, network, params, optimizer, plan } = Recipe::new(self, common.rank.store(), common.seed())?;
        let weights: Vec<Param> = network.model.blocks.iter().map(|block| block.attention.qkv.weight).collect();
        let (example, mut session) = run::open(store, network, &params, optimizer, plan, place, setup)?;
        for weight in weights.into_iter().filter(|_| self.qk_gain != 1.0) {
            enlarge(&mut session, weight, self.qk_gain)?;
        }
        Ok((example, session))
    }
}

/// Multiplies the weights of queries and keys, which lie before the weights of values.
pub(crate) fn enlarge(session: &mut Session, qkv: Param, gain: f64) -> Result<()> {
    let weight = session.read_param(qkv)?;
    let mut values: Vec<f32> = weight.to_f64().iter().map(|value| *value as f32).collect();
    let queries_and_keys = values.len() / 3 * 2;
    values[..queries_and_keys].iter_mut().for_each(|value| *value *= gain as f32);
    Ok(session.write_param(qkv, &Array::new(weight.shape(), values))?)
}

impl Network for Decoder {
    fn loss<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Objective<'t> {
        let (loss, divisor) = (self.model.loss(x, y, true), self.divisor);
        // Only the gradient is divided; the reported loss stays as it is.
        let loss = if divisor == 1.0 { loss } else { loss.on_grad(move |g| g / divisor) };
        loss.into()
    }

    fn metric<'t>(&self, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        self.model.loss(x, y, false)
    }

    fn remarks(&self, session: &mut Session, held_out: &Batch) -> Result<Vec<String>> {
        let mut lines = self.attention(session, &held_out["x"])?;
        if self.sample > 0 {
            lines.extend(sample(session, &self.model, &self.vocabulary, self.sample, self.seed)?);
        }
        Ok(lines)
    }
}

impl Decoder {
    /// Describes the attention of each block: the range and the entropy of its scores.
    fn attention(&self, session: &mut Session, x: &Array) -> Result<Vec<String>> {
        session.run_cached("attention", &[("x", x)], |t| {
            let logits = t.with_probe(watch_scores, || self.model.forward(t.input_like("x", x), false));
            t.tap("logits", logits.abs().max());
        })?;
        session.wait()?;
        let taps = session.taps()?;
        let taps = taps.last().expect("a run has just ended");
        let blocks = taps.iter().filter_map(|(name, _)| name.strip_suffix("/low"));
        let line = |block: &str| {
            let value = |what: &str| taps.scalar(&format!("{block}/{what}")).expect("tapped with the lowest");
            let (low, high, entropy) = (value("low"), value("high"), value("entropy"));
            format!("  {block}: scores from {low:.1} to {high:.1}, entropy {entropy:.2} nats")
        };
        let most = (1..=x.shape()[1]).map(|seen| (seen as f64).ln()).sum::<f64>() / x.shape()[1] as f64;
        let head =
            format!("Attention on held-out text (entropy {most:.2} where each position attends to all before it):");
        Ok(std::iter::once(head).chain(blocks.map(line)).collect())
    }
}

/// Taps the range and the entropy of attention's scores.
fn watch_scores<'t>(path: &str, scores: Tensor<'t>) -> Tensor<'t> {
    if let Some(block) = path.strip_suffix("/attention/scores") {
        let (low, high) = probe::range(scores);
        for (what, value) in [("low", low), ("high", high), ("entropy", probe::entropy(scores))] {
            scores.tape().tap(&format!("{block}/{what}"), value);
        }
    }
    scores
}
