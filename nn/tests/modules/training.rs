//! Whole models in training: what accumulation, checkpoints and loaders must not change.

use crate::session;
use wgrad::{Array, Rng, Session, Store};
use wgrad_nn::{
    BlockKind, Builder, Dropout, Gpt, GptConfig, NormKind, Precision, ResNet, ResNetConfig, Trainer, TrainerConfig,
    checkpoint,
    data::{Augment, Batch, Digits, ImageData, Loader, LoaderConfig, Position, Text},
    optim::{AdamW, AdamWConfig, Sgd, SgdConfig},
};

fn digits(augment: Option<(Augment, u64)>) -> ImageData {
    let split = Digits::embedded(0).images();
    let moments = split.train.moments();
    ImageData { images: split.train.take(40), moments, augment }
}

/// All parameters and states.
fn states(session: &mut Session) -> Vec<Array> {
    let ids: Vec<_> = session.layout().states().map(|(id, _)| id).collect();
    ids.into_iter().map(|id| session.read(id).expect("readable")).collect()
}

/// A residual network for digits.
fn resnet_of(config: &ResNetConfig, training: TrainerConfig) -> (Trainer, Session) {
    let mut store = Store::new();
    let model = ResNet::new(Builder::new(&mut store, 1), config);
    let params = store.params();
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.05.into(), ..SgdConfig::default() });
    let trainer = Trainer::new(&mut store, &params, sgd, training, move |batch| {
        model.forward(batch.get("x"), true).cross_entropy(batch.get("y")).into()
    });
    (trainer, session(store))
}

/// The same in windows of so many micro-batches.
fn resnet(batch_norm: bool, accumulate: usize) -> (Trainer, Session) {
    let norm = if batch_norm { NormKind::BATCH } else { NormKind::None };
    let config = ResNetConfig { norm, ..ResNetConfig::small(8, BlockKind::Basic, 1, 10).expect("8 is a depth") };
    resnet_of(&config, TrainerConfig { accumulate, ..TrainerConfig::default() })
}

#[test]
fn four_micro_batches_are_one_batch() {
    let data = digits(None);
    let train = |size: usize, accumulate: usize| {
        let (mut trainer, mut session) = resnet(false, accumulate);
        for first in (0..20 * 16).step_by(size) {
            let samples: Vec<usize> = (first..first + size).map(|sample| sample % 40).collect();
            trainer.step(&mut session, &data.pick(&samples, 0).inputs()).expect("it runs");
        }
        // The arena of the parameters is the first state.
        states(&mut session)[0].to_f64()
    };
    let start = states(&mut resnet(false, 1).1)[0].to_f64();
    let (whole, parts) = (train(16, 1), train(4, 4));
    let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    let norm = distance(&whole, &vec![0.0; whole.len()]);
    assert!(distance(&whole, &start) > 1e-2 * norm, "{} of {norm}", distance(&whole, &start));
    assert!(distance(&whole, &parts) < 1e-6 * norm, "{} of {norm}", distance(&whole, &parts));
}

/// Runs some steps of a loader, which goes on from the position that the metadata has.
fn run(trainer: &mut Trainer, session: &mut Session, loader: &mut Loader, steps: usize) {
    for batch in loader.take(steps) {
        trainer.step(session, &batch.expect("it is prepared").inputs()).expect("it runs");
    }
    session.wait().expect("they have run");
}

/// What is saved in the middle of an epoch and of a window goes on as if nothing had happened, bit for bit.
fn resumes(open: impl Fn() -> (Trainer, Session), load: impl Fn(Position) -> Loader) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("saved");
    let (mut trainer, mut session) = open();
    let mut loader = load(Position::default());
    run(&mut trainer, &mut session, &mut loader, 5);
    let position = [("position".to_string(), loader.position().to_string())].into();
    checkpoint::save(&mut session, &file, &position).expect("it is saved");
    run(&mut trainer, &mut session, &mut loader, 6);
    let want = states(&mut session);

    let (mut trainer, mut session) = open();
    let metadata = checkpoint::load(&mut session, &file).expect("it is loaded");
    trainer.resume();
    let position: Position = metadata["position"].parse().expect("it was printed");
    assert!(position.sample > 0, "in the middle of an epoch");
    run(&mut trainer, &mut session, &mut load(position), 6);
    assert_eq!(states(&mut session), want);
}

