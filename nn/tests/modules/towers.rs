//! The model of two towers: what reaches which, and what stands still.

use crate::{assert_close, numbers, session};
use wgrad::{Array, DType, ParamSet, Session, Shape, Store, testing::Gradcheck};
use wgrad_nn::{
    Activation, BlockKind, Bridge, Buffers, Builder, GptConfig, ResNetConfig, Trainer, TrainerConfig, TwoTower,
    TwoTowerConfig,
    optim::{Sgd, SgdConfig},
    paths,
};

fn config(bridge: Bridge, frozen: bool) -> TwoTowerConfig {
    // A smooth activation: with a kink in each of hundreds of units, one is always near.
    let vision = ResNetConfig {
        stages: vec![(2, 1), (3, 1)],
        activation: Activation::Tanh,
        ..ResNetConfig::small(8, BlockKind::Basic, 1, 4).expect("8 is a depth")
    };
    let text = GptConfig { context: 5, width: 4, layers: 1, heads: 2, hidden: 6, std: 0.4, ..GptConfig::small(7) };
    TwoTowerConfig { vision, text, bridge, feature_scale: 1.0, frozen }
}

fn declared(config: &TwoTowerConfig) -> (TwoTower, Store) {
    let mut store = Store::new();
    let model = TwoTower::new(Builder::new(&mut store, 2).with_dtype(DType::F64), config);
    (model, store)
}

fn images() -> Array {
    numbers(Shape::from([2, 1, 4, 4]), 1)
}

fn descriptions() -> Array {
    Array::new([2, 4], vec![1u32, 2, 3, 0, 6, 5, 4, 0])
}

#[test]
fn gradients_are_right_with_any_bridge() {
    for bridge in [Bridge::Plain, Bridge::Norm, Bridge::Scale(0.5)] {
        let (model, store) = declared(&config(bridge, false));
        // Nothing reaches the head of the encoder.
        let params: ParamSet = paths::freeze(store.layout(), &store.params(), "vision/head/*");
        let mut session = session(store);
        let inputs = [images(), descriptions()];
        let check = Gradcheck::new().random_directions(2);
        let checked =
            check.check_params(&mut session, &params, &inputs, |_, x| model.loss(model.encode(x[0], true), x[1], true));
        let checked = checked.unwrap_or_else(|error| panic!("{bridge:?}: {error}"));
        assert!(checked.compared >= 2 * params.len(), "{bridge:?}: {checked:?}");
    }
}

/// The logits after the image and each of some symbols.
fn logits(model: &TwoTower, session: &mut Session, images: &Array, symbols: &Array) -> Vec<f64> {
    let inputs = [("images", images), ("symbols", symbols)];
    let run = session
        .eval(&inputs, |t| model.forward(t.input_like("images", images), t.input_like("symbols", symbols), false));
    run.expect("it runs").to_f64()
}

#[test]
fn the_image_is_seen_by_all_symbols_and_symbols_by_those_after_them() {
    let (model, store) = declared(&config(Bridge::Norm, false));
    let mut session = session(store);
    let symbols = Array::new([1, 3], vec![1u32, 2, 3]);
    let image = |turn| numbers(Shape::from([1, 1, 4, 4]), turn);
    let first = logits(&model, &mut session, &image(0), &symbols);
    assert_eq!(first.len(), 4 * 7);
    let other = logits(&model, &mut session, &image(1), &symbols);
    assert!(first.iter().zip(&other).all(|(a, b)| a != b));
    let other = logits(&model, &mut session, &image(0), &Array::new([1, 3], vec![1u32, 6, 3]));
    assert_eq!(first[..2 * 7], other[..2 * 7]);
    assert!(first[2 * 7..].iter().zip(&other[2 * 7..]).all(|(a, b)| a != b));
}

#[test]
fn a_scale_of_features_scales_what_enters_the_projection() {
    let features = |bridge| {
        let (model, store) = declared(&config(bridge, false));
        let (mut session, symbols) = (session(store), Array::new([2, 1], vec![1u32, 2]));
        let step = session.record(|t| {
            let show = |path: &str, x: wgrad::Tensor<'_>| match path {
                "features" | "projection/x" => x.tape().tap(path, x),
                _ => {}
            };
            t.with_probe(
                move |path, x| {
                    show(path, x);
                    x
                },
                || model.forward(t.input_like("images", &images()), t.input_like("symbols", &symbols), false),
            );
        });
        session.run(&step.expect("it compiles"), &[("images", &images()), ("symbols", &symbols)]).expect("it runs");
        session.wait().expect("it has run");
        let taps = session.taps().expect("they have arrived").remove(0);
        ["features", "projection/x"].map(|name| taps.get(name).expect("tapped").to_f64())
    };
    let [features, scaled] = features(Bridge::Scale(0.25));
    assert_close(&scaled, &features.iter().map(|x| x * 0.25).collect::<Vec<_>>());
}

#[test]
fn a_frozen_encoder_stands_still_and_the_rest_learns() {
    let (model, mut store) = declared(&config(Bridge::Norm, true));
    let params = paths::freeze(store.layout(), &store.params(), "vision/**");
    let buffers = Buffers::of(store.layout());
    let sgd = Sgd::new(&mut store, &params, SgdConfig { lr: 0.1.into(), ..SgdConfig::default() });
    let mut trainer = Trainer::new(&mut store, &params, sgd, TrainerConfig::default(), move |batch| {
        model.loss(model.encode(batch.get("images"), true), batch.get("descriptions"), true).into()
    });
    let mut session = session(store);
    let paths: Vec<_> = session.layout().params().map(|(id, p)| (id, p.path.clone())).collect();
    let read = |session: &mut Session| {
        let of = |(id, path): &(_, String)| (path.clone(), session.read_param(*id).expect("readable"));
        paths.iter().map(of).collect::<Vec<_>>()
    };
    let statistics = |session: &mut Session| {
        buffers.states().iter().map(|state| session.read(*state).expect("readable")).collect::<Vec<_>>()
    };
    let (before, running) = (read(&mut session), statistics(&mut session));
    for _ in 0..3 {
        trainer.step(&mut session, &[("images", &images()), ("descriptions", &descriptions())]).expect("it runs");
    }
    for ((path, before), (_, after)) in before.iter().zip(read(&mut session)) {
        // Adding one number to all keys changes no soft-max: that third of a bias has no gradient, the rest has.
        assert_eq!(*before == after, path.starts_with("vision/"), "{path}");
    }
    assert_eq!(statistics(&mut session), running);
}
