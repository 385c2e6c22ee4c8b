//! A loss that is scaled by a power of two has gradients that are larger by the same, bit for bit, short of overflow and
//! underflow: what loss scaling rests on.

use proptest::prelude::*;
use wgrad::{
    DType, Store, Tape,
    testing::{Kind, Mode, Recipe, recipe},
};
use wgrad_tests::{Machine, proptest_config as config, same_bits};

/// The gradients of a recipe's loss times `2^k`, times `2^-k`.
fn gradients(recipe: &Recipe, k: i32) -> Vec<wgrad::Array> {
    let tape = Tape::default();
    let recorded = recipe.record(&tape, Mode::Plain);
    let (scale, inverse) = (2f64.powi(k), 2f64.powi(-k));
    for (i, g) in (recorded.loss * scale).grad_wrt(&recorded.leaves).into_iter().enumerate() {
        g.into_iter().for_each(|g| tape.tap(&format!("dx{i}"), g * inverse));
    }
    let program = tape.finish();
    let inputs = recipe.arrays(&program);
    let mut cpu = Machine::poisoned(1, Store::new());
    let step = cpu.session.compile(program).expect("the plan compiles");
    cpu.run(&step, &inputs).taps.into_iter().map(|(_, value)| value).collect()
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn gradients_scale_bit_for_bit(recipe in recipe(14), k in prop_oneof![-24..0i32, 1..25i32], single in any::<bool>()) {
        // Halves overflow; a gradient that a sequence holds to be too small for its type is 0.
        let recipe = recipe.without(&[Kind::CastHalf, Kind::Sequence]);
        let recipe = if single { recipe.with_dtype(DType::F32) } else { recipe };
        for (scaled, plain) in gradients(&recipe, k).iter().zip(&gradients(&recipe, 0)) {
            // A gradient next to nothing, or next to infinity, may leave the range on the way.
            let ordinary = |v: &f64| *v == 0.0 || (1e-20..1e20).contains(&v.abs());
            if plain.to_f64().iter().all(ordinary) {
                prop_assert!(same_bits(scaled, plain), "2^{k}: {scaled:?} and {plain:?}");
            }
        }
    }
}
