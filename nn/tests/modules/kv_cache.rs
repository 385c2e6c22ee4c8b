//! The cache of keys and values: it gives what the whole forward pass gives, symbol by symbol.

use crate::session;
use approx::assert_abs_diff_eq;
use wgrad::{Array, DType, Error, Session, Store, Tape, Tensor};
use wgrad_nn::{Builder, Gpt, GptConfig, KvCache, NormPlace, Rotary, RotaryPairs};

const CONTEXT: usize = 9;
const VOCABULARY: usize = 7;

fn small() -> GptConfig {
    GptConfig { context: CONTEXT, width: 8, layers: 2, heads: 4, hidden: 12, std: 0.4, ..GptConfig::small(VOCABULARY) }
}

fn models() -> Vec<GptConfig> {
    let halves = Rotary { pairs: RotaryPairs::Halves, base: 100.0 };
    vec![
        small(),
        GptConfig { place: NormPlace::Post, tied: true, ..small() },
        GptConfig { kv_heads: Some(2), qk_norm: true, temperature: 1.7, ..small() },
        GptConfig { kv_heads: Some(1), rotary: Some(Rotary::default()), ..small() },
        GptConfig { rotary: Some(halves), checkpoint: true, ..small() },
    ]
}

/// A model with a cache for texts, and the session that holds both.
fn model(config: &GptConfig, dtype: DType, batch: usize) -> (Gpt, KvCache, Session) {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 5).with_dtype(dtype);
    let model = Gpt::new(b.at("gpt"), config);
    let cache = model.cache(b.at("gpt"), batch);
    (model, cache, session(store))
}

/// `count` symbols of each of two texts, from the position `from` on.
fn symbols(from: usize, count: usize, turn: usize) -> Array {
    let symbol = |i: usize| ((i * i + i / 3 + turn) % VOCABULARY) as u32;
    let of = |text: usize| (from..from + count).map(move |i| symbol(i + 11 * text));
    Array::new([2, count], of(0).chain(of(1)).collect::<Vec<u32>>())
}

/// The result of a program over some symbols.
fn run(
    session: &mut Session,
    symbols: &Array,
    f: impl for<'t> Fn(Tensor<'t>) -> Tensor<'t>,
) -> Result<Vec<f64>, Error> {
    Ok(session.eval(&[("symbols", symbols)], |t| f(t.input_like("symbols", symbols)))?.to_f64())
}

fn reset(session: &mut Session, cache: &KvCache) {
    let reset = session.record(|t: &Tape| cache.reset(t)).expect("it compiles");
    session.run(&reset, &[]).expect("it runs");
}

/// The logits of `count` positions from `from` on, out of those of all positions of both texts.
fn part(all: &[f64], from: usize, count: usize) -> Vec<f64> {
    all.chunks(CONTEXT * VOCABULARY)
        .flat_map(|text| text[from * VOCABULARY..(from + count) * VOCABULARY].to_vec())
        .collect()
}

#[test]
fn logits_are_those_of_the_whole_forward_pass_at_every_position() {
    for (config, (dtype, bound)) in
        models().iter().flat_map(|config| [(DType::F32, 1e-5), (DType::F64, 1e-13)].map(|of| (config, of)))
    {
        let (model, cache, mut session) = model(config, dtype, 2);
        for (turn, parts) in [&[1; CONTEXT][..], &[4, 1, 1, 3], &[CONTEXT], &[2, 5, 2]].into_iter().enumerate() {
            reset(&mut session, &cache);
            let whole = run(&mut session, &symbols(0, CONTEXT, turn), |x| model.forward(x, false)).expect("it runs");
            let mut from = 0;
            for &count in parts {
                let new = symbols(from, count, turn);
                let have = run(&mut session, &new, |x| model.forward_cached(x, &cache)).expect("it runs");
                assert_abs_diff_eq!(have[..], part(&whole, from, count)[..], epsilon = bound);
                from += count;
                assert_eq!(session.read(cache.position).expect("readable").item(0), from as f64);
            }
            assert_eq!(from, CONTEXT);
        }
    }
}

