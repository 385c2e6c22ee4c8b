//! Recurrent layers against golden vectors and against the recurrence written out.

use crate::{golden, open, param};
use approx::{abs_diff_eq, assert_abs_diff_eq};
use std::{cell::RefCell, rc::Rc};
use wgrad::{Array, DType, Store, Tape, Tensor};
use wgrad_nn::{Builder, Cell, Embedding, Init, Linear, Outputs, Recurrent, RecurrentInit};

/// The cell of a golden op, and whether the case is one step.
fn cell(op: &str) -> Option<(Cell, bool)> {
    let (kind, form) = op.rsplit_once('_')?;
    let cells = [("rnn_tanh", Cell::Tanh), ("lstm", Cell::Lstm), ("gru", Cell::Gru)];
    cells.iter().find(|(name, _)| *name == kind).map(|(_, cell)| (*cell, form == "cell"))
}

fn sum(a: &Array, b: &Array) -> Array {
    let values: Vec<f64> = a.to_f64().into_iter().zip(b.to_f64()).map(|(a, b)| a + b).collect();
    Array::new(a.shape(), wgrad::Data::from_f64(a.dtype(), &values))
}

/// The layer as one op, and step by step.
const FORMS: [bool; 2] = [false, true];

fn run<'t>(layer: &Recurrent, unrolled: bool, x: Tensor<'t>) -> Outputs<'t> {
    if unrolled { layer.unrolled(x) } else { layer.forward(x) }
}

#[test]
fn golden_outputs_and_gradients() {
    for unrolled in FORMS {
        golden_cases(unrolled);
    }
}

