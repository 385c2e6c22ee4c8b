//! Contractions in half precision as a policy of recording.

use approx::{abs_diff_eq, assert_abs_diff_eq};
use wgrad::{Array, Attention, Cell, Conv2d, DType, Program, Recurrence, Store, Tape, Tensor, op::Op};
use wgrad_nn::{Builder, Embedding, Init, Linear, Recurrent, RecurrentInit};
use wgrad_tests::{Machine, Tolerance, compare, reference};

const F32: DType = DType::F32;

/// The types of the results of all contractions.
fn contractions(program: &Program) -> Vec<(&'static str, DType)> {
    let names = ["matmul", "conv2d", "conv_input_grad", "conv_weight_grad"];
    let is_one = |op: &Op| names.contains(&op.name()) || matches!(op, Op::Attention(_, 0) | Op::AttentionGrad(..));
    let nodes = program.nodes().iter().filter(|node| is_one(&node.op));
    nodes.map(|node| (node.op.name(), node.dtype)).collect()
}

fn model<'t>(t: &'t Tape) -> (Tensor<'t>, [Tensor<'t>; 2]) {
    let (x, w) = (t.input("x", [3, 4], F32), t.input("w", [2, 4], F32));
    ((x.matmul_t(w).tanh() * 3.0).sum(), [x, w])
}

#[test]
fn contractions_are_in_half_forwards_and_backwards_and_nothing_else_is() {
    let t = Tape::default();
    let (loss, leaves) = t.autocast(DType::F16, || model(&t));
    // The sweep runs outside the policy: what it differentiates decides.
    let gradients = loss.grad_wrt(&leaves);
    for (i, g) in gradients.iter().enumerate() {
        let g = g.expect("reached");
        assert_eq!(g.dtype(), F32);
        t.tap(&format!("d{i}"), g);
    }
    t.tap("loss", loss);
    let program = t.finish();
    assert_eq!(contractions(&program), [("matmul", DType::F16); 3]);
    let other = program.nodes().iter().filter(|node| !["matmul", "cast"].contains(&node.op.name()));
    let f16s: Vec<&str> = other.filter(|node| node.dtype == DType::F16).map(|node| node.op.name()).collect();
    assert!(f16s.iter().all(|name| ["permute", "reshape"].contains(name)), "{f16s:?}\n{program}");

    let value = |n: usize| Array::new([n / 4, 4], (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>());
    let inputs = [("x".to_string(), value(12)), ("w".to_string(), value(8))];
    let want = reference(&program, &[], &inputs);
    let mut cpu = Machine::poisoned(2, Store::new());
    let step = cpu.session.compile(program).expect("the plan compiles");
    for ((name, have), (.., want)) in cpu.run(&step, &inputs).taps.iter().zip(&want.taps) {
        compare(name, &have.to_f64(), want, Tolerance(2e-3)).unwrap();
    }
}

#[test]
fn convolutions_are_too() {
    let t = Tape::default();
    let (x, w) = (t.input("x", [1, 2, 4, 4], F32), t.input("w", [3, 2, 3, 3], F32));
    let y = t.autocast(DType::F16, || x.conv2d(w, Conv2d::same(3)));
    assert_eq!(y.dtype(), F32);
    for (i, g) in (y * y).sum().grad_wrt(&[x, w]).into_iter().enumerate() {
        t.tap(&format!("d{i}"), g.expect("reached"));
    }
    let kinds = contractions(&t.finish());
    let half = DType::F16;
    assert_eq!(kinds, [("conv2d", half), ("conv_input_grad", half), ("conv_weight_grad", half)]);
}

/// What a row of the table says of an operation: how many of its contractions are in half, forwards and backwards.
type Row = (&'static str, usize, for<'t> fn(&'t Tape, [Tensor<'t>; 2]) -> Tensor<'t>);

const ROWS: &[Row] = &[
    ("matmul", 3, |_, [x, w]| x.matmul(w)),
    ("matmul_t", 3, |_, [x, w]| x.matmul_t(w)),
    ("matmul in batches", 3, |_, [x, w]| x.reshape([2, 2, 4]).matmul(w.reshape([2, 4, 2]))),
    ("matmul of one vector", 3, |_, [x, w]| x.matmul(w.index(0, 1))),
    ("conv1d", 3, |_, [x, w]| x.reshape([1, 2, 8]).conv1d(w.reshape([4, 2, 2]), 1, 0, 1, 1)),
    ("conv2d", 3, |_, [x, w]| x.reshape([1, 1, 4, 4]).conv2d(w.reshape([4, 1, 2, 2]), Conv2d::default())),
    ("attention", 4, |_, [x, w]| {
        let [q, k] = [x, w].map(|x| x.reshape([1, 2, 2, 4]));
        q.attention(k, k.tanh(), &Attention { causal: true, ..Attention::default() })
    }),
    ("elementwise", 0, |_, [x, w]| (x * w.sigmoid() - w / (x.square() + 1.0)).tanh()),
    ("dot", 0, |_, [x, w]| x.reshape([16]).dot(w.reshape([16]))),
    ("sum", 0, |_, [x, w]| x.sum_axes(&[0]) + w.mean_axes(&[1]) + w.max_axes(&[0])),
    ("softmax", 0, |_, [x, w]| x.softmax(1) * w.log_softmax(0)),
    ("norms", 0, |_, [x, w]| x.layer_norm(1, None, None, 1e-5) + w.rms_norm(1, None, 1e-5)),
    ("batch_norm", 0, |_, [x, w]| x.batch_norm(Some(w.index(0, 0)), None, 1e-5).y),
    ("losses", 0, |t, [x, w]| x.mse(w) + x.cross_entropy(t.iota(4))),
    ("embedding", 0, |t, [x, w]| x.rows(t.iota(3)) * w.slice(0, 0, 3)),
    ("cumsum", 0, |_, [x, w]| x.cumsum(0) * w),
];

/// The operations whose results are f16 numbers, but for what only moves them.
fn in_half(program: &Program) -> Vec<&'static str> {
    let moves = ["cast", "permute", "reshape", "slice", "expand", "assemble"];
    let nodes = program.nodes().iter().filter(|node| node.dtype == DType::F16 && !moves.contains(&node.op.name()));
    nodes.map(|node| node.op.name()).collect()
}

