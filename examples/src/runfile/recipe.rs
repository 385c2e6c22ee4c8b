//! Makes the model, data, optimizer and trainer that a run file describes.

use super::{
    config::{DataName, Decay, Model, OptimizerConfig, OptimizerName, RunFile, ScheduleConfig, TwoTowerModel},
    feed::{Rows, Treated},
    model::{Judged, Outputs, Targets},
};
use crate::{
    Error, Result,
    cli::Common,
    device::Place,
    report::Metric,
    run::{self, Data, Example, Network, Plan, Runnable, Settings, Tasks},
    transformer::{self, held_out as held_out_windows},
    two_tower::{self, Described, Describer, Encoder, PATH},
};
use wgrad::{Layout, Noise, Optimizer, ParamSet, Rng, Session, Store};
use wgrad_nn::{
    BlockKind, Bridge, Builder, Cell, Dropout, Gpt, GptConfig, Init, Linear, Mlp, MlpConfig, Recurrent, RecurrentInit,
    ResNet, ResNetConfig, Schedule, TrainerConfig, TwoTower, TwoTowerConfig,
    data::{Adding, Batch, Dataset, Digits, Friedman, ImageData, Spirals, Split, Task, TemporalOrder, Text},
    diagnosis::Setup,
    optim::{
        Adagrad, AdagradConfig, Adam, AdamConfig, AdamW, AdamWConfig, Group, Lion, LionConfig, Muon, MuonConfig,
        MuonOthers, MuonScale, RmsProp, RmsPropConfig, Sam, Sgd, SgdConfig,
    },
    paths,
    track::Setting,
};

/// The number of held-out samples of a generated task.
const HELD_OUT: usize = 1000;
/// The number of evaluations during a run.
const EVALUATIONS: usize = 10;

impl RunFile {
    /// The metric of the data, with its name in the report.
    fn metric(&self) -> Metric {
        let (name, rising) = match self.data {
            DataName::Regression | DataName::Adding => ("mse", false),
            DataName::Text => ("nats", false),
            _ => ("accuracy", true),
        };
        Metric { name, target: self.target, rising }
    }

    fn targets(&self) -> Targets {
        match self.data {
            DataName::Regression | DataName::Adding => Targets::Numbers,
            DataName::Text => Targets::Symbols,
            _ => Targets::Classes,
        }
    }

    /// The file's name without its extension.
    fn name(&self) -> String {
        self.path.file_stem().map_or("run".into(), |name| name.to_string_lossy().into_owned())
    }

    /// The data as a task of sequences. All models use it, except those of images and of text.
    fn task(&self, length: usize) -> Box<dyn Task> {
        match self.data {
            DataName::Spirals => Box::new(Spirals::new(self.seed)),
            DataName::Regression => Box::new(Friedman::new(self.seed)),
            DataName::TemporalOrder => Box::new(TemporalOrder::new(length, self.seed)),
            DataName::Adding => Box::new(Adding::new(length, self.seed)),
            DataName::Digits | DataName::Text => Box::new(Digits::embedded(self.seed)),
        }
    }

    fn dropout(&self, store: &mut Store, p: f64) -> Option<Dropout> {
        (p > 0.0).then(|| Dropout::new(p, Rng::new(store, "dropout", self.seed)))
    }

    /// The parameters that a pattern selects: each parameter whose path matches, or lies below a path that matches.
    fn select(&self, layout: &Layout, table: &str, pattern: &str) -> Result<ParamSet> {
        let below = format!("{pattern}/**");
        let of = |path: &str| paths::matches(pattern, path) || paths::matches(&below, path);
        let found: ParamSet = layout.params().filter(|(_, param)| of(&param.path)).map(|(id, _)| id).collect();
        if found.is_empty() {
            let known: Vec<&str> = layout.params().map(|(_, param)| param.path.as_str()).collect();
            let path = self.path.display();
            return Err(Error::Usage(format!(
                "{path}: {pattern:?} in [{table}] matches no parameter; they are {}",
                known.join(", ")
            )));
        }
        Ok(found)
    }

    /// The parameters that are trained.
    fn trained(&self, layout: &Layout, all: ParamSet, table: &str) -> Result<ParamSet> {
        let frozen =
            self.freeze.iter().map(|pattern| self.select(layout, table, pattern)).collect::<Result<Vec<_>>>()?;
        let trained: ParamSet = all.iter().filter(|param| !frozen.iter().any(|set| set.contains(*param))).collect();
        if trained.is_empty() {
            return Err(Error::Usage(format!("{}: [{table}] freezes every parameter", self.path.display())));
        }
        Ok(trained)
    }