fn golden_cases(unrolled: bool) {
    for case in golden::cases(|_, op| cell(op).is_some()) {
        let (kind, single) = cell(case.op()).expect("accepted above");
        let (w_ih, w_hh) = (case.tensor("in/w_ih"), case.tensor("in/w_hh"));
        let (inputs, hidden) = (w_ih.shape()[1], w_hh.shape()[1]);
        let mut store = Store::new();
        let mut b = Builder::new(&mut store, 0).with_dtype(case.dtype());
        let layer = Recurrent::new(b.at("layer"), kind, inputs, hidden, &RecurrentInit::default());
        let params = store.params();
        let mut session = open(store);
        let (b_ih, b_hh) = (case.tensor("in/b_ih"), case.tensor("in/b_hh"));
        let (bias, second) = if kind == Cell::Gru { (b_ih.clone(), Some(b_hh)) } else { (sum(b_ih, b_hh), None) };
        session.write_param(layer.weight_ih, w_ih).expect("fits");
        session.write_param(layer.weight_hh, w_hh).expect("fits");
        session.write_param(layer.bias, &bias).expect("fits");
        if let (Some(param), Some(value)) = (layer.bias_hh, second) {
            session.write_param(param, value).expect("fits");
        }
        let fed = |prefix: &str| -> Vec<(String, &'static Array)> {
            let names = ["x", "h", "c", "y"].map(|name| format!("{prefix}/{name}"));
            names.into_iter().filter_map(|name| case.find(&name).map(|array| (name, array))).collect()
        };
        let arrays = [fed("in"), fed("cot")].concat();
        let record = |t: &Tape| {
            let input = |name: &str| case.find(name).map(|array| t.input_like(name, array));
            let (x, h, c) = (input("in/x").expect("x"), input("in/h").expect("h"), input("in/c"));
            let sequence = if single { x.reshape([&[1], &x.shape()[..]].concat()) } else { x };
            let out = match unrolled {
                false => layer.forward_from(sequence, h, c),
                true => layer.unrolled_from(sequence, h, c),
            };
            let mut outputs = vec![("h", out.last)];
            outputs.extend(out.memory.map(|c| ("c", c)));
            outputs.extend((!single).then(|| ("y", out.stacked())));
            outputs.iter().for_each(|(name, y)| t.tap(&format!("out/{name}"), *y));
            let cotangents = outputs.iter().map(|(name, _)| input(&format!("cot/{name}")).expect("a cotangent"));
            let loss =
                outputs.iter().zip(cotangents).map(|((_, y), g)| (*y * g).sum()).reduce(|a, b| a + b).expect("outputs");
            let given: Vec<(&str, Tensor<'_>)> = [("x", Some(x)), ("h", Some(h)), ("c", c)]
                .into_iter()
                .filter_map(|(name, tensor)| tensor.map(|tensor| (name, tensor)))
                .collect();
            let wrt: Vec<Tensor<'_>> = given.iter().map(|(_, tensor)| *tensor).collect();
            for ((name, _), g) in given.iter().zip(loss.grad_wrt(&wrt)) {
                t.tap(&format!("grad/{name}"), g.expect("reached"));
            }
            let grads = loss.grad(&params);
            let get = |param| grads.get(param).expect("reached");
            t.tap("grad/w_ih", get(layer.weight_ih));
            t.tap("grad/w_hh", get(layer.weight_hh));
            t.tap("grad/b_ih", get(layer.bias));
            t.tap("grad/b_hh", get(layer.bias_hh.unwrap_or(layer.bias)));
        };
        let step = session.record(record).expect("compiles");
        let arrays: Vec<(&str, &Array)> = arrays.iter().map(|(name, array)| (name.as_str(), *array)).collect();
        session.run(&step, &arrays).expect("runs");
        let taps = session.taps().expect("ran").pop().expect("one run");
        for name in case.expected() {
            case.check(&name, taps.get(&name).unwrap_or_else(|| panic!("{name} is not tapped")));
        }
    }
}

/// `h_t = f(W x_t + U h_(t-1) + b)` from zeros, for one sample, with plain loops.
fn written_out([w, u, b, x]: [&[f64]; 4], f: impl Fn(f64) -> f64) -> Vec<f64> {
    let hidden = b.len();
    let inputs = w.len() / hidden;
    let product = |m: &[f64], v: &[f64], i: usize| -> f64 { (0..v.len()).map(|j| m[i * v.len() + j] * v[j]).sum() };
    let (mut h, mut all) = (vec![0.0; hidden], vec![]);
    for x in x.chunks(inputs) {
        h = (0..hidden).map(|i| f(b[i] + product(w, x, i) + product(u, &h, i))).collect();
        all.extend(&h);
    }
    all
}

#[test]
fn plain_cells_follow_the_recurrence() {
    let x: Vec<f64> = (0..15).map(|i| (i as f64 * 0.7).sin()).collect();
    type Function = fn(f64) -> f64;
    let functions: [(Cell, Function); 3] =
        [(Cell::Tanh, f64::tanh), (Cell::Sigmoid, |z| 1.0 / (1.0 + (-z).exp())), (Cell::Irnn, |z| z.max(0.0))];
    for ((cell, f), unrolled) in functions.into_iter().flat_map(|case| FORMS.map(|form| (case, form))) {
        let mut store = Store::new();
        let init = RecurrentInit { bias: Init::Normal(0.5), ..RecurrentInit::normal(0.8) };
        let mut b = Builder::new(&mut store, 5).with_dtype(DType::F64);
        let layer = Recurrent::new(b.at("rnn"), cell, 3, 4, &init);
        let mut session = open(store);
        let input = Array::new([5, 1, 3], x.clone());
        let have = session
            .eval(&[("x", &input)], |t| run(&layer, unrolled, t.input_like("x", &input)).stacked())
            .expect("runs");
        assert_eq!(**have.shape(), [5, 1, 4]);
        let mut read = |param| session.read_param(param).expect("readable").to_f64();
        let (w, u, b) = (read(layer.weight_ih), read(layer.weight_hh), read(layer.bias));
        let want = written_out([&w, &u, &b, &x], f);
        for (have, want) in have.to_f64().into_iter().zip(want) {
            assert!(abs_diff_eq!(have, want, epsilon = 1e-14), "{cell:?}: {have} for {want}");
        }
    }
}

#[test]
fn parameters_have_their_names_shapes_and_first_values() {
    for (cell, gates, biases) in [
        (Cell::Tanh, 1, &["bias"][..]),
        (Cell::Irnn, 1, &["bias"]),
        (Cell::Lstm, 4, &["bias"]),
        (Cell::Gru, 3, &["bias_ih", "bias_hh"]),
    ] {
        let mut store = Store::new();
        Recurrent::new(Builder::new(&mut store, 1).at("cell"), cell, 2, 3, &RecurrentInit::of(cell));
        let mut session = open(store);
        let mut shapes = vec![("weight_ih", vec![gates * 3, 2]), ("weight_hh", vec![gates * 3, 3])];
        shapes.extend(biases.iter().map(|name| (*name, vec![gates * 3])));
        assert_eq!(session.layout().params().count(), shapes.len());
        for (name, shape) in shapes {
            let id = param(&session, &format!("cell/{name}"));
            assert_eq!(**session.read_param(id).expect("readable").shape(), shape, "{cell:?} {name}");
        }
        let mut read = |name: &str| {
            let id = param(&session, &format!("cell/{name}"));
            session.read_param(id).expect("readable").to_f64()
        };
        match cell {
            Cell::Irnn => assert_eq!(read("weight_hh"), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]),
            Cell::Lstm => assert_eq!(read("bias"), [[0.0; 3], [1.0; 3], [0.0; 3], [0.0; 3]].concat()),
            _ => assert!(read(biases[0]).iter().all(|b| *b == 0.0)),
        }
    }
}

