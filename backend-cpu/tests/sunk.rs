//! Reductions that chains make themselves, of what they read, of what they store, and of what they overwrite.

use approx::relative_eq;
use proptest::prelude::*;
use std::sync::Arc;
use wgrad::{Array, DType, Data, Session, Shape, StateId, Store, Tape, Tensor};
use wgrad_cpu::{CpuBackend, reference};

fn values(seed: usize, shape: &Shape) -> Array {
    let value = |i: usize| ((i * 7919 + seed * 104_729) as f64 * 0.37).sin();
    Array::new(shape, Data::from_f64(DType::F32, &(0..shape.numel()).map(value).collect::<Vec<_>>()))
}

/// What follows from a state, an input, and a sum of each row: with it, what the kernel overwrites is read once more in a
/// second walk.
type Values = for<'t> fn(Tensor<'t>, Tensor<'t>, Tensor<'t>) -> Vec<Tensor<'t>>;

/// The state's next value.
const NEXT: [Values; 5] = [
    |p, g, _| vec![p * 2.0 + g],
    |p, g, r| vec![g - p * r],
    |p, _, r| vec![p.tanh() - r],
    |p, g, r| vec![p.less(0.1).select(p * r, g)],
    |p, g, _| vec![p.less(0.1).select(g, p)],
];

/// What is reduced meanwhile.
const REDUCED: [Values; 7] = [
    |p, g, _| vec![p, g],
    |p, g, _| vec![p * g, -p],
    |p, g, r| vec![p * (g - r).tanh()],
    |p, g, r| vec![(p * r).tanh() * p, g],
    |p, _, r| vec![-p * r, p * (p - r), p],
    |p, g, r| vec![p.less(0.1).select(p, g), p * r],
    |p, g, _| vec![p.less(0.1).select(g, p), p],
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_reduced_is_what_was_there(
        (rows, width, wide) in (1usize..=40, 1usize..=70, any::<bool>()),
        (next, reduced) in (0..NEXT.len(), 0..REDUCED.len()),
        (axis, largest, first) in (0usize..=1, any::<bool>(), any::<bool>()),
    ) {
        let width = if wide { 128 * width.div_ceil(20) } else { width };
        let shape = Shape::from([rows, width]);
        let (p, g) = (values(1, &shape), values(2, &shape));
        let stored = || {
            let mut store = Store::new();
            let state = store.state("p", &p);
            (store, state)
        };
        let (store, state) = stored();
        let record = |t: &Tape, state: StateId| {
            let (p, g) = (t.state(state), t.input("g", &shape, DType::F32));
            let sums = (p * g).sum_axes(&[1]).reshape([rows, 1]);
            let r = sums.tanh();
            let early = if first { vec![] } else { NEXT[next](p, g, r) };
            for x in REDUCED[reduced](p, g, r) {
                t.tap_each("reduced", if largest { x.max_axes(&[axis]) } else { x.sum_axes(&[axis]) });
            }
            let late = if first { NEXT[next](p, g, r) } else { early };
            t.assign(state, late[0]);
        };
        let tape = Tape::new(Arc::new(store.layout().clone()));
        record(&tape, state);
        let want = reference::run(&tape.finish(), store.values(), &[("g", &g)]).expect("runs");
        for device in [CpuBackend::new(1), CpuBackend::splitting(3)] {
            let (store, state) = stored();
            let mut session = Session::new(Box::new(device.expect("threads")), store).expect("session");
            let step = session.record(|t| record(t, state)).expect("compiles");
            session.run(&step, &[("g", &g)]).expect("runs");
            let taps = session.taps().expect("taps").remove(0);
            for ((name, have), (_, _, want)) in taps.iter().zip(&want.taps) {
                let have = have.to_f64();
                let near = relative_eq!(have[..], want[..], epsilon = 1e-4, max_relative = 1e-4);
                prop_assert!(near, "{} {}: {:?}, not {:?}", name, reduced, have, want);
            }
            let (have, want) = (session.read(state).expect("a value").to_f64(), &want.states[state.index()]);
            let near = relative_eq!(have[..], want[..], epsilon = 1e-4, max_relative = 1e-4);
            prop_assert!(near, "the state: {:?}, not {:?}", have, want);
        }
    }
}