    fn optimizer(&self, store: &mut Store, params: &ParamSet) -> Result<Box<dyn Optimizer>> {
        let OptimizerConfig { kind, lr, momentum, betas, eps, weight_decay, amsgrad, exclude, group_lr } =
            self.optimizer.clone();
        let mut groups = vec![];
        let mut taken = ParamSet::default();
        for (pattern, factor) in group_lr {
            let matched = self.select(store.layout(), "optimizer.group_lr", &pattern)?;
            let of: ParamSet = matched.iter().filter(|p| params.contains(*p) && !taken.contains(*p)).collect();
            taken = taken.iter().chain(of.iter()).collect();
            groups.push(Group { params: of, lr: Some(self.schedule.rate(lr * factor).into()), weight_decay: None });
        }
        let excluded = exclude
            .iter()
            .map(|pattern| self.select(store.layout(), "optimizer", pattern))
            .collect::<Result<Vec<_>>>()?;
        let exclude: ParamSet = excluded.iter().flat_map(ParamSet::iter).collect();
        let lr = self.schedule.rate(lr).into();
        let of_adam = betas.unwrap_or(AdamConfig::default().betas);
        let of_muon = momentum.unwrap_or(MuonConfig::default().momentum);
        let momentum = momentum.unwrap_or(0.0);
        if kind == OptimizerName::Muon && store.shards() > 1 {
            let path = self.path.display();
            return Err(Error::Usage(format!(
                "{path}: --shard: muon needs whole matrices, so ranks cannot share them out"
            )));
        }
        Ok(match kind {
            OptimizerName::Sgd => Box::new(Sgd::new(
                store,
                params,
                SgdConfig { lr, momentum, weight_decay, groups, ..SgdConfig::default() },
            )),
            OptimizerName::Adam => Box::new(Adam::new(
                store,
                params,
                AdamConfig { lr, betas: of_adam, eps, weight_decay, amsgrad, groups, ..AdamConfig::default() },
            )),
            OptimizerName::AdamW => Box::new(AdamW::new(
                store,
                params,
                AdamWConfig { lr, betas: of_adam, eps, weight_decay, amsgrad, groups, ..AdamWConfig::default() },
            )),
            OptimizerName::RmsProp => Box::new(RmsProp::new(
                store,
                params,
                RmsPropConfig { lr, eps, momentum, weight_decay, groups, ..RmsPropConfig::default() },
            )),
            OptimizerName::Adagrad => Box::new(Adagrad::new(
                store,
                params,
                AdagradConfig { lr, eps, weight_decay, groups, ..AdagradConfig::default() },
            )),
            OptimizerName::Lion => {
                let base = LionConfig::default();
                let betas = betas.unwrap_or(base.betas);
                Box::new(Lion::new(store, params, LionConfig { lr, betas, weight_decay, groups, ..base }))
            }
            OptimizerName::Muon => {
                let others = MuonOthers { lr: lr.clone(), betas: of_adam, eps, weight_decay };
                // Steps of the size of AdamW's: one rate and one decay are for both.
                let (scale, momentum) = (MuonScale::MatchAdamW, of_muon);
                let config =
                    MuonConfig { lr, momentum, scale, weight_decay, exclude, others, groups, ..MuonConfig::default() };
                Box::new(Muon::new(store, params, config))
            }
        })
    }

    /// The passes on gradients, and the loss scale.
    fn passes(&self) -> TrainerConfig {
        let t = &self.trainer;
        TrainerConfig {
            weighting: t.weighting,
            loss_scale: t.loss_scale.clone(),
            noise: t.noise.map(|sigma| Noise::Fixed { sigma }),
            sam: t.sam.map(Sam::new),
            centralize: t.centralize,
            agc: t.agc,
            clip_norm: t.clip_norm,
            clip_value: t.clip_value,
            ..TrainerConfig::default()
        }
    }

    fn settings(&self, example: &'static str) -> Settings {
        Settings {
            example,
            case: self.name(),
            fix: "none".into(),
            batch: self.batch,
            steps: self.steps,
            evaluate_every: self.steps.div_ceil(EVALUATIONS),
            metric: self.metric(),
            solved: f64::NAN,
            seed: self.seed,
        }
    }

