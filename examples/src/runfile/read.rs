//! The reader of run files: the complete file of each model, and the allowed values of each key.

use super::{
    config::{
        DataName, Decay, Inputs, LossConfig, MlpModel, Model, OptimizerConfig, OptimizerName, ResNetModel, RnnModel,
        RunFile, ScheduleConfig, TrainerSettings, TransformerModel, TwoTowerModel, Unguarded,
    },
    document::{self, Entries, Entry, Range, Table, Value, listed},
    words,
};
use crate::{Result, cli::Training};
use std::{fs, path::Path};
use wgrad_nn::{Cell, Init, LossScale, NormKind, track::Setting};

/// Each model's name, its complete file, and the data that it takes.
const MODELS: &[(&str, &str, &[&str])] = &[
    ("mlp", include_str!("defaults/mlp.toml"), &["digits", "spirals", "regression"]),
    ("rnn", include_str!("defaults/rnn.toml"), &["temporal-order", "adding", "digits"]),
    ("transformer", include_str!("defaults/transformer.toml"), &["text"]),
    ("resnet", include_str!("defaults/resnet.toml"), &["digits"]),
    ("two-tower", include_str!("defaults/two-tower.toml"), &["digits"]),
];

/// The names of the models.
pub fn models() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|(name, _, _)| *name)
}

/// The complete file of a model, with comments. It is equal to a file that names the model alone.
pub fn defaults(model: &str) -> Option<&'static str> {
    MODELS.iter().find(|(name, _, _)| *name == model).map(|(_, text, _)| *text)
}

/// The largest size in a model; a larger one is taken for a typing mistake.
const LARGEST: usize = 65_536;
/// The largest number of steps, and of updates of a schedule.
const LONGEST: usize = 1_000_000_000;

impl RunFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`wgrad_nn::Error::Io`] if the file cannot be read; [`crate::Error::RunFile`] about the first invalid line.
    pub fn read(path: &Path) -> Result<Self> {
        let io = |source| wgrad_nn::Error::Io { action: "read", path: path.into(), source };
        let bytes = fs::read(path).map_err(io)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Self::parse(path, text),
            Err(error) => {
                let before = &bytes[..error.valid_up_to()];
                let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
                Err(document::refusal(path, line, "this is no text in UTF-8".into()))
            }
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`crate::Error::RunFile`] about the first invalid line.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let own = document::parse(path, text)?;
        let names: Vec<(&str, usize)> = models().enumerate().map(|(at, name)| (name, at)).collect();
        let nothing = vec![];
        let Some(at) = Table::root(path, &own, &nothing).optional_choice("model", &names)? else {
            let why = format!("there is no model: expected model = \"..\" with {}", listed(models()));
            return Err(document::refusal(path, 1, why));
        };
        let (model, complete, data) = MODELS[at];
        let defaults = document::parse(Path::new(model), complete).expect("the defaults are tested");
        let root = Table::root(path, &own, &defaults);
        let file = Self { keys: keys(&own, &defaults), ..Self::of(path, &root, model, data)? };
        for (name, _, _) in MODELS {
            if *name != model && root.line(name).is_some() {
                return Err(
                    root.refuse(name, &format!("is about model = {name:?}, and this run has model = {model:?}"))
                );
            }
        }
        root.finish()?;
        Ok(file)
    }

    fn of(path: &Path, root: &Table<'_>, model: &'static str, data: &[&str]) -> Result<Self> {
        root.text("model")?;
        let data: Vec<(&str, DataName)> = words::DATA.iter().filter(|(name, _)| data.contains(name)).copied().collect();
        let data = root.choice("data", &data)?;
        let text = root.text("text")?;
        if !text.is_empty() && data != DataName::Text {
            return Err(root.refuse("text", "is about data = \"text\""));
        }
        let beside = path.parent().unwrap_or(Path::new(""));
        let steps = root.count("steps", 1, LONGEST)?;
        let batch = root.count("batch", 1, LARGEST)?;
        let seed = root.whole("seed", 0, i64::MAX)? as u64;
        let target = root.number("target", Range::FINITE)?;
        let table = root.table(model)?;
        let freeze = table.texts("freeze")?;
        let model = Model::of(model, &table, data)?;
        table.finish()?;
        let inputs = Inputs::of(&root.table("inputs")?, data)?;
        let loss = LossConfig::of(&root.table("loss")?, &model, data)?;
        let optimizer = OptimizerConfig::of(&root.table("optimizer")?)?;
        let schedule = ScheduleConfig::of(&root.table("schedule")?, steps)?;
        let (trainer, training) = TrainerSettings::of(&root.table("trainer")?, batch)?;
        let text = Some(text).filter(|text| !text.is_empty()).map(|text| beside.join(text));
        let path = path.into();
        Ok(Self {
            path,
            model,
            data,
            text,
            steps,
            batch,
            seed,
            target,
            freeze,
            inputs,
            loss,
            optimizer,
            schedule,
            trainer,
            training,
            keys: vec![],
        })
    }
}

