//! What the snippets train: a perceptron in a store, and the program of a step.

use wgrad::{Array, DType, Data, ParamSet, Program, Store, Tape, Tensor};
use wgrad_tests::model::Mlp;

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
