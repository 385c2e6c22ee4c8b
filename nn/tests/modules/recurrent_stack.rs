//! Stacks of recurrent layers, against the recurrence written out for one step of one sample at a time.

use crate::{assert_close, declared, eval, numbers, session};
use wgrad::{Array, DType, Rng, Session, Shape, Store};
use wgrad_nn::{Builder, Cell, Dropout, Init, Recurrent, RecurrentInit, RecurrentStack, StackConfig, StackOutputs};

const INPUTS: usize = 3;
const HIDDEN: usize = 2;
const TIME: usize = 4;
const BATCH: usize = 2;

const CELLS: [Cell; 3] = [Cell::Tanh, Cell::Lstm, Cell::Gru];

/// Biases that are not zero, so that one in a wrong place shows.
fn init() -> RecurrentInit {
    RecurrentInit { bias: Init::Normal(0.5), forget_bias: None, ..RecurrentInit::normal(0.8) }
}

fn stack(b: Builder<'_>, cell: Cell, config: &StackConfig) -> RecurrentStack {
    RecurrentStack::new(b, cell, INPUTS, HIDDEN, &init(), config)
}

/// The parameters of a layer: the matrices of the input and of the hidden state, and their biases.
struct Weights([Vec<f64>; 4]);

impl Weights {
    fn read(session: &mut Session, layer: &Recurrent) -> Self {
        let mut of = |param| session.read_param(param).expect("readable").to_f64();
        let b_hh = layer.bias_hh.map(&mut of).unwrap_or_default();
        Self([of(layer.weight_ih), of(layer.weight_hh), of(layer.bias), b_hh])
    }

    /// One step of one sample by the formulas of PyTorch's documentation, from `(h, c)` to the next.
    fn step(&self, cell: Cell, x: &[f64], (h, c): (&[f64], &[f64])) -> (Vec<f64>, Vec<f64>) {
        let Self([w_ih, w_hh, b_ih, b_hh]) = self;
        let row = |w: &[f64], v: &[f64], i: usize| (0..v.len()).map(|j| w[i * v.len() + j] * v[j]).sum::<f64>();
        let of_x = |gate: usize, i: usize| row(w_ih, x, gate * HIDDEN + i) + b_ih[gate * HIDDEN + i];
        let bias = |at: usize| b_hh.get(at).copied().unwrap_or(0.0);
        let of_h = |gate: usize, i: usize| row(w_hh, h, gate * HIDDEN + i) + bias(gate * HIDDEN + i);
        let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
        let sum = |gate: usize, i: usize| of_x(gate, i) + of_h(gate, i);
        let each = |f: &dyn Fn(usize) -> f64| (0..HIDDEN).map(f).collect::<Vec<f64>>();
        match cell {
            Cell::Tanh => (each(&|i| sum(0, i).tanh()), vec![]),
            Cell::Lstm => {
                let c = each(&|i| sigmoid(sum(1, i)) * c[i] + sigmoid(sum(0, i)) * sum(2, i).tanh());
                (each(&|i| sigmoid(sum(3, i)) * c[i].tanh()), c)
            }
            Cell::Gru => {
                let new = |i: usize| (of_x(2, i) + sigmoid(sum(0, i)) * of_h(2, i)).tanh();
                (each(&|i| (1.0 - sigmoid(sum(1, i))) * new(i) + sigmoid(sum(1, i)) * h[i]), vec![])
            }
            _ => panic!("{cell:?} is not written out"),
        }
    }
}

/// The results, as [`StackOutputs`] has them, row-major.
#[derive(Default)]
struct Written {
    hidden: Vec<f64>,
    last: Vec<f64>,
    memory: Vec<f64>,
}

/// A stack that starts from `h` and `c`, each `[layers * directions, batch, hidden]`.
fn written_out(session: &mut Session, stack: &RecurrentStack, x: &[f64], h: &[f64], c: &[f64]) -> Written {
    let mut out = Written::default();
    // At `[time][sample]`, what the layer runs over.
    let mut rows: Vec<Vec<Vec<f64>>> =
        x.chunks(BATCH * INPUTS).map(|step| step.chunks(INPUTS).map(<[f64]>::to_vec).collect()).collect();
    let mut state = 0;
    for layer in &stack.layers {
        let mut next = vec![vec![vec![]; BATCH]; TIME];
        for (direction, recurrent) in layer.iter().enumerate() {
            let weights = Weights::read(session, recurrent);
            for sample in 0..BATCH {
                let at = (state * BATCH + sample) * HIDDEN;
                let (mut h, mut c) = (h[at..at + HIDDEN].to_vec(), c[at..at + HIDDEN].to_vec());
                for turn in 0..TIME {
                    let t = if direction == 0 { turn } else { TIME - 1 - turn };
                    (h, c) = weights.step(recurrent.cell, &rows[t][sample], (&h, &c));
                    next[t][sample].extend(&h);
                }
                out.last.extend(&h);
                out.memory.extend(&c);
            }
            state += 1;
        }
        rows = next;
    }
    out.hidden = rows.concat().concat();
    out
}

fn configs() -> impl Iterator<Item = StackConfig> {
    [1, 3]
        .into_iter()
        .flat_map(|layers| [false, true].map(|bidirectional| StackConfig { layers, bidirectional, dropout: None }))
}

