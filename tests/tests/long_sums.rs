//! Sums of millions of numbers, on the CPU and on GPUs: each is as near to the truth as one of few, not off by a rounding for
//! each summand.

use approx::{abs_diff_eq, ulps_eq};
use std::sync::Arc;
use wgrad::{Array, DType, Shape, Store, Tape, Tensor, op::Segments};
use wgrad_tests::{Machine, gpus};

/// More than 2^24, where the natural numbers among f32 end.
const MANY: usize = 17_800_000;

/// 0.1 as f32 has it.
const TENTH: f64 = 0.1f32 as f64;

fn machines() -> impl Iterator<Item = Machine> {
    let on_gpu = gpus().into_iter().map(|gpu| Machine::on_gpu(gpu, Store::new()));
    std::iter::once(Machine::new(2, Store::new())).chain(on_gpu)
}

/// A tensor of one number.
fn filled(t: &Tape, value: f64, shape: impl Into<Shape>) -> Tensor<'_> {
    t.input("x", [], DType::F32).broadcast_to(shape) * value
}

fn tapped(machine: &mut Machine, record: impl Fn(&Tape) -> Tensor<'_>) -> Vec<f64> {
    let step = machine.session.record(|t| t.tap("y", record(t))).expect("the plan compiles");
    machine.run(&step, &[("x".into(), Array::new([], vec![1.0f32]))]).tap("y").to_f64()
}

/// Within so many units in the last place of f32.
fn check(what: &str, have: &[f64], want: impl IntoIterator<Item = f64>, most: u32) {
    let mut count = 0;
    for (i, want) in want.into_iter().enumerate() {
        let (have, want) = (have[i] as f32, want as f32);
        assert!(ulps_eq!(have, want, epsilon = 0.0, max_ulps = most), "{what}: {have} instead of {want} at {i}");
        count += 1;
    }
    assert_eq!(count, have.len(), "{what}");
}

#[test]
fn the_last_of_many_running_sums_is_as_good_as_the_first() {
    /// Where results are looked at.
    const PARTS: [usize; 5] = [0, 4200, 1 << 20, (1 << 24) - 50, MANY - 100];
    for mut machine in machines() {
        let device = machine.session.device();
        for value in [1.0, TENTH] {
            let have = tapped(&mut machine, |t| {
                let sums = filled(t, value, [MANY]).cumsum(0);
                Tensor::concat(&PARTS.map(|start| sums.slice(0, start, 100)), 0)
            });
            let want = PARTS.iter().flat_map(|start| (1..=100).map(move |i| (start + i) as f64 * value));
            check(&format!("{value} on {device}"), &have, want, 1);
        }
    }
}

/// Backwards, along any axis, of either sign; and of numbers that are not finite, which are all that follows.
#[test]
fn running_sums_of_all_sorts() {
    const LONG: usize = 5000;
    let waves = |i: usize| (i as f64 * 0.61).sin() as f32;
    let values: Vec<f32> = (0..3 * LONG).map(waves).collect();
    let sums = |axis: usize, reverse: bool| {
        let (mut want, strides) = (vec![0.0; 3 * LONG], if axis == 0 { [3, 1] } else { [1, LONG] });
        for line in 0..3 {
            let mut sum = 0.0;
            for n in 0..LONG {
                let at = line * strides[1] + if reverse { LONG - 1 - n } else { n } * strides[0];
                sum += f64::from(values[at]);
                want[at] = sum;
            }
        }
        want
    };
    for mut machine in machines() {
        let device = machine.session.device();
        for axis in [0, 1] {
            let shape = if axis == 0 { [LONG, 3] } else { [3, LONG] };
            let x = [("x".to_string(), Array::new(shape, values.clone()))];
            let step = machine.session.record(|t| {
                let x = t.input("x", shape, DType::F32);
                t.tap("y", x.cumsum(axis));
                t.tap("dx", x.cumsum(axis).vjp(x, &[x])[0].expect("it depends on it"));
                t.tap("whole", ((x * 1000.0).cast(DType::I32) * 1_000_000.0).cumsum(axis));
            });
            let out = machine.run(&step.expect("the plan compiles"), &x);
            for (name, reverse) in [("y", false), ("dx", true)] {
                let have = out.tap(name).to_f64();
                for (i, (have, want)) in have.iter().zip(sums(axis, reverse)).enumerate() {
                    // Sums of either sign are as good as the largest is; here that is about 1.
                    assert!(
                        abs_diff_eq!(*have, want, epsilon = 1e-6),
                        "{name} along {axis} on {device}: {have} for {want} at {i}"
                    );
                }
            }
            let mut whole = [0i32; 3];
            let have = out.tap("whole").to_f64();
            for i in 0..3 * LONG {
                let (line, at) = (i % 3, if axis == 0 { i } else { i % 3 * LONG + i / 3 });
                whole[line] = whole[line].wrapping_add(((values[at] * 1000.0) as i32).wrapping_mul(1_000_000));
                assert_eq!(have[at], f64::from(whole[line]), "along {axis} on {device} at {i}");
            }
        }
        let mut values = vec![1.0f32; LONG];
        (values[700], values[4000]) = (f32::INFINITY, f32::NAN);
        let step = machine.session.record(|t| t.tap("y", t.input("x", [LONG], DType::F32).cumsum(0))).unwrap();
        let have = machine.run(&step, &[("x".into(), Array::new([LONG], values))]).tap("y").to_f64();
        let is_right = |(i, x): (usize, &f64)| match i {
            0..700 => *x == (i + 1) as f64,
            700..4000 => *x == f64::INFINITY,
            _ => x.is_nan(),
        };
        assert!(have.iter().enumerate().all(is_right), "on {device}");
    }
}

#[test]
fn sums_of_many_are_as_good_as_of_few() {
    type Row = (&'static str, for<'t> fn(&'t Tape) -> Tensor<'t>, f64);
    let rows: [Row; 8] = [
        ("sum of ones", |t| filled(t, 1.0, [MANY]).sum(), MANY as f64),
        ("sum", |t| filled(t, TENTH, [MANY]).sum(), MANY as f64 * TENTH),
        ("mean", |t| filled(t, TENTH, [MANY]).mean(), TENTH),
        ("norm of ones", |t| filled(t, 1.0, [MANY]).norm(), (MANY as f64).sqrt()),
        ("norm", |t| filled(t, TENTH, [MANY]).norm(), (MANY as f64).sqrt() * TENTH),
        (
            "sum of columns",
            |t| filled(t, TENTH, [MANY / 8, 8]).sum_axes(&[0]).slice(0, 3, 1),
            (MANY / 8) as f64 * TENTH,
        ),
        ("mean of rows", |t| filled(t, TENTH, [4, MANY / 4]).mean_axes(&[1]).slice(0, 3, 1), TENTH),
        (
            "segment_sum",
            |t| {
                let ranges = [(5, MANY - 10)].into();
                filled(t, TENTH, [MANY]).segment_sum(&Arc::new(Segments { total: MANY, ranges }))
            },
            (MANY - 10) as f64 * TENTH,
        ),
    ];
    for mut machine in machines() {
        let device = machine.session.device();
        for (name, record, want) in rows {
            let have = tapped(&mut machine, record);
            check(&format!("{name} on {device}"), &have, [want], 8);
        }
    }
}
