//! Rotary positions: the formula, and the properties that it is chosen for.

use crate::{assert_close, eval, numbers, session};
use approx::assert_abs_diff_eq;
use proptest::prelude::*;
use wgrad::{Array, DType, Shape, Store, testing::array};
use wgrad_nn::{Rotary, RotaryPairs};

const PAIRS: [RotaryPairs; 2] = [RotaryPairs::Neighbours, RotaryPairs::Halves];

/// Rows of `width` numbers, each turned at its position, pair by pair, with plain loops.
fn written_out(rotary: Rotary, rows: &[f64], width: usize, position: impl Fn(usize) -> usize) -> Vec<f64> {
    let mut all = rows.to_vec();
    for (row, x) in all.chunks_mut(width).enumerate() {
        for i in 0..width / 2 {
            let (a, b) = match rotary.pairs {
                RotaryPairs::Neighbours => (2 * i, 2 * i + 1),
                RotaryPairs::Halves => (i, i + width / 2),
            };
            let angle = position(row) as f64 * rotary.base.powf(-2.0 * i as f64 / width as f64);
            (x[a], x[b]) = (x[a] * angle.cos() - x[b] * angle.sin(), x[a] * angle.sin() + x[b] * angle.cos());
        }
    }
    all
}

/// The rows of `x` at positions from `offset` on, which the run is told.
fn turned(rotary: Rotary, x: &Array, offset: u32) -> Vec<f64> {
    let time = x.shape()[x.shape().rank() - 2];
    let offset = Array::new([], vec![offset]);
    let run = session(Store::new()).eval(&[("x", x), ("offset", &offset)], |t| {
        rotary.forward_at(t.input_like("x", x), t.iota(time) + t.input("offset", [], DType::U32))
    });
    run.expect("it runs").to_f64()
}

#[test]
fn pairs_turn_by_their_angles() {
    for pairs in PAIRS {
        let rotary = Rotary { base: 100.0, pairs };
        let x = numbers(Shape::from([2, 3, 4, 6]), 1);
        let have = eval(&mut session(Store::new()), &x, |x| rotary.forward(x));
        assert_eq!(have.shape(), x.shape());
        assert_close(&have.to_f64(), &written_out(rotary, &x.to_f64(), 6, |row| row % 4));
        assert_close(&turned(rotary, &x, 70), &written_out(rotary, &x.to_f64(), 6, |row| 70 + row % 4));
    }
}

#[test]
fn half_precision_is_rounded_once() {
    let (rotary, x) = (Rotary::default(), numbers(Shape::from([3, 8]), 1).cast(DType::F16));
    let half = turned(rotary, &x, 1000);
    let wide = Array::new([3, 8], turned(rotary, &x.cast(DType::F32), 1000)).cast(DType::F16);
    assert_eq!(half, wide.to_f64());
}

fn norms(rows: &[f64], width: usize) -> Vec<f64> {
    rows.chunks(width).map(|row| row.iter().map(|v| v * v).sum::<f64>().sqrt()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn norms_are_kept(x in array([3, 6].into(), DType::F64), offset in 0..100_000u32) {
        for pairs in PAIRS {
            let rotary = Rotary { pairs, ..Rotary::default() };
            assert_close(&norms(&turned(rotary, &x, offset), 6), &norms(&x.to_f64(), 6));
        }
    }

    /// The scores of all queries and keys stay the same where both are at other positions of the same distance.
    #[test]
    fn scores_depend_on_the_difference_of_positions(
        q in array([3, 6].into(), DType::F64),
        k in array([3, 6].into(), DType::F64),
        (at, shift) in (0..1000u32, 1..100_000u32),
    ) {
        for pairs in PAIRS {
            let rotary = Rotary { pairs, ..Rotary::default() };
            let scores = |queries: u32, keys: u32| {
                let (q, k) = (turned(rotary, &q, queries), turned(rotary, &k, keys));
                q.chunks(6).flat_map(|q| k.chunks(6).map(|k| dot(q, k)).collect::<Vec<_>>()).collect::<Vec<f64>>()
            };
            let size = 1.0 + dot(&norms(&q.to_f64(), 6), &norms(&k.to_f64(), 6));
            // An angle of 1e5 has lost five of sixteen digits.
            let (near, far) = (scores(at, 7), scores(at + shift, 7 + shift));
            assert_abs_diff_eq!(near[..], far[..], epsilon = 1e-10 * size);
        }
    }
}

#[test]
fn another_distance_gives_another_score() {
    let (rotary, q) = (Rotary::default(), numbers(Shape::from([1, 6]), 1));
    let score = |distance: u32| dot(&turned(rotary, &q, distance), &q.to_f64());
    assert_close(&[score(0)], &[dot(&q.to_f64(), &q.to_f64())]);
    assert!(score(1) < score(0) && (score(1) - score(2)).abs() > 1e-3);
}

#[test]
#[should_panic(expected = "rotary of f64[2, 3]: needs floats [.., time, width] of an even width")]
fn a_head_has_pairs() {
    eval(&mut session(Store::new()), &numbers(Shape::from([2, 3]), 0), |x| Rotary::default().forward(x));
}

#[test]
#[should_panic(expected = "rotary of f64[2, 4]: needs positions u32[2], not u32[3]")]
fn each_row_has_a_position() {
    let x = numbers(Shape::from([2, 4]), 0);
    eval(&mut session(Store::new()), &x, |x| Rotary::default().forward_at(x, x.tape().iota(3)));
}

#[test]
#[should_panic(expected = "rotary: base is 1, and must be above 1")]
fn a_base_of_1_turns_all_pairs_alike() {
    let rotary = Rotary { base: 1.0, ..Rotary::default() };
    eval(&mut session(Store::new()), &numbers(Shape::from([2, 4]), 0), |x| rotary.forward(x));
}