/// The value of each key by its full name: from the file, or the default.
fn keys(own: &Entries, defaults: &Entries) -> Vec<(String, Setting)> {
    let settings = |entries: &Entries| -> Vec<(String, Setting)> { entries.iter().flat_map(settings).collect() };
    let mut all = settings(defaults);
    for (name, setting) in settings(own) {
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = setting,
            None => all.push((name, setting)),
        }
    }
    all
}

/// The setting of an entry; for a table, the settings of all its entries.
fn settings((name, entry): &(String, Entry)) -> Vec<(String, Setting)> {
    let one = |setting| vec![(name.clone(), setting)];
    match &entry.value {
        Value::Text(text) => one(Setting::Text(text.clone())),
        Value::Number(number) => one(Setting::Number(*number)),
        Value::Flag(flag) => one(Setting::Flag(*flag)),
        Value::Time(time) => one(Setting::Text(time.clone())),
        Value::List(entries) => {
            one(Setting::Text(entries.iter().map(|entry| entry.value.to_string()).collect::<Vec<_>>().join(", ")))
        }
        Value::Table(entries) => {
            let own = entries.iter().flat_map(settings);
            own.map(|(key, setting)| (format!("{name}.{key}"), setting)).collect()
        }
    }
}

/// The probability that dropout zeroes an element.
fn dropout(t: &Table<'_>) -> Result<f64> {
    t.number("dropout", Range::BELOW_ONE)
}

/// The initial weights, from the keys `init`, `std` and `gain`.
fn init(t: &Table<'_>) -> Result<Init> {
    let (kind, std) = (t.choice("init", words::INITS)?, t.number("std", Range::FINITE)?);
    if kind == words::InitName::Normal && std < 0.0 {
        return Err(t.refuse("std", &format!("is {std}: expected a number from 0 for init = \"normal\"")));
    }
    Ok(kind.init(std).times(t.number("gain", Range::FINITE)?))
}