    /// The plan of a run on this data.
    fn plan<D>(&self, example: &'static str, data: D, held_out: Vec<Batch>) -> Plan<Treated<D>> {
        let held_out = held_out.into_iter().map(|batch| self.inputs.held_out(batch)).collect();
        Plan {
            settings: self.settings(example),
            identity: vec![("model", example.into()), ("seed", self.seed.to_string())],
            training: self.training.clone(),
            trainer: self.passes(),
            data: Treated { data, inputs: self.inputs.clone(), seed: self.seed },
            held_out,
            seed: self.seed,
        }
    }

    /// Declares the optimizer, and moves the run to a device.
    fn start<N: Network, D: Data>(
        &self,
        mut store: Store,
        network: N,
        trained: ParamSet,
        plan: Plan<D>,
        (place, setup): (&Place, &Setup),
    ) -> Result<(Box<dyn Example>, Session)> {
        let optimizer = self.optimizer(&mut store, &trained)?;
        run::open(store, network, &trained, optimizer, plan, place, setup)
    }

    fn judged(&self, model: Outputs, dropout: Option<Dropout>) -> Judged {
        Judged { model, targets: self.targets(), loss: self.loss.clone(), dropout }
    }
}

impl ScheduleConfig {
    /// The schedule of the learning rate, with `base` as its peak.
    fn rate(&self, base: f64) -> Schedule {
        let ScheduleConfig { warmup: steps, decay, over: total } = *self;
        let (init, end) = (base / f64::from(steps.max(1)), 0.0);
        match decay {
            Decay::Constant if steps == 0 => base.into(),
            Decay::Constant => Schedule::warmup(base, steps),
            Decay::Linear => Schedule::WarmupLinear { base, steps, total, init, end },
            Decay::Cosine => Schedule::WarmupCosine { base, steps, total, init, end },
        }
    }
}

impl Runnable for RunFile {
    fn parameters(&self) -> Vec<(String, Setting)> {
        self.keys.clone()
    }

    fn open(&self, common: &Common, place: &Place, setup: &Setup) -> Result<(Box<dyn Example>, Session)> {
        let mut store = common.rank.store();
        match &self.model {
            Model::Mlp(model) => {
                let data = Rows(self.task(0));
                let dropout = self.dropout(&mut store, model.dropout);
                let config = MlpConfig {
                    inputs: data.features(),
                    width: model.width,
                    depth: model.depth,
                    outputs: data.0.outputs(),
                    activation: model.activation,
                    norm: model.norm,
                    residual: model.residual,
                    dropout,
                    init: model.init.clone(),
                    bias: model.bias,
                    detach_after: model.detach_after,
                };
                let mlp = Mlp::new(Builder::new(&mut store, self.seed), &config);
                if model.unused {
                    Linear::new(
                        Builder::new(&mut store, self.seed).at("unused"),
                        model.width,
                        model.width,
                        &model.init,
                    );
                }
                let trained = self.trained(store.layout(), store.params(), "mlp")?;
                let held_out = vec![data.held_out(HELD_OUT)];
                let plan = self.plan("mlp", data, held_out);
                self.start(store, self.judged(Outputs::Mlp(mlp), dropout), trained, plan, (place, setup))
            }
            Model::Rnn(model) => {
                let data = self.task(model.length);
                let init = match model.cell {
                    Cell::Tanh | Cell::Sigmoid => {
                        let hidden = Init::SparseSpectral { nonzeros: 15, radius: model.spectral_radius };
                        RecurrentInit { hidden, ..RecurrentInit::smart_tanh() }
                    }
                    gated => RecurrentInit::of(gated),
                };
                let mut b = Builder::new(&mut store, self.seed);
                let recurrent = Recurrent::new(b.at("rnn"), model.cell, data.inputs(), model.hidden, &init);
                let xavier = Init::XavierUniform { gain: 1.0 };
                let head = Linear::new(b.at("head"), model.hidden, data.outputs(), &xavier);
                let trained = self.trained(store.layout(), store.params(), "rnn")?;
                let held_out = vec![data.held_out(HELD_OUT)];
                let plan = self.plan("rnn", Tasks(data), held_out);
                self.start(store, self.judged(Outputs::Rnn(recurrent, head), None), trained, plan, (place, setup))
            }
            Model::Transformer(model) => {
                let text = match &self.text {
                    Some(path) => Text::read(path, model.context, self.seed)?,
                    None => Text::new(transformer::SOURCES, model.context, self.seed)?,
                };
                let dropout = self.dropout(&mut store, model.dropout);
                let config = GptConfig {
                    vocabulary: text.vocabulary().len(),
                    context: model.context,
                    width: model.width,
                    layers: model.layers,
                    heads: model.heads,
                    hidden: model.hidden,
                    place: model.place,
                    qk_norm: model.qk_norm,
                    temperature: model.temperature,
                    tied: model.tied,
                    dropout,
                    std: model.std,
                    ..GptConfig::small(0)
                };
                let gpt = Gpt::new(Builder::new(&mut store, self.seed), &config);
                let weights: Vec<_> = gpt.blocks.iter().map(|block| block.attention.qkv.weight).collect();
                let trained = self.trained(store.layout(), store.params(), "transformer")?;
                let mut plan = self.plan("transformer", text.clone(), held_out_windows(&text));
                plan.identity.push(("text", text.fingerprint().into()));
                let network = self.judged(Outputs::Gpt(gpt), dropout);
                let (example, mut session) = self.start(store, network, trained, plan, (place, setup))?;
                for weight in weights.into_iter().filter(|_| model.score_gain != 1.0) {
                    transformer::enlarge(&mut session, weight, model.score_gain)?;
                }
                Ok((example, session))
            }
            Model::ResNet(model) => {
                let Split { train, test } = Digits::embedded(self.seed).images();
                let moments = train.moments();
                let test = ImageData::plain(test, moments.clone());
                let sized = ResNetConfig::of_width(model.width, model.depth, BlockKind::Basic, 1, train.classes())?;
                let config = ResNetConfig {
                    residual: model.residual,
                    norm: model.norm,
                    silent: true,
                    activation: model.activation,
                    init: model.init.clone(),
                    ..sized
                };
                let resnet = ResNet::new(Builder::new(&mut store, self.seed), &config);
                let trained = self.trained(store.layout(), store.params(), "resnet")?;
                let held_out = vec![test.pick(&(0..test.len()).collect::<Vec<_>>(), 0)];
                let plan = self.plan("resnet", ImageData::plain(train, moments), held_out);
                self.start(store, self.judged(Outputs::ResNet(resnet), None), trained, plan, (place, setup))
            }
            Model::TwoTower(model) => self.towers(store, model, common, (place, setup)),
        }
    }
}

