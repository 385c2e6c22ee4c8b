//! Simplification: identities are dropped and constants folded before a plan is made, and no bit of any result changes.

use wgrad::{Array, DType, Program, Tape, Tensor, op::Op};
use wgrad_tests::reference;

/// Makes something of a value of shape `[8]`.
type Make = for<'t> fn(Tensor<'t>) -> Tensor<'t>;

/// Values at which arithmetic is not what it is elsewhere.
const VALUES: [f64; 8] = [f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1.5, -2.0, 5e-324];

/// The parts of a value, put together one after another.
fn joined(parts: for<'t> fn(Tensor<'t>) -> Vec<Tensor<'t>>) -> Program {
    let t = Tape::default();
    t.tap("y", Tensor::concat(&parts(t.input("x", [VALUES.len()], DType::F64)), 0));
    t.finish()
}

fn recorded(make: Make, dtype: DType) -> Program {
    let t = Tape::default();
    t.tap("y", make(t.input("x", [VALUES.len()], dtype)));
    t.finish()
}

/// The names of what a simplified program computes.
fn computed(program: &Program) -> Vec<&'static str> {
    let live = program.live();
    let there = |op: &Op| matches!(op, Op::Const(_) | Op::Input(_) | Op::Expand(_) | Op::Reshape(_) | Op::Permute(_));
    let nodes = program.nodes().iter().enumerate().filter(|(i, node)| live[*i] && !there(&node.op));
    nodes.map(|(_, node)| node.op.name()).collect()
}

fn result(program: &Program) -> Vec<f64> {
    let x = Array::new([VALUES.len()], VALUES.to_vec());
    reference(program, &[], &[("x".into(), x)]).taps.remove(0).2
}

/// Requires a program to be simplified to these operations, and to give the same bits as before.
fn becomes(name: &str, make: Make, operations: &[&str]) {
    let program = recorded(make, DType::F64);
    let simple = program.lowered(true, |_, _| true);
    assert_eq!(computed(&simple), operations, "{name}:\n{simple}");
    let kept = program.lowered(false, |_, _| true);
    assert_eq!(computed(&kept), computed(&program), "{name}: only what is asked for is simplified");
    // Which NaN it is does not matter.
    let bits = |x: &f64| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() };
    let (have, want) = (result(&simple), result(&program));
    assert_eq!(have.len(), want.len());
    assert!(have.iter().map(bits).eq(want.iter().map(bits)), "{name}: {have:?} instead of {want:?}");
}

/// A constant of the shape and type of another tensor, by way of movement.
fn constant(x: Tensor<'_>, value: f64) -> Tensor<'_> {
    x.tape().full([2, 4], value, x.dtype()).permute(&[1, 0]).reshape(x.shape())
}

#[test]
fn identities_disappear() {
    let table: &[(&str, Make)] = &[
        ("x * 1", |x| x * 1.0),
        ("1 * x", |x| constant(x, 1.0) * x),
        ("x / 1", |x| x / constant(x, 1.0)),
        ("x - 0", |x| x - 0.0),
        ("--x", |x| -(-x)),
        ("pow(x, 1)", |x| x.pow(1.0)),
        ("select of the same", |x| x.less(0.5).select(x, x)),
        ("select by a constant", |x| x.tape().full(x.shape(), 1.0, DType::Bool).select(x, x * 3.0)),
        ("select by another", |x| x.tape().full(x.shape(), 0.0, DType::Bool).select(x * 3.0, x)),
        ("a cast to its own type", |x| x.cast(DType::F64)),
        ("several, one in another", |x| -(-((x * 1.0 - 0.0) / 1.0)).pow(1.0)),
    ];
    for (name, make) in table {
        becomes(name, *make, &[]);
    }
}

#[test]
fn slices_put_together_as_they_were_are_what_they_were_cut_from() {
    type Parts = for<'t> fn(Tensor<'t>) -> Vec<Tensor<'t>>;
    let whole: &[(&str, Parts)] = &[
        ("halves", |x| vec![x.slice(0, 0, 4), x.slice(0, 4, 4)]),
        ("by way of another shape", |x| vec![x.slice(0, 0, 6).reshape([2, 3]).reshape([6]), x.slice(0, 6, 2)]),
        ("of a value", |x| vec![(x * 1.0).slice(0, 0, 1), x.slice(0, 1, 7)]),
    ];
    for (name, parts) in whole {
        let program = recorded(|x| x, DType::F64);
        let joined = joined(*parts);
        let simple = joined.lowered(true, |_, _| true);
        assert_eq!(computed(&simple), computed(&program), "{name}:\n{simple}");
        assert!(result(&simple).iter().map(|x| x.to_bits()).eq(result(&joined).iter().map(|x| x.to_bits())), "{name}");
    }
    let others: &[(&str, Parts)] = &[
        ("exchanged", |x| vec![x.slice(0, 4, 4), x.slice(0, 0, 4)]),
        ("backwards", |x| vec![x.slice_step(0, 7, 8, -1)]),
        ("not all", |x| vec![x.slice(0, 0, 4), x.slice(0, 4, 3)]),
        ("of two", |x| vec![x.slice(0, 0, 4), (x * 2.0).slice(0, 4, 4)]),
        ("changed", |x| vec![x.slice(0, 0, 4), x.slice(0, 4, 4) * 2.0]),
        ("from within", |x| vec![x.slice(0, 0, 3), x.slice(0, 4, 4)]),
    ];
    for (name, parts) in others {
        let joined = joined(*parts);
        let simple = joined.lowered(true, |_, _| true);
        assert_eq!(computed(&simple), computed(&joined), "{name}:\n{simple}");
    }
}