impl Model {
    fn of(name: &str, t: &Table<'_>, data: DataName) -> Result<Self> {
        Ok(match name {
            "mlp" => {
                let depth = t.count("depth", 1, 1000)?;
                let momentum = t.number("norm_momentum", Range::SHARE)?;
                Self::Mlp(MlpModel {
                    width: t.count("width", 1, LARGEST)?,
                    depth,
                    activation: t.choice("activation", words::ACTIVATIONS)?,
                    norm: match t.choice("norm", words::MLP_NORMS)? {
                        NormKind::Batch { .. } => NormKind::Batch { momentum },
                        other => other,
                    },
                    residual: t.flag("residual")?,
                    dropout: dropout(t)?,
                    init: init(t)?,
                    bias: t.number("bias", Range::FINITE)?,
                    detach_after: t.place("detach_after", depth - 1)?,
                    unused: t.flag("unused")?,
                })
            }
            "rnn" => Self::rnn(t, data)?,
            "transformer" => {
                let width = t.count("width", 1, LARGEST)?;
                let heads = t.count("heads", 1, width)?;
                if !width.is_multiple_of(heads) {
                    return Err(
                        t.refuse("heads", &format!("is {heads}: expected a divisor of the width, which is {width}"))
                    );
                }
                Self::Transformer(TransformerModel {
                    width,
                    layers: t.count("layers", 1, 1000)?,
                    heads,
                    context: t.count("context", 1, LARGEST)?,
                    hidden: t.count("hidden", 1, LARGEST)?,
                    place: t.choice("place", words::PLACES)?,
                    qk_norm: t.flag("qk_norm")?,
                    temperature: t.number("temperature", Range::POSITIVE)?,
                    std: t.number("std", Range::NOT_NEGATIVE)?,
                    score_gain: t.number("score_gain", Range::FINITE)?,
                    dropout: dropout(t)?,
                    tied: t.flag("tied")?,
                })
            }
            "resnet" => {
                let depth = t.count("depth", 8, 302)?;
                if !(depth - 2).is_multiple_of(6) {
                    return Err(
                        t.refuse("depth", &format!("is {depth}: expected 8, 14, 20 and so on by 6, at most 302"))
                    );
                }
                let width = t.count("width", 1, 1024)?;
                let norm = t.choice("norm", words::IMAGE_NORMS)?;
                let groups = (1..=4).rev().find(|groups| width.is_multiple_of(*groups)).unwrap_or(1);
                let norm = if let NormKind::Group { .. } = norm { NormKind::Group { groups } } else { norm };
                Self::ResNet(ResNetModel {
                    depth,
                    width,
                    residual: t.flag("residual")?,
                    norm,
                    activation: t.choice("activation", words::ACTIVATIONS)?,
                    init: init(t)?,
                })
            }
            _ => Self::TwoTower(TwoTowerModel {
                feature_scale: t.number("feature_scale", Range::FINITE)?,
                bridge: t.choice("bridge", words::BRIDGES)?,
                vision_loss: t.number("vision_loss", Range::NOT_NEGATIVE)?,
            }),
        })
    }

    fn rnn(t: &Table<'_>, data: DataName) -> Result<Self> {
        let cell = t.choice("cell", words::CELLS)?;
        let activation = t.choice("activation", words::RNN_ACTIVATIONS)?;
        let cell = match (cell, activation) {
            (Cell::Tanh, activation) => activation,
            (_, Cell::Tanh) => cell,
            _ => return Err(t.refuse("activation", "is about cell = \"rnn\"")),
        };
        let least = if data == DataName::TemporalOrder { 10 } else { 2 };
        let length = t.count("length", least, 10_000)?;
        if data == DataName::Digits && t.line("length").is_some() && length != 64 {
            return Err(t.refuse("length", &format!("is {length}: the digits are 64 pixels long")));
        }
        let hidden = t.count("hidden", 1, LARGEST)?;
        Ok(Self::Rnn(RnnModel { cell, hidden, length, spectral_radius: t.number("spectral_radius", Range::POSITIVE)? }))
    }
}

impl Inputs {
    fn of(t: &Table<'_>, data: DataName) -> Result<Self> {
        let read = Self {
            scale: t.number("scale", Range::FINITE)?,
            shift: t.number("shift", Range::FINITE)?,
            constant: t.flag("constant")?,
            labels: t.choice("labels", words::LABELS)?,
            nan_at: t.place("nan_at", LONGEST)?,
            outlier_at: t.place("outlier_at", LONGEST)?,
            outlier_scale: t.number("outlier_scale", Range::FINITE)?,
        };
        // Symbols of a text are not numbers, so they cannot be scaled or shifted.
        let changed = [
            ("scale", read.scale != 1.0),
            ("shift", read.shift != 0.0),
            ("nan_at", read.nan_at.is_some()),
            ("outlier_at", read.outlier_at.is_some()),
        ];
        match changed.into_iter().find(|(_, changed)| data == DataName::Text && *changed) {
            Some((key, _)) => Err(t.refuse(key, "is about data of numbers, and a text has symbols")),
            None => Ok(read),
        }
    }
}

