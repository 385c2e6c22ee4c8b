//! Small models to train: one with a given gradient, and a perceptron.

use wgrad::{Array, DType, Data, Grads, Param, ParamSet, Store, Tape, Tensor};

/// Parameters `p0`, `p1`, .. with a loss that is linear in them, so that the inputs `g0`, `g1`, .. are the gradients.
pub struct Linear {
    /// The parameters.
    pub params: Vec<Param>,
}

impl Linear {
    /// Declares one parameter per value.
    pub fn new(store: &mut Store, values: &[Array]) -> Self {
        Self { params: values.iter().enumerate().map(|(i, value)| store.param(&format!("p{i}"), value)).collect() }
    }

    /// Records the loss.
    pub fn loss<'t>(&self, tape: &'t Tape) -> Tensor<'t> {
        let terms = self.params.iter().enumerate().map(|(i, &param)| {
            let p = tape.param(param);
            (p * tape.shared_input(&format!("g{i}"), p.shape(), p.dtype())).sum()
        });
        // The terms are cast to the type of the first one. A cast passes the gradient of 1 on as 1.
        terms.reduce(|a, b| a + b.cast(a.dtype())).expect("at least one parameter")
    }

    /// Records the gradients, which are equal to the inputs.
    pub fn grads<'t>(&self, tape: &'t Tape) -> Grads<'t> {
        self.loss(tape).grad(&self.params.iter().copied().collect())
    }

    /// The inputs that give these gradients.
    pub fn inputs(gradients: &[Array]) -> Vec<(String, Array)> {
        gradients.iter().enumerate().map(|(i, g)| (format!("g{i}"), g.clone())).collect()
    }
}

/// A perceptron with one hidden layer of `tanh`, and its data: inputs `x` and `y`.
pub struct Mlp {
    dtype: DType,
    /// The weight and the bias of the first layer, and the weight of the second. Weights are `[out, in]`.
    pub params: [Param; 3],
}

impl Mlp {
    const ROWS: usize = 7;
    const SIZES: [usize; 3] = [4, 5, 3];

    /// Declares the parameters, with fixed values.
    pub fn new(store: &mut Store, dtype: DType) -> Self {
        let [inputs, hidden, outputs] = Self::SIZES;
        let shapes = [vec![hidden, inputs], vec![hidden], vec![outputs, hidden]];
        let mut declare = |i: usize| {
            let value = pattern(&shapes[i], i + 1, 0.9);
            store.param(["first/weight", "first/bias", "second/weight"][i], &value.cast(dtype))
        };
        Self { dtype, params: [declare(0), declare(1), declare(2)] }
    }

    /// All parameters.
    pub fn params(&self) -> ParamSet {
        self.params.into_iter().collect()
    }

    /// Records the loss.
    pub fn loss<'t>(&self, tape: &'t Tape) -> Tensor<'t> {
        let (x, y) = self.inputs(tape);
        self.loss_of(tape, x, y)
    }

    /// Records the inputs of a batch: the features `x` and the targets `y`.
    pub fn inputs<'t>(&self, tape: &'t Tape) -> (Tensor<'t>, Tensor<'t>) {
        let input = |name, columns| tape.shared_input(name, [Self::ROWS, columns], self.dtype);
        (input("x", Self::SIZES[0]), input("y", Self::SIZES[2]))
    }

    /// Records the loss of some rows.
    pub fn loss_of<'t>(&self, tape: &'t Tape, x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        let [w1, b1, w2] = self.params.map(|param| tape.param(param));
        let hidden = tape.scoped("first", || (x.matmul_t(w1) + b1).tanh());
        tape.scoped("second", || hidden.matmul_t(w2)).mse(y)
    }

    /// A batch of data; another `salt` gives another batch.
    pub fn batch(&self, salt: usize) -> Vec<(String, Array)> {
        let data = |name: &str, columns: usize, salt: usize| {
            (name.to_string(), pattern(&[Self::ROWS, columns], salt, 2.0).cast(self.dtype))
        };
        vec![data("x", Self::SIZES[0], salt * 2 + 11), data("y", Self::SIZES[2], salt * 2 + 12)]
    }
}

/// Deterministic numbers in `[-scale, scale]` without an obvious pattern.
fn pattern(shape: &[usize], salt: usize, scale: f64) -> Array {
    let value = |i: usize| ((i * 2654435761 + salt * 40503 + 12345) % 10007) as f64 / 5003.0 - 1.0;
    Array::new(shape, Data::F64((0..shape.iter().product()).map(|i| scale * value(i)).collect()))
}
