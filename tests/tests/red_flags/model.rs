//! What the snippets train: a perceptron in a store, and the program of a step.

use wgrad::{Array, DType, Data, InProcess, ParamSet, Program, Session, Step, Store, Tape, Tensor};
use wgrad_cpu::CpuBackend;
use wgrad_tests::Mlp;

/// A perceptron.
pub struct Model {
    mlp: Mlp,
    /// All parameters.
    pub params: ParamSet,
    /// The weight and the bias of the first layer.
    pub first: ParamSet,
    /// The weight of the second layer, the last.
    pub head: ParamSet,
}

impl Model {
    /// Declares the parameters.
    pub fn new(store: &mut Store) -> Self {
        let mlp = Mlp::new(store, DType::F32);
        let [weight, bias, head] = mlp.params;
        let (first, head) = ([weight, bias].into_iter().collect(), [head].into_iter().collect());
        Self { params: mlp.params(), first, head, mlp }
    }

    /// Records the loss.
    pub fn loss<'t>(&self, t: &'t Tape) -> Tensor<'t> {
        self.mlp.loss(t)
    }

    /// Records the outputs, `[7, 3]`.
    pub fn outputs<'t>(&self, t: &'t Tape) -> Tensor<'t> {
        let [weight, bias, head] = self.mlp.params.map(|param| t.param(param));
        (t.input("x", [7, 4], DType::F32).matmul_t(weight) + bias).tanh().matmul_t(head)
    }

    /// Records the loss of another batch.
    pub fn other_loss<'t>(&self, t: &'t Tape) -> Tensor<'t> {
        let [x, y] = [("other x", 4), ("other y", 3)].map(|(name, width)| t.input(name, [7, width], DType::F32));
        self.mlp.loss_of(t, x, y)
    }

    /// Some data for a program: numbers that differ, and small indices.
    pub fn inputs(program: &Program) -> Vec<(String, Array)> {
        let of = |decl: &wgrad::InputDecl| {
            let len = decl.shape.numel();
            let value = |i: usize| if decl.dtype.is_float() { (i as f64 * 0.7).sin() } else { (i % 2) as f64 };
            let data = Data::from_f64(decl.dtype, &(0..len).map(value).collect::<Vec<f64>>());
            (decl.name.clone(), Array::new(&decl.shape, data))
        };
        program.inputs().iter().map(of).collect()
    }
}

/// Records a step of one of several ranks.
pub fn record_for(ranks: usize, store: Store, f: impl FnOnce(&Tape)) -> Recorded {
    let t = Tape::for_ranks(store.layout().clone().into(), ranks);
    f(&t);
    Recorded { store, program: t.finish() }
}

/// What each of several ranks gives, each a thread with a store and a model of its own.
pub fn world<R: Send>(ranks: usize, f: impl Fn(Box<InProcess>, Store, &Model) -> R + Sync) -> Vec<R> {
    let f = &f;
    let one = |rank: InProcess| {
        let mut store = Store::new();
        let model = Model::new(&mut store);
        f(Box::new(rank), store, &model)
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = InProcess::world(ranks).into_iter().map(|rank| scope.spawn(move || one(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

/// A session over a store.
pub fn session(store: Store) -> Session {
    let backend = Box::new(CpuBackend::poisoned(1).expect("the thread starts"));
    Session::new(backend, store).expect("the device has room")
}

/// Runs a step with data of which every number is this one.
pub fn run_on(session: &mut Session, step: &Step, value: f32) {
    let inputs: Vec<(&str, Array)> =
        step.inputs().iter().map(|i| (&*i.name, Array::new(&i.shape, vec![value; i.shape.numel()]))).collect();
    let inputs: Vec<(&str, &Array)> = inputs.iter().map(|(name, array)| (*name, array)).collect();
    session.run(step, &inputs).expect("the run is in order");
}

/// The first state of this name.
pub fn state(session: &mut Session, name: &str) -> Vec<f64> {
    let id = session.layout().states().find(|(_, decl)| decl.name == name).expect("there is one").0;
    session.read(id).expect("it can be read").to_f64()
}

/// Runs a step with some data.
pub fn run(session: &mut Session, step: &Step) -> wgrad::Result<u64> {
    let inputs = Model::inputs(step);
    session.run(step, &inputs.iter().map(|(name, array)| (name.as_str(), array)).collect::<Vec<_>>())
}

/// A step, and the store that it is over.
pub struct Recorded {
    pub store: Store,
    pub program: Program,
}

/// Records a step.
pub fn record(store: Store, f: impl FnOnce(&Tape)) -> Recorded {
    let t = Tape::new(store.layout().clone().into());
    f(&t);
    Recorded { store, program: t.finish() }
}