impl LossConfig {
    fn of(t: &Table<'_>, model: &Model, data: DataName) -> Result<Self> {
        let read = Self {
            sum: t.choice("reduction", &[("mean", false), ("sum", true)])?,
            softmax_first: t.flag("softmax_first")?,
            unguarded: t.choice("unguarded", words::UNGUARDED)?,
            weight: t.number("weight", Range::FINITE)?,
        };
        let classes = !matches!(data, DataName::Regression | DataName::Adding);
        let towers = matches!(model, Model::TwoTower(_));
        let mlp = matches!(model, Model::Mlp(_));
        let refused = [
            (towers && read.sum, "reduction", "is \"mean\" for model = \"two-tower\""),
            (towers && read.softmax_first, "softmax_first", "is false for model = \"two-tower\""),
            (towers && read.unguarded != Unguarded::None, "unguarded", "is \"none\" for model = \"two-tower\""),
            (!classes && read.softmax_first, "softmax_first", "is about data with classes"),
            (!classes && read.unguarded == Unguarded::Log, "unguarded", "is \"log\", which is about data with classes"),
            (
                !mlp && matches!(read.unguarded, Unguarded::Div | Unguarded::Sqrt),
                "unguarded",
                "is \"div\" or \"sqrt\" for model = \"mlp\" only",
            ),
        ];
        match refused.into_iter().find(|(holds, _, _)| *holds) {
            Some((_, key, why)) => Err(t.refuse(key, why)),
            None => Ok(read),
        }
    }
}

impl OptimizerConfig {
    fn of(t: &Table<'_>) -> Result<Self> {
        let kind = t.choice("kind", words::OPTIMIZERS)?;
        // Muon's is the decay rate of a mean.
        let momenta = if kind == OptimizerName::Muon { Range::BELOW_ONE } else { Range::NOT_NEGATIVE };
        Ok(Self {
            kind,
            lr: t.number("lr", Range::NOT_NEGATIVE)?,
            momentum: t.optional_number("momentum", momenta)?,
            betas: t.optional_pair("betas", Range::BELOW_ONE)?,
            eps: t.number("eps", Range::POSITIVE_IN_F32)?,
            weight_decay: t.number("weight_decay", Range::NOT_NEGATIVE)?,
            amsgrad: t.flag("amsgrad")?,
            exclude: t.texts("exclude")?,
            group_lr: t.factors("group_lr", Range::NOT_NEGATIVE)?,
        })
    }
}

impl ScheduleConfig {
    fn of(t: &Table<'_>, steps: usize) -> Result<Self> {
        let warmup = t.count("warmup", 0, LONGEST)? as u32;
        let decay = t.choice("decay", words::DECAYS)?;
        let over = t.optional_whole("over", 1, LONGEST as i64)?.unwrap_or(steps as i64) as u32;
        if decay != Decay::Constant && warmup > over {
            return Err(t.refuse("warmup", &format!("is {warmup}: the rate has fallen after {over} steps")));
        }
        Ok(Self { warmup, decay, over })
    }
}