#[test]
fn the_probe_sees_the_gradient_of_every_step() {
    for unrolled in FORMS {
        probe_case(unrolled);
    }
}

fn probe_case(unrolled: bool) {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 2).with_dtype(DType::F64);
    let layer = Recurrent::new(b.at("a"), Cell::Tanh, 2, 3, &RecurrentInit::normal(0.7));
    let mut session = open(store);
    let x = Array::new([4, 2, 2], (0..16).map(|i| (i as f64).cos()).collect::<Vec<f64>>());
    let seen = Rc::new(RefCell::new(vec![]));
    let log = seen.clone();
    let step = session
        .record(|t| {
            let x = t.input_like("x", &x);
            let watch = move |path: &str, z: Tensor<'_>| log.borrow_mut().push((path.to_string(), z.shape().to_vec()));
            let out = t.with_probe(
                move |path, z| {
                    watch(path, z);
                    z.on_grad(|g| {
                        g.tape().tap("probed", g);
                        g
                    })
                },
                || run(&layer, unrolled, x),
            );
            assert_eq!(out.is_unrolled(), unrolled);
            let loss = out.last.sum();
            // dL/dz_t = dL/dh_t * (1 - h_t^2).
            let steps = layer.unrolled(x).steps();
            let g = steps[steps.len() - 1].sum().grad_wrt(&steps);
            let dz: Vec<Tensor<'_>> =
                steps.iter().zip(g).map(|(h, g)| g.expect("reached") * (1.0 - h.square())).collect();
            t.tap("expected", Tensor::stack(&dz));
            t.tap("bias", loss.grad_wrt(&[t.param(layer.bias)])[0].expect("reached"));
        })
        .expect("compiles");
    assert_eq!(*seen.borrow(), [("rnn/time/z".to_string(), vec![4, 2, 3])]);
    session.run(&step, &[("x", &x)]).expect("runs");
    let taps = session.taps().expect("ran").pop().expect("one run");
    let (have, want) = (taps.get("probed").expect("hooked").to_f64(), taps.get("expected").expect("tapped").to_f64());
    assert!(have.iter().all(|g| *g != 0.0));
    assert_abs_diff_eq!(have[..], want[..], epsilon = 1e-14);
}

#[test]
#[should_panic(expected = "lstm of f32[4, 2]: needs a sequence [time, batch, inputs]")]
fn a_sequence_has_three_dimensions() {
    let mut store = Store::new();
    let layer = Recurrent::new(Builder::new(&mut store, 2), Cell::Lstm, 2, 3, &RecurrentInit::default());
    let tape = Tape::new(store.into_parts().0);
    layer.forward(tape.input("x", [4, 2], DType::F32));
}

#[test]
fn linear_and_embedding_are_affine_and_a_lookup() {
    let mut store = Store::new();
    let mut b = Builder::new(&mut store, 4).with_dtype(DType::F64);
    let table = Embedding::new(b.at("table"), 5, 2, &Init::Normal(1.0));
    let linear = Linear::new(b.at("linear"), 2, 3, &Init::Normal(1.0));
    let bare = Linear::without_bias(b.at("bare"), 2, 3, &Init::Normal(1.0));
    let mut session = open(store);
    session.write_param(linear.bias.expect("declared"), &Array::new([3], vec![1.0, 2.0, 3.0])).expect("fits");
    let index = Array::new([2, 2], vec![4u32, 0, 1, 4]);
    let vectors = session.eval(&[("i", &index)], |t| table.forward(t.input_like("i", &index))).expect("runs");
    assert_eq!(**vectors.shape(), [2, 2, 2]);
    let rows = session.read_param(table.weight).expect("readable").to_f64();
    let want: Vec<f64> = [4, 0, 1, 4].iter().flat_map(|&i| rows[i * 2..i * 2 + 2].to_vec()).collect();
    assert_eq!(vectors.to_f64(), want);
    for (layer, bias) in [(&linear, [1.0, 2.0, 3.0]), (&bare, [0.0; 3])] {
        let y = session.eval(&[("x", &vectors)], |t| layer.forward(t.input_like("x", &vectors))).expect("runs");
        assert_eq!(**y.shape(), [2, 2, 3]);
        let w = session.read_param(layer.weight).expect("readable").to_f64();
        for (i, y) in y.to_f64().into_iter().enumerate() {
            let (x, unit) = (&want[i / 3 * 2..][..2], i % 3);
            let expected = x[0] * w[unit * 2] + x[1] * w[unit * 2 + 1] + bias[unit];
            assert_abs_diff_eq!(y, expected, epsilon = 1e-14);
        }
    }
}