#[test]
fn a_text_goes_on_until_the_cache_is_reset() {
    let (model, cache, mut session) = model(&small(), DType::F64, 2);
    let step = |session: &mut Session| run(session, &symbols(0, 1, 0), |x| model.forward_cached(x, &cache));
    let first = step(&mut session).expect("it runs");
    let second = step(&mut session).expect("it runs");
    assert!(first.iter().zip(&second).all(|(a, b)| a != b));
    reset(&mut session, &cache);
    for layer in &cache.layers {
        assert!(session.read(layer.keys).expect("readable").to_f64().iter().all(|key| *key == 0.0));
    }
    assert_eq!(step(&mut session).expect("it runs"), first);
    // In the same program as the first symbols of the next text.
    let again = run(&mut session, &symbols(0, 1, 0), |x| {
        cache.reset(x.tape());
        model.forward_cached(x, &cache)
    });
    assert_eq!(again.expect("it runs"), first);
}

#[test]
fn a_number_that_is_not_finite_does_not_outlive_its_text() {
    let (model, cache, mut session) = model(&small(), DType::F64, 2);
    let step = |session: &mut Session| run(session, &symbols(0, 1, 0), |x| model.forward_cached(x, &cache));
    let first = step(&mut session).expect("it runs");
    let values = cache.layers[0].values;
    let shape = session.layout().state(values).shape.clone();
    session.write(values, &Array::new(&shape, vec![f64::NAN; shape.numel()])).expect("of its shape");
    assert!(step(&mut session).expect("it runs").iter().all(|logit| logit.is_nan()));
    reset(&mut session, &cache);
    assert_eq!(step(&mut session).expect("it runs"), first);
}

#[test]
fn a_full_context_refuses_more_and_stays_as_it_was() {
    for config in [small(), GptConfig { rotary: Some(Rotary::default()), ..small() }] {
        let (model, cache, mut session) = model(&config, DType::F64, 2);
        let mut step = |from, count| {
            let have = run(&mut session, &symbols(from, count, 0), |x| model.forward_cached(x, &cache));
            (
                have,
                session.read(cache.layers[1].keys).expect("readable"),
                session.read(cache.position).expect("readable"),
            )
        };
        let (_, before, at) = step(0, CONTEXT - 1);
        assert_eq!(at.item(0), 8.0);
        let (refused, keys, at) = step(CONTEXT - 1, 2);
        assert!(matches!(refused, Err(Error::IndexOutOfRange { index: 9, extent: 9, .. })), "{refused:?}");
        assert!(keys == before && at.item(0) == 8.0);
        let (last, ..) = step(CONTEXT - 1, 1);
        let whole = run(&mut session, &symbols(0, CONTEXT, 0), |x| model.forward(x, false)).expect("it runs");
        assert_abs_diff_eq!(last.expect("it fits")[..], part(&whole, CONTEXT - 1, 1)[..], epsilon = 1e-13);
    }
}

/// The likeliest successor, again and again.
#[test]
fn a_model_writes_the_same_text_with_a_cache() {
    let (model, cache, mut session) = model(&GptConfig { rotary: Some(Rotary::default()), ..small() }, DType::F32, 1);
    let likeliest = |logits: &[f64]| {
        let last = &logits[logits.len() - VOCABULARY..];
        (0..VOCABULARY).max_by(|&a, &b| last[a].total_cmp(&last[b])).expect("symbols") as u32
    };
    let text = |symbols: &[u32]| Array::new([1, symbols.len()], symbols.to_vec());
    let (mut plain, mut cached) = (vec![3u32, 1, 4], vec![3u32, 1, 4]);
    let mut new = cached.clone();
    while plain.len() < CONTEXT {
        plain.push(likeliest(&run(&mut session, &text(&plain), |x| model.forward(x, false)).expect("it runs")));
        let logits = run(&mut session, &text(&new), |x| model.forward_cached(x, &cache)).expect("it runs");
        new = vec![likeliest(&logits)];
        cached.extend(&new);
    }
    assert_eq!(cached, plain);
    assert!(plain.iter().any(|symbol| *symbol != plain[3]));
}

/// Sampling writes into the states in place, and copies none of them at the end of a run.
#[test]
fn one_symbol_is_one_step_in_place() {
    let (model, cache, session) = model(&small(), DType::F32, 1);
    let t = Tape::new(session.layout().clone());
    t.tap("logits", model.forward_cached(t.input("symbols", [1, 1], DType::U32), &cache));
    let (_, plan) = session.plan(&t.finish());
    assert_eq!(plan.commits, []);
}