#[test]
fn a_square_is_a_product() {
    becomes("pow(x, 2)", |x| x.pow(2.0), &["mul"]);
}

#[test]
fn constants_are_folded() {
    let table: &[(&str, Make)] = &[
        ("2 + 3", |x| constant(x, 2.0) + constant(x, 3.0)),
        ("2 - 3", |x| constant(x, 2.0) - 3.0),
        ("0.1 * 3", |x| constant(x, 0.1) * 3.0),
        ("1 / 3", |x| constant(x, 1.0) / 3.0),
        ("-2", |x| -constant(x, 2.0)),
        ("-0", |x| -constant(x, 0.0)),
        ("recip 3", |x| constant(x, 3.0).recip()),
        ("sqrt 2", |x| constant(x, 2.0).sqrt()),
        ("a cast of 2.7", |x| constant(x, 2.7).cast(DType::I32)),
        ("sqrt(2 + 3) * 1", |x| (constant(x, 2.0) + 3.0).sqrt() * 1.0),
    ];
    for (name, make) in table {
        becomes(name, *make, &[]);
    }
}

#[test]
fn what_would_change_a_bit_stays() {
    let table: &[(&str, Make, &str)] = &[
        // -0 + 0 is 0.
        ("x + 0", |x| x + 0.0, "add"),
        ("0 + x", |x| constant(x, 0.0) + x, "add"),
        // -0 - -0 is 0.
        ("x - -0", |x| x - constant(x, -0.0), "sub"),
        // 0 - 0 is 0, and not -0.
        ("0 - x", |x| constant(x, 0.0) - x, "sub"),
        // NaN, infinities, and the sign.
        ("x * 0", |x| x * 0.0, "mul"),
        ("0 / x", |x| constant(x, 0.0) / x, "div"),
        ("x / x", |x| x / x, "div"),
        ("x - x", |x| x - x, "sub"),
        ("pow(x, 0.5)", |x| x.pow(0.5), "pow"),
        // Not rounded alike by every device.
        ("exp 1", |x| constant(x, 1.0).exp(), "exp"),
    ];
    for (name, make, operation) in table {
        becomes(name, *make, &[operation]);
    }
}

/// Constants are folded as a device would round what it computes.
#[test]
fn constants_are_rounded_to_their_type() {
    let program = recorded(|x| (constant(x, 0.1) * 3.0).cast(DType::F64), DType::F32).lowered(true, |_, _| true);
    assert_eq!(computed(&program), [""; 0]);
    assert_eq!(result(&program)[0], f64::from(0.1f32 * 3.0));
    let half: Make = |x| constant(x, 0.1) * 3.0;
    assert_eq!(computed(&recorded(half, DType::F16).lowered(true, |_, _| true)), ["mul"], "halves are left alone");
}