#[test]
fn a_network_for_images_resumes_bit_for_bit() {
    let data = digits(Some((Augment { padding: 1, flip: false }, 4)));
    let load = |position| {
        let config = LoaderConfig { batch: 12, ..LoaderConfig::default() };
        Loader::new(data.clone(), config, position).expect("it has batches")
    };
    resumes(|| resnet(true, 2), load);
}

#[test]
fn a_text_model_with_dropout_resumes_bit_for_bit() {
    let text: String = ('a'..='p').cycle().take(600).collect();
    let open = || gpt(false, TrainerConfig { clip_norm: Some(1.0), ..TrainerConfig::default() });
    let load = |position| {
        let config = LoaderConfig { batch: 7, ..LoaderConfig::default() };
        Loader::new(Text::new(&text, 8, 2).expect("long enough"), config, position).expect("it has batches")
    };
    resumes(open, load);
}

/// A small text model whose loss is of fixed symbols.
fn gpt(checkpoint: bool, config: TrainerConfig) -> (Trainer, Session) {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "dropout", 3);
    let dropout = Some(Dropout::new(0.1, rng));
    let sizes = GptConfig { context: 8, width: 16, layers: 3, heads: 2, hidden: 32, ..GptConfig::small(16) };
    let model = Gpt::new(Builder::new(&mut store, 1), &GptConfig { dropout, checkpoint, ..sizes });
    let params = store.params();
    let adamw = AdamW::new(&mut store, &params, AdamWConfig { lr: 0.01.into(), ..AdamWConfig::default() });
    let trainer = Trainer::new(&mut store, &params, adamw, config, move |batch| {
        let loss = model.loss(batch.get("x"), batch.get("y"), true);
        rng.advance(loss.tape());
        loss.into()
    });
    (trainer, session(store))
}

/// The same batch, over and over: the losses, and all states at the end.
fn repeated((mut trainer, mut session): (Trainer, Session), batch: &Batch) -> (Vec<f64>, Vec<Array>) {
    let mut losses = vec![];
    for _ in 0..12 {
        trainer.step(&mut session, &batch.inputs()).expect("it runs");
        session.wait().expect("it has run");
        losses.extend(trainer.updates(&session.taps().expect("arrived")).iter().map(|update| update.loss));
    }
    (losses, states(&mut session))
}

#[test]
fn blocks_may_be_recomputed_or_kept() {
    let text = Text::new("a recomputed block ".repeat(20), 8, 2).expect("long enough");
    let batch = text.pick(&[0, 5, 7, 9], 0);
    let train = |checkpoint| repeated(gpt(checkpoint, TrainerConfig::default()), &batch);
    assert_eq!(train(false), train(true));
    let train = |checkpoint| {
        let sizes = ResNetConfig::small(8, BlockKind::Basic, 1, 10).expect("8 is a depth");
        let config = ResNetConfig { checkpoint, ..sizes };
        repeated(resnet_of(&config, TrainerConfig::default()), &digits(None).pick(&[0, 7, 11, 30], 0))
    };
    assert_eq!(train(false), train(true));
}

#[test]
fn models_learn_in_half_precision() {
    let half = || TrainerConfig { precision: Precision::F16, ..TrainerConfig::default() };
    let text = Text::new("learning in halves ".repeat(20), 8, 2).expect("long enough");
    let (losses, _) = repeated(gpt(false, half()), &text.pick(&[0, 5, 7, 9], 0));
    assert!(losses[11] < 0.8 * losses[0], "{losses:?}");
    let config = ResNetConfig::small(8, BlockKind::Basic, 1, 10).expect("8 is a depth");
    let (losses, _) = repeated(resnet_of(&config, half()), &digits(None).pick(&[0, 7, 11, 30], 0));
    assert!(losses[11] < 0.8 * losses[0], "{losses:?}");
}