fn gradients<'t>(y: Tensor<'t>, leaves: [Tensor<'t>; 2]) -> Vec<Tensor<'t>> {
    y.square().sum().grad_wrt(&leaves).into_iter().map(|g| g.expect("reached")).collect()
}

/// Each row of the documented table, with the sweep without and within.
#[test]
fn the_policy_is_what_its_table_says() {
    for &(name, count, make) in ROWS {
        let programs = [false, true].map(|within| {
            let t = Tape::default();
            let leaves = ["x", "w"].map(|leaf| t.input(leaf, [4, 4], F32));
            let y = t.autocast(DType::F16, || {
                let y = make(&t, leaves);
                if within {
                    gradients(y, leaves);
                }
                y
            });
            assert_eq!(y.dtype(), F32, "{name}");
            for (i, g) in gradients(y, leaves).into_iter().enumerate() {
                assert_eq!(g.dtype(), F32, "{name}");
                t.tap(&format!("d{i}"), g);
            }
            t.finish()
        });
        for program in &programs {
            assert!(contractions(program).iter().all(|(_, dtype)| *dtype == DType::F16), "{name}:\n{program}");
            let f16s = in_half(program);
            assert_eq!(f16s.len(), count, "{name}: {f16s:?}\n{program}");
            assert_eq!(f16s.len(), contractions(program).len(), "{name}: {f16s:?}\n{program}");
        }
        assert_eq!(
            programs[0].to_string(),
            programs[1].to_string(),
            "{name}: where the sweep is recorded is no matter"
        );
    }
}

/// On the CPU, each row's values and gradients are those of the reference for the same program, but for the rounding of
/// sums, and close to those in f32.
#[test]
fn every_row_runs_and_is_close_to_f32() {
    let values = |salt: f64| {
        let value = |i: usize| ((i as f64 * 0.7 + salt).sin() * 1.3) as f32;
        Array::new([4, 4], (0..16).map(value).collect::<Vec<f32>>())
    };
    let inputs = [("x".to_string(), values(0.3)), ("w".to_string(), values(2.0))];
    for &(name, _, make) in ROWS {
        let record = |policy: DType| {
            let t = Tape::default();
            let leaves = ["x", "w"].map(|leaf| t.input(leaf, [4, 4], F32));
            let y = t.autocast(policy, || make(&t, leaves));
            t.tap("y", y);
            gradients(y, leaves).into_iter().enumerate().for_each(|(i, g)| t.tap(&format!("d{i}"), g));
            t.finish()
        };
        let (half, full) = (record(DType::F16), record(F32));
        let [exact, rounded] = [&full, &half].map(|program| reference(program, &[], &inputs));
        let mut cpu = Machine::poisoned(2, Store::new());
        let step = cpu.session.compile(half).expect("the plan compiles");
        let have = cpu.run(&step, &inputs);
        for (((tap, have), (.., want)), (.., exact)) in have.taps.iter().zip(&rounded.taps).zip(&exact.taps) {
            compare(tap, &have.to_f64(), want, Tolerance(2e-3)).unwrap_or_else(|why| panic!("{name}: {why}"));
            compare(tap, &have.to_f64(), exact, Tolerance(5e-3)).unwrap_or_else(|why| panic!("{name} in f32: {why}"));
        }
    }
}

/// A recurrent layer multiplies its inputs in half, and goes its steps in f32, as one op or one by one.
#[test]
fn recurrent_layers_step_in_f32() {
    for cell in [Cell::Tanh, Cell::Lstm, Cell::Gru] {
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 3);
        let embedding = Embedding::new(b.at("table"), 5, 4, &Init::Normal(1.0));
        let layer = Recurrent::new(b.at("rnn"), cell, 4, 3, &RecurrentInit::of(cell));
        let head = Linear::new(b.at("head"), 3, 2, &Init::Normal(1.0));
        let params = store.params();
        let mut cpu = Machine::poisoned(2, store);
        let run = |cpu: &mut Machine, unrolled: bool| {
            let tape = Tape::new(cpu.session.layout().clone());
            let x = tape.input("x", [6, 2], DType::U32);
            let loss = tape.autocast(DType::F16, || {
                let x = embedding.forward(x);
                let last = if unrolled { layer.unrolled(x).last } else { layer.forward(x).last };
                head.forward(last).square().sum()
            });
            let grads = loss.grad(&params);
            tape.tap("loss", loss);
            tape.tap("gradient", grads.flat().tensors()[0]);
            let program = tape.finish();
            let f16s = in_half(&program);
            let step = cpu.session.compile(program).expect("the plan compiles");
            let x = Array::new([6, 2], (0..12).map(|i| i * 7 % 5).collect::<Vec<u32>>());
            (cpu.run(&step, &[("x".into(), x)]).taps, f16s)
        };
        let (whole, f16s) = run(&mut cpu, false);
        assert_eq!(f16s, ["matmul"; 6], "{cell:?}: the inputs and the head, each with two gradients");
        let (steps, f16s) = run(&mut cpu, true);
        assert_eq!(f16s, ["matmul"; 6], "{cell:?}, step by step");
        for ((name, whole), (_, steps)) in whole.iter().zip(&steps) {
            // A step and a whole sequence add in different orders in f32, so a result rounded to f16 may differ by one unit.
            compare(name, &steps.to_f64(), &whole.to_f64(), Tolerance(4e-3))
                .unwrap_or_else(|why| panic!("{cell:?}: {why}"));
        }
    }
}