/// Values that are stored and kept in registers for a second walk: some blocks of a store lie in one piece, others do not.
#[test]
fn what_is_stored_is_found_again_in_every_block() {
    for ([rows, width], axis) in
        [[4, 5], [3, 9], [300, 100], [100, 300], [1025, 12]].into_iter().flat_map(|s| [(s, 0), (s, 1)])
    {
        let x = values(4, &[rows, width].into());
        let tape = Tape::default();
        let given = tape.input("x", [rows, width], DType::F32);
        let (y, z) = ((given + given).tanh() * 2.0, (given * 2.0).sigmoid() * given);
        let mean = (y * z).mean_axes(&[axis]);
        tape.tap("y", y);
        tape.tap("z", z);
        tape.tap("later", (z - if axis == 0 { mean } else { mean.reshape([rows, 1]) }) * y);
        let program = tape.finish();
        let want = reference::run(&program, &[], &[("x", &x)]).expect("runs").taps;
        for device in [CpuBackend::new(1), CpuBackend::splitting(1)] {
            let mut session = Session::new(Box::new(device.expect("threads")), Store::new()).expect("session");
            let step = session.compile(program.clone()).expect("compiles");
            session.run(&step, &[("x", &x)]).expect("runs");
            for ((name, have), (_, _, want)) in session.taps().expect("taps")[0].iter().zip(&want) {
                let near = relative_eq!(have.to_f64()[..], want[..], epsilon = 1e-5, max_relative = 1e-5);
                assert!(near, "{name} of {rows} by {width}, the mean along {axis}");
            }
        }
    }
}

#[test]
fn a_condition_is_reduced_beside_what_it_chooses() {
    let (rows, width) = (4, 256);
    let g = values(2, &[rows, width].into());
    let c = Array::new([rows, width], Data::Bool((0..rows * width).map(|i| i / width != 2 && i % 97 == 5).collect()));
    let tape = Tape::default();
    let (x, condition) = (tape.input("g", [rows, width], DType::F32), tape.input("c", [rows, width], DType::Bool));
    tape.tap("chosen", condition.select(x * 2.0, x + 1.0).sum_axes(&[1]));
    tape.tap("any", condition.max_axes(&[1]));
    let (program, inputs) = (tape.finish(), [("g", &g), ("c", &c)]);
    let want = reference::run(&program, &[], &inputs).expect("runs");
    let mut session = Session::new(Box::new(CpuBackend::new(1).expect("threads")), Store::new()).expect("session");
    let step = session.compile(program).expect("compiles");
    session.run(&step, &inputs).expect("runs");
    for ((name, have), (_, _, want)) in session.taps().expect("taps")[0].iter().zip(&want.taps) {
        let have = have.to_f64();
        let near = relative_eq!(have[..], want[..], epsilon = 1e-4, max_relative = 1e-4);
        assert!(near, "{name}: {have:?}, not {want:?}");
    }
}

/// Numbers that are infinite or none, one after another at each place, beside a norm, a sum and a store of the same values.
#[test]
fn a_chain_sees_what_is_not_finite_wherever_it_is() {
    for width in [1, 7, 100, 128, 130, 256, 300, 384] {
        let rows = 3;
        for (at, non_finite) in (0..rows * width)
            .step_by(5)
            .chain([rows * width - 1])
            .zip([f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 3.4e38, 1e-42].into_iter().cycle())
        {
            let mut x = values(3, &[rows, width].into()).to_f64();
            x[at] = non_finite;
            let x = Array::new([rows, width], Data::from_f64(DType::F32, &x));
            // Four times the largest number has an infinite norm, though it is finite itself.
            for (stored, factor, before) in
                [(false, 0.5, false), (true, 0.5, false), (false, 0.5, true), (true, -4.0, true), (false, 4.0, true)]
            {
                let tape = Tape::default();
                let given = tape.input("x", [rows, width], DType::F32);
                let scaled = given * factor;
                tape.tap("strange", if before { given } else { scaled }.is_finite().equals(0.0).max_axes(&[1]));
                tape.tap("norm", scaled.norm_axes(&[1]));
                if stored {
                    tape.tap("scaled", scaled);
                }
                let program = tape.finish();
                let want = reference::run(&program, &[], &[("x", &x)]).expect("runs").taps;
                for device in [CpuBackend::new(1), CpuBackend::splitting(2)] {
                    let mut session = Session::new(Box::new(device.expect("threads")), Store::new()).expect("session");
                    let step = session.compile(program.clone()).expect("compiles");
                    session.run(&step, &[("x", &x)]).expect("runs");
                    let have = session.taps().expect("taps").remove(0);
                    let [have, want] = [have.get("strange").expect("tapped").to_f64(), want[0].2.clone()];
                    assert_eq!(have, want, "{non_finite} at {at} in rows of {width}, stored: {stored}, times {factor}");
                    assert_eq!(want.iter().sum::<f64>(), f64::from(!(non_finite as f32).is_finite()));
                }
            }
        }
    }
}