impl RunFile {
    fn towers(
        &self,
        mut store: Store,
        model: &TwoTowerModel,
        common: &Common,
        (place, setup): (&Place, &Setup),
    ) -> Result<(Box<dyn Example>, Session)> {
        let [train, test] = Described::digits(self.seed);
        let descriptions = train.descriptions.clone();
        let sizes = two_tower::sizes(&descriptions);
        let config = TwoTowerConfig { bridge: model.bridge, feature_scale: model.feature_scale, ..sizes };
        let mut towers = TwoTower::new(Builder::new(&mut store, self.seed), &config);
        let layout = store.layout();
        let below = |part: &str| paths::select(layout, &format!("{part}/**"));
        let (vision, mut learning) = (below(PATH), store.params());
        // Two parts are not trained, as in the example. The gradient of the bridge's scale is as large as the features
        // that it scales down. Without the encoder's own loss, no gradient reaches the encoder's head.
        let fixed = [(matches!(model.bridge, Bridge::Scale(_)), "bridge"), (model.vision_loss == 0.0, "vision/head")];
        for (_, part) in fixed.into_iter().filter(|(fixed, _)| *fixed) {
            let of = below(part);
            learning = learning.iter().filter(|param| !of.contains(*param)).collect();
        }
        let trained = self.trained(layout, learning, "two-tower")?;
        towers.config.frozen = vision.iter().all(|param| !trained.contains(param));
        let text = trained.iter().filter(|param| !vision.contains(*param)).collect();
        let held_out = vec![test.pick(&(0..test.len()).collect::<Vec<_>>(), 0)];
        let (images, encoder) = (train.images.clone(), towers.vision.clone());
        let plan = self.plan("two-tower", train, held_out);
        let network = Describer {
            own_loss: Some(model.vision_loss).filter(|weight| *weight > 0.0),
            model: towers,
            descriptions,
            vision,
            text,
            trained: trained.clone(),
            weight: self.loss.weight,
        };
        let (example, mut session) = self.start(store, network, trained, plan, (place, setup))?;
        Encoder::default().write(&mut session, &encoder, &images, self.seed, common)?;
        Ok((example, session))
    }
}