/// A gradient is in the type of what it is the gradient of: rules that record contractions of their own, second
/// derivatives of a recurrent layer among them, record what they would without the policy.
#[test]
fn a_sweep_within_records_what_one_without_does() {
    let own_rule: for<'t> fn(&'t Tape, [Tensor<'t>; 2]) -> Tensor<'t> = |t, [x, w]| {
        t.autocast(F32, || {
            let product = [x.matmul_t(w)];
            t.custom_vjp(&[x, w], |_| product.into(), |v| vec![v.cotangents[0].map(|g| g.matmul(v.inputs[1])), None])[0]
        })
    };
    let slope: for<'t> fn(&'t Tape, [Tensor<'t>; 2]) -> Tensor<'t> = |_, [x, w]| {
        let z = x.reshape([2, 2, 4]);
        let (w_hh, h0) = (w, x.slice(0, 0, 2));
        let (h, _) = Recurrence { cell: Cell::Tanh, z, w_hh, h0, c0: None, b_hh: None }.run();
        h.square().sum().grad_wrt(&[x])[0].expect("reached")
    };
    for (name, make) in [("a rule", own_rule), ("a recurrent layer's second derivative", slope)] {
        let program = |within: bool| {
            let t = Tape::default();
            let leaves = ["x", "w"].map(|leaf| t.input(leaf, [4, 4], F32));
            let policy = |inside: bool| if inside { DType::F16 } else { F32 };
            let y = t.autocast(DType::F16, || make(&t, leaves));
            let g = t.autocast(policy(within), || y.square().sum().grad_wrt(&leaves[..1])[0].expect("reached"));
            t.tap("g", g);
            t.finish()
        };
        assert!(contractions(&program(true)).len() >= 2, "{name}:\n{}", program(true));
        assert_eq!(program(true).to_string(), program(false).to_string(), "{name}");
    }
}

/// A weight that is used ten times has ten gradients in half. Summed as f16 numbers these would come to the first, 2048.
#[test]
fn gradients_of_several_uses_are_summed_in_f32() {
    let t = Tape::default();
    let (x, w) = (t.input("x", [10, 1, 1], F32), t.input("w", [1, 1], F32));
    let uses = t.autocast(DType::F16, || (0..10).map(|i| x.index(0, i).matmul(w)).reduce(|a, b| a + b));
    t.tap("dw", uses.expect("ten").sum().grad_wrt(&[w])[0].expect("reached"));
    let mut cpu = Machine::poisoned(1, Store::new());
    let step = cpu.session.compile(t.finish()).expect("the plan compiles");
    let x = [[1.0f32; 9].as_slice(), &[2048.0]].concat();
    let inputs = [("x", Array::new([10, 1, 1], x)), ("w", Array::new([1, 1], vec![1.0f32]))];
    let inputs = inputs.map(|(name, array)| (name.to_string(), array));
    // Between 2048 and 4096 f16 numbers are even.
    assert_eq!(cpu.run(&step, &inputs).tap("dw").item(0), 2056.0);
}

#[test]
fn the_innermost_policy_holds() {
    let t = Tape::default();
    let (x, w) = (t.input("x", [4, 4], F32), t.input("w", [4, 4], F32));
    t.autocast(DType::F16, || {
        t.tap("0", x.matmul(w));
        t.autocast(DType::F16, || t.tap("1", w.matmul(x)));
        t.autocast(F32, || {
            t.tap("2", x.matmul_t(w));
            t.autocast(DType::F16, || t.tap("3", w.matmul_t(x)));
            t.tap("4", x.matmul(x));
        });
        t.tap("5", w.matmul(w));
    });
    t.tap("6", x.matmul_t(x));
    let kinds: Vec<DType> = contractions(&t.finish()).into_iter().map(|(_, dtype)| dtype).collect();
    let half = DType::F16;
    assert_eq!(kinds, [half, half, F32, half, F32, half, F32]);
}

#[test]
fn it_ends_where_it_ends_and_can_be_switched_off_within() {
    let t = Tape::default();
    let (x, w) = (t.input("x", [3, 4], F32), t.input("w", [4, 4], F32));
    let (half, inner) = t.autocast(DType::F16, || (x.matmul(w), t.autocast(F32, || x.matmul_t(w))));
    let after = x.matmul(w);
    [half, inner, after].iter().enumerate().for_each(|(i, y)| t.tap(&i.to_string(), *y));
    assert_eq!(contractions(&t.finish()), [("matmul", DType::F16), ("matmul", F32), ("matmul", F32)]);
}

#[test]
fn other_types_are_left_alone() {
    for dtype in [DType::F64, DType::F16] {
        let t = Tape::default();
        let (x, w) = (t.input("x", [2, 2], dtype), t.input("w", [2, 2], dtype));
        let y = t.autocast(DType::F16, || x.matmul(w));
        t.tap("dx", y.sum().grad_wrt(&[x])[0].expect("reached"));
        let program = t.finish();
        assert!(program.nodes().iter().all(|node| node.dtype == dtype && node.op.name() != "cast"), "{program}");
    }
}

/// Of f16 numbers too, rows are summed in f32, and what is left over of a batch is: f16 numbers end at 65504.
#[test]
fn sums_of_f16_stay_in_range() {
    let t = Tape::default();
    let q = t.input("q", [1, 1, 1], DType::F16);
    let k = t.input("k", [1, 70_000, 1], DType::F16);
    t.tap("attention", q.attention(k, k + 1.0, &Attention::default()));
    t.tap("weights", q.attention_weights(k, &Attention::default()).slice(2, 0, 1));
    let x = t.input("x", [2, 1], DType::F16);
    let normed = x.batch_norm(None, None, 1e-5);
    t.tap("var", normed.var);
    let (mean, var) = normed.running(t.full([1], 0.0, F32), t.full([1], 1.0, F32), 0.5);
    t.tap("running", var);
    t.tap("eval", x.batch_norm_eval(mean, var, None, None, 1e-5));
    let half = |shape: &[usize], value: f64| Array::new(shape, vec![value; shape.iter().product()]).cast(DType::F16);
    let x = Array::new([2, 1], vec![-1000.0, 1000.0]).cast(DType::F16);
    let inputs = [("q", half(&[1, 1, 1], 1.0)), ("k", half(&[1, 70_000, 1], 0.0)), ("x", x)];
    let inputs = inputs.map(|(name, array)| (name.to_string(), array));
    let mut cpu = Machine::poisoned(2, Store::new());
    let step = cpu.session.compile(t.finish()).expect("the plan compiles");
    let out = cpu.run(&step, &inputs);
    for (name, want) in [("attention", 1.0), ("weights", 1.0 / 70_000.0), ("var", 1e6), ("running", 1e6 + 0.5)] {
        let have = out.tap(name).item(0);
        assert!(abs_diff_eq!(have, want, epsilon = 5e-3 * want), "{name}: {have}, and not {want}");
    }
    assert_eq!([out.tap("var").dtype(), out.tap("eval").dtype()], [F32, DType::F16]);
    assert_abs_diff_eq!(out.tap("eval").item(0), -1.0, epsilon = 2e-3);
}

#[test]
fn small_gradients_are_lost_in_half_unless_the_loss_is_scaled() {
    let gradient = |scale: f64| {
        let t = Tape::default();
        let (x, w) = (t.input("x", [1, 1], F32), t.input("w", [1, 1], F32));
        let loss = t.autocast(DType::F16, || x.matmul(w)).sum() * 1e-9;
        t.tap("dw", (loss * scale).grad_wrt(&[w])[0].expect("reached") / scale);
        let mut cpu = Machine::poisoned(1, Store::new());
        let step = cpu.session.compile(t.finish()).expect("the plan compiles");
        let one = |name: &str| (name.to_string(), Array::new([1, 1], vec![1.0f32]));
        cpu.run(&step, &[one("x"), one("w")]).tap("dw").item(0)
    };
    assert_eq!(gradient(1.0), 0.0);
    assert_abs_diff_eq!(gradient(65536.0), 1e-9, epsilon = 1e-12);
}

#[test]
#[should_panic(expected = "autocast to f64 is not supported")]
fn only_f16_is_offered() {
    Tape::default().autocast(DType::F64, || ());
}