#[test]
fn results_are_those_of_the_recurrence_written_out() {
    for (cell, config) in CELLS.into_iter().flat_map(|cell| configs().map(move |config| (cell, config))) {
        let directions = if config.bidirectional { 2 } else { 1 };
        let states = config.layers * directions;
        let (stack, mut session) = declared(|b| stack(b, cell, &config));
        let x = numbers(Shape::from([TIME, BATCH, INPUTS]), 1);
        let start = |turn| numbers(Shape::from([states, BATCH, HIDDEN]), turn);
        let zeros = Array::zeros([states, BATCH, HIDDEN], DType::F64);
        for (h, c) in [(zeros.clone(), zeros), (start(5), start(9))] {
            let from_zeros = h.to_f64().iter().all(|h| *h == 0.0);
            let step = session.record(|t| {
                let [x, h, c] = [("x", &x), ("h", &h), ("c", &c)].map(|(name, array)| t.input_like(name, array));
                let StackOutputs { hidden, last, memory } = match from_zeros {
                    true => stack.forward(x, true),
                    false => stack.forward_from(x, h, (cell == Cell::Lstm).then_some(c), true),
                };
                t.tap("hidden", hidden);
                t.tap("last", last);
                memory.into_iter().for_each(|memory| t.tap("memory", memory));
            });
            let taps = session.run_now(&step.expect("it compiles"), &[("x", &x), ("h", &h), ("c", &c)]);
            let taps = taps.expect("it runs");
            let want = written_out(&mut session, &stack, &x.to_f64(), &h.to_f64(), &c.to_f64());
            let hidden = taps.get("hidden").expect("tapped");
            assert_eq!(**hidden.shape(), [TIME, BATCH, directions * HIDDEN]);
            assert_eq!(**taps.get("last").expect("tapped").shape(), [states, BATCH, HIDDEN]);
            assert_close(&hidden.to_f64(), &want.hidden);
            assert_close(&taps.get("last").expect("tapped").to_f64(), &want.last);
            assert_eq!(taps.get("memory").is_some(), cell == Cell::Lstm);
            if let Some(memory) = taps.get("memory") {
                assert_close(&memory.to_f64(), &want.memory);
            }
        }
    }
}

#[test]
fn one_layer_in_one_direction_is_the_layer_itself() {
    let x = numbers(Shape::from([TIME, BATCH, INPUTS]), 1);
    let (stack, mut session) = declared(|b| stack(b, Cell::Gru, &StackConfig::default()));
    let layer = stack.layers[0][0].clone();
    let stacked = eval(&mut session, &x, |x| stack.forward(x, true).hidden);
    assert_eq!(stacked, eval(&mut session, &x, |x| layer.forward(x).stacked()));
}

#[test]
fn parameters_are_named_by_layer_and_direction() {
    let config = StackConfig { layers: 2, bidirectional: true, dropout: None };
    let (_, session) = declared(|b| stack(b, Cell::Tanh, &config));
    let shapes: Vec<(String, Vec<usize>)> =
        session.layout().params().map(|(_, p)| (p.path.clone(), p.shape.to_vec())).collect();
    let mut want = vec![];
    for (layer, inputs) in [(0, INPUTS), (1, 2 * HIDDEN)] {
        for direction in ["forward", "reverse"] {
            let path = |name| format!("layer/{layer}/{direction}/{name}");
            want.push((path("weight_ih"), vec![HIDDEN, inputs]));
            want.push((path("weight_hh"), vec![HIDDEN, HIDDEN]));
            want.push((path("bias"), vec![HIDDEN]));
        }
    }
    assert_eq!(shapes, want);
}

/// Dropout acts between layers: on what the second layer runs over, and neither on the input nor on the result.
#[test]
fn dropout_acts_between_layers_in_training() {
    let x = numbers(Shape::from([TIME, BATCH, INPUTS]), 1);
    let results = |layers: usize, p: f64, training: bool| {
        let mut store = Store::new();
        let dropout = Some(Dropout::new(p, Rng::new(&mut store, "dropout", 1)));
        let config = StackConfig { layers, bidirectional: true, dropout };
        let stack = stack(Builder::new(&mut store, 5).with_dtype(DType::F64), Cell::Lstm, &config);
        let mut session = session(store);
        let step = session.record(|t| {
            let out = stack.forward(t.input_like("x", &x), training);
            t.tap("hidden", out.hidden);
            // The states of the first layer, which come first, have met no dropout.
            t.tap("first", out.last.slice(0, 0, 2));
        });
        let taps = session.run_now(&step.expect("it compiles"), &[("x", &x)]).expect("it runs");
        ["hidden", "first"].map(|name| taps.get(name).expect("tapped").to_f64())
    };
    assert_eq!(results(1, 0.5, true), results(1, 0.0, true));
    assert_eq!(results(2, 0.5, false), results(2, 0.0, false));
    let ([dropped, first], [plain, same]) = (results(2, 0.5, true), results(2, 0.0, true));
    assert!(dropped.iter().zip(&plain).any(|(a, b)| a != b) && dropped.iter().all(|h| *h != 0.0));
    assert_eq!(first, same);
}