impl TrainerSettings {
    fn of(t: &Table<'_>, batch: usize) -> Result<(Self, Training)> {
        let accumulate = t.count("accumulate", 1, LARGEST)?;
        if !batch.is_multiple_of(accumulate) {
            return Err(
                t.refuse("accumulate", &format!("is {accumulate}: expected a divisor of the batch, which is {batch}"))
            );
        }
        let precision = t.choice("precision", words::PRECISIONS)?;
        let scales = [("auto", LossScale::Auto), ("none", LossScale::None)];
        let settings = Self {
            clip_norm: t.optional_number("clip_norm", Range::POSITIVE)?,
            clip_value: t.optional_number("clip_value", Range::POSITIVE)?,
            agc: t.optional_number("agc", Range::POSITIVE)?,
            centralize: t.flag("centralize")?,
            noise: t.optional_number("noise", Range::NOT_NEGATIVE)?,
            sam: t.optional_number("sam", Range::POSITIVE)?,
            weighting: t.choice("weighting", words::WEIGHTINGS)?,
            loss_scale: t.choice_or_number("loss_scale", &scales, Range::POSITIVE, LossScale::Fixed)?,
        };
        Ok((settings, Training { precision, accumulate, checkpoint: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RunFile> {
        RunFile::parse(Path::new("folder/run.toml"), text)
    }

    fn refused(text: &str) -> String {
        match parse(text) {
            Ok(file) => panic!("{text:?} is {file:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_file_that_names_the_model_alone_is_the_complete_one() {
        for model in models() {
            let short = parse(&format!("model = {model:?}")).expect("sound");
            assert_eq!(parse(defaults(model).expect("known")).expect("sound"), short, "{model}");
            // A complete file has each optional key as a comment.
            let optional = ["clip_norm", "clip_value", "agc", "noise", "sam", "over"];
            let text = defaults(model).expect("known");
            assert!(optional.into_iter().all(|key| text.contains(&format!("# {key} = "))), "{model}");
            assert!(text.lines().all(|line| line.chars().count() <= 140), "{model}");
        }
    }

    #[test]
    fn each_key_has_the_files_value_or_the_default() {
        let run =
            parse("model = \"mlp\"\n[mlp]\nwidth = 7\nfreeze = [\"a\", \"b\"]\n[trainer]\nagc = 0.5").expect("sound");
        let of =
            |name: &str| run.keys.iter().filter(|(key, _)| key == name).map(|(_, v)| v.clone()).collect::<Vec<_>>();
        assert_eq!((of("mlp.width"), of("trainer.agc")), (vec![Setting::Number(7.0)], vec![Setting::Number(0.5)]));
        assert_eq!(of("mlp.freeze"), [Setting::Text("\"a\", \"b\"".into())]);
        assert_eq!((of("mlp.residual"), of("mlp")), (vec![Setting::Flag(false)], vec![]));
    }

    #[test]
    fn optional_keys_are_read() {
        let text = "model = \"mlp\"\n[trainer]\nclip_norm = 1\nclip_value = 2\nagc = 3\nnoise = 4\nsam = 5\nloss_scale = 8\n\
                    [schedule]\ndecay = \"linear\"\nover = 5\n[optimizer]\ngroup_lr = { \"head\" = 0.1 }";
        let RunFile { trainer, schedule, optimizer, .. } = parse(text).expect("sound");
        let TrainerSettings { clip_norm, clip_value, agc, noise, sam, loss_scale, .. } = trainer;
        assert_eq!([clip_norm, clip_value, agc, noise, sam], [1.0, 2.0, 3.0, 4.0, 5.0].map(Some));
        assert_eq!((loss_scale, schedule.over), (LossScale::Fixed(8.0), 5));
        assert_eq!(optimizer.group_lr, [("head".to_string(), 0.1)]);
    }

    #[test]
    fn a_text_lies_beside_the_file() {
        let file = parse("model = \"transformer\"\ntext = \"../a.txt\"").expect("sound");
        assert_eq!(file.text.as_deref(), Some(Path::new("folder/../a.txt")));
        assert_eq!(parse("model = \"transformer\"").expect("sound").text, None);
    }

    #[test]
    fn what_does_not_go_together_is_refused_at_its_line() {
        for (text, want) in [
            ("", "line 1: there is no model: expected model = \"..\" with mlp, rnn, transformer, resnet or two-tower"),
            ("\nmodel = \"cnn\"", "line 2: model is \"cnn\": expected mlp, rnn, transformer, resnet or two-tower"),
            ("model = \"mlp\"\nstep = 3", "line 2: step is no key of a run file: it has model, data, "),
            ("model = \"mlp\"\n[mlp]\nwidht = 3", "line 3: widht is no key of [mlp]: it has freeze, "),
            (
                "model = \"mlp\"\n[rnn]\nhidden = 3",
                "line 2: rnn is about model = \"rnn\", and this run has model = \"mlp\"",
            ),
            ("model = \"mlp\"\ndata = \"text\"", "line 2: data is \"text\": expected digits, spirals or regression"),
            ("model = \"mlp\"\ntext = \"a\"", "line 2: text is about data = \"text\""),
            (
                "model = \"mlp\"\n[mlp]\ndepth = 2\ndetach_after = 2",
                "line 4: mlp.detach_after is 2: expected a whole number from -1 to 1",
            ),
            ("model = \"mlp\"\n[mlp]\ninit = \"normal\"\nstd = -1", "line 4: mlp.std is -1: expected a number from 0"),
            ("model = \"mlp\"\n[mlp]\ndropout = 1.0", "line 3: mlp.dropout is 1: expected a number from 0, below 1"),
            (
                "model = \"mlp\"\n[trainer]\naccumulate = 3",
                "line 3: trainer.accumulate is 3: expected a divisor of the batch, which is 32",
            ),
            ("model = \"mlp\"\n[trainer]\nclip_norm = 0", "line 3: trainer.clip_norm is 0: expected a number above 0"),
            (
                "model = \"mlp\"\n[trainer]\nloss_scale = \"big\"",
                "line 3: trainer.loss_scale is \"big\": expected auto or none, or a number above 0",
            ),
            (
                "model = \"mlp\"\n[optimizer]\nbetas = [0.9]",
                "line 3: optimizer.betas is a list: expected two numbers in a list",
            ),
            ("model = \"mlp\"\n[optimizer]\neps = 1e-60", "line 3: optimizer.eps is "),
            (
                "model = \"mlp\"\n[optimizer]\nkind = \"muon\"\nmomentum = 1",
                "line 4: optimizer.momentum is 1: expected ",
            ),
            (
                "model = \"mlp\"\n[schedule]\nwarmup = 400\ndecay = \"linear\"",
                "line 3: schedule.warmup is 400: the rate has fallen after 300 steps",
            ),
            (
                "model = \"mlp\"\ndata = \"regression\"\n[loss]\nsoftmax_first = true",
                "line 4: loss.softmax_first is about data with classes",
            ),
            (
                "model = \"rnn\"\n[loss]\nunguarded = \"div\"",
                "line 3: loss.unguarded is \"div\" or \"sqrt\" for model = \"mlp\" only",
            ),
            (
                "model = \"rnn\"\n[rnn]\ncell = \"gru\"\nactivation = \"sigmoid\"",
                "line 4: rnn.activation is about cell = \"rnn\"",
            ),
            ("model = \"rnn\"\n[rnn]\nlength = 9", "line 3: rnn.length is 9: expected a whole number from 10 to 10000"),
            (
                "model = \"transformer\"\n[transformer]\nheads = 5",
                "line 3: transformer.heads is 5: expected a divisor of the width, which is 64",
            ),
            (
                "model = \"transformer\"\n[inputs]\nscale = 2",
                "line 3: inputs.scale is about data of numbers, and a text has symbols",
            ),
            (
                "model = \"resnet\"\n[resnet]\ndepth = 10",
                "line 3: resnet.depth is 10: expected 8, 14, 20 and so on by 6",
            ),
            (
                "model = \"two-tower\"\n[loss]\nreduction = \"sum\"",
                "line 3: loss.reduction is \"mean\" for model = \"two-tower\"",
            ),
        ] {
            let why = refused(text);
            assert!(why.starts_with(&format!("folder/run.toml, {want}")), "{text:?}: {why}");
        }
    }

    #[test]
    fn damage_is_refused_and_never_a_panic() {
        let text = defaults("mlp").expect("known");
        for at in (0..text.len()).step_by(7) {
            for byte in [b'"', b'[', b'=', b'\n', b'9'] {
                let mut bytes = text.as_bytes().to_vec();
                bytes[at] = byte;
                // The text may be valid or refused, but it must not panic.
                let _ = parse(&String::from_utf8_lossy(&bytes));
            }
        }
    }
}
