//! Recurrent layers over time-major sequences, as compositions of primitives.

use crate::{Builder, Init};
use wgrad::{DType, Param, Tensor};

/// The kind of a recurrent layer: how `h_t` follows from `x_t` and `h_(t-1)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cell {
    /// `h = tanh(z)`, `z = W_ih x + W_hh h + b` (Elman 1990).
    Tanh,
    /// `h = sigmoid(z)`.
    Sigmoid,
    /// `h = relu(z)`, meant to start at the identity (Le et al. 2015).
    Irnn,
    /// `c = f c + i g`, `h = o tanh(c)`, with the gates i, f, o (sigmoid) and g (tanh) of `z`, in the order i, f, g, o
    /// (Hochreiter & Schmidhuber 1997; Gers et al. 2000).
    Lstm,
    /// `n = tanh(z_n + r (W_hn h + b_hn))`, `h = (1 - u) n + u h`, with the gates r (reset) and u (update) of
    /// `z + W_hh h + b_hh`, in the order r, u, n (Cho et al. 2014, in PyTorch's variant). Here `z = W_ih x + b_ih`.
    Gru,
}

impl Cell {
    /// The name of the layer's scope.
    pub fn scope(self) -> &'static str {
        match self {
            Cell::Tanh | Cell::Sigmoid | Cell::Irnn => "rnn",
            Cell::Lstm => "lstm",
            Cell::Gru => "gru",
        }
    }

    /// How many blocks of `hidden` rows its weights have.
    pub fn gates(self) -> usize {
        match self {
            Cell::Tanh | Cell::Sigmoid | Cell::Irnn => 1,
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }
}

/// First values of a recurrent layer. Matrices are drawn per gate.
#[derive(Clone, PartialEq, Debug)]
pub struct RecurrentInit {
    /// Of `weight_ih`, per gate `[hidden, inputs]`.
    pub input: Init,
    /// Of `weight_hh`, per gate `[hidden, hidden]`.
    pub hidden: Init,
    /// Of the biases, per gate `[hidden]`.
    pub bias: Init,
    /// The bias of an LSTM's forget gate, in place of `bias`: 1 keeps the memory at first (Jozefowicz et al. 2015).
    pub forget_bias: Option<f64>,
}

impl Default for RecurrentInit {
    /// Xavier for the input, orthogonal for the recurrence, no bias but 1 for a forget gate.
    fn default() -> Self {
        Self {
            input: Init::XavierUniform { gain: 1.0 },
            hidden: Init::Orthogonal { gain: 1.0 },
            bias: Init::Zeros,
            forget_bias: Some(1.0),
        }
    }
}

impl RecurrentInit {
    /// Normal weights of one standard deviation, no bias.
    pub fn normal(std: f64) -> Self {
        Self { input: Init::Normal(std), hidden: Init::Normal(std), bias: Init::Zeros, forget_bias: None }
    }

    /// Pascanu et al. 2013, "smart tanh": 15 non-zeros per row at spectral radius 0.95, input weights of deviation 0.01.
    pub fn smart_tanh() -> Self {
        Self { hidden: Init::SparseSpectral { nonzeros: 15, radius: 0.95 }, ..Self::normal(0.01) }
    }

    /// Le et al. 2015: the identity for the recurrence, input weights of deviation 0.001.
    pub fn irnn() -> Self {
        Self { hidden: Init::Identity { gain: 1.0 }, ..Self::normal(0.001) }
    }

    /// What suits a cell: [`RecurrentInit::irnn`] for [`Cell::Irnn`], else the default.
    pub fn of(cell: Cell) -> Self {
        if cell == Cell::Irnn { Self::irnn() } else { Self::default() }
    }
}

/// A recurrent layer. Its parameters have PyTorch's names and layouts.
///
/// A [`Cell::Gru`] has the biases `bias_ih` and `bias_hh`, which its reset gate keeps apart. Every other cell has one
/// `bias`, the sum of PyTorch's two.
#[derive(Clone, Debug)]
pub struct Recurrent {
    /// The kind.
    pub cell: Cell,
    /// The width of the hidden state.
    pub hidden: usize,
    /// `[gates * hidden, inputs]`.
    pub weight_ih: Param,
    /// `[gates * hidden, hidden]`.
    pub weight_hh: Param,
    /// `[gates * hidden]`, of what comes from the input.
    pub bias: Param,
    /// `[gates * hidden]`, of what comes from the hidden state; a GRU's only.
    pub bias_hh: Option<Param>,
}

/// What a recurrent layer gives.
#[derive(Clone, Debug)]
pub struct Outputs<'t> {
    /// The hidden state after each time step, each `[batch, hidden]`.
    pub steps: Vec<Tensor<'t>>,
    /// The hidden state after the last, `[batch, hidden]`.
    pub last: Tensor<'t>,
    /// An LSTM's memory after the last, `[batch, hidden]`.
    pub memory: Option<Tensor<'t>>,
}

impl<'t> Outputs<'t> {
    /// The hidden states as `[time, batch, hidden]`.
    #[track_caller]
    pub fn stacked(&self) -> Tensor<'t> {
        Tensor::stack(&self.steps)
    }
}

/// What a layer carries from one time step to the next.
#[derive(Clone, Copy)]
struct Carry<'t> {
    h: Tensor<'t>,
    c: Option<Tensor<'t>>,
}

impl Recurrent {
    /// Declares a layer from `inputs` to `hidden` units.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, cell: Cell, inputs: usize, hidden: usize, init: &RecurrentInit) -> Self {
        let gates = cell.gates();
        let weight_ih = b.blocks("weight_ih", gates, [hidden, inputs], &init.input);
        let weight_hh = b.blocks("weight_hh", gates, [hidden, hidden], &init.hidden);
        let (bias, bias_hh) = match (cell, init.forget_bias) {
            (Cell::Gru, _) => {
                let input = b.blocks("bias_ih", gates, [hidden], &init.bias);
                (input, Some(b.blocks("bias_hh", gates, [hidden], &init.bias)))
            }
            (Cell::Lstm, Some(forget)) => (b.blocks_but("bias", gates, [hidden], &init.bias, (1, forget)), None),
            _ => (b.blocks("bias", gates, [hidden], &init.bias), None),
        };
        Self { cell, hidden, weight_ih, weight_hh, bias, bias_hh }
    }

    /// Runs over a sequence `[time, batch, inputs]`, from a hidden state of zeros.
    ///
    /// # Panics
    /// If `x` does not have that shape, the parameters' type, and at least one time step.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>) -> Outputs<'t> {
        let batch = x.shape().get(1).copied().unwrap_or(0);
        let zeros = x.tape().full([batch, self.hidden], 0.0, self.dtype(x));
        self.forward_from(x, zeros, (self.cell == Cell::Lstm).then_some(zeros))
    }

    /// Runs over a sequence from a given hidden state, and an LSTM's memory, both `[batch, hidden]`.
    ///
    /// # Panics
    /// As [`Recurrent::forward`]; if there is a memory without an LSTM, or an LSTM without a memory.
    #[track_caller]
    pub fn forward_from<'t>(&self, x: Tensor<'t>, h: Tensor<'t>, memory: Option<Tensor<'t>>) -> Outputs<'t> {
        let (tape, shape) = (x.tape(), x.shape());
        assert!(
            shape.rank() == 3 && shape[0] > 0,
            "{} of {}{shape}: needs a sequence [time, batch, inputs] of at least one step",
            self.cell.scope(),
            x.dtype()
        );
        assert!(
            memory.is_some() == (self.cell == Cell::Lstm),
            "{}: an LSTM, and nothing else, has a memory to start from",
            self.cell.scope()
        );
        tape.scoped(self.cell.scope(), || {
            // One tall product for all steps; a diagnosis hooks it to see dL/dz of each step.
            let z = (x.matmul_t(tape.param(self.weight_ih)) + tape.param(self.bias)).probe("z");
            let mut carry = Carry { h, c: memory };
            let mut steps = Vec::with_capacity(shape[0]);
            for time in 0..shape[0] {
                carry = tape.scoped_turn("step", time, || self.step(z.index(0, time), carry));
                steps.push(carry.h);
            }
            Outputs { steps, last: carry.h, memory: carry.c }
        })
    }

    /// One time step, given what comes from the input, `[batch, gates * hidden]`.
    #[track_caller]
    fn step<'t>(&self, z: Tensor<'t>, Carry { h, c }: Carry<'t>) -> Carry<'t> {
        let (tape, width) = (z.tape(), self.hidden);
        let gates = |x: Tensor<'t>, first: usize, count: usize| x.slice(1, first * width, count * width);
        let recurrent = h.matmul_t(tape.param(self.weight_hh));
        match (self.cell, c, self.bias_hh) {
            (Cell::Lstm, Some(c), _) => {
                let z = z + recurrent;
                let input_forget = gates(z, 0, 2).sigmoid();
                let (i, f) = (gates(input_forget, 0, 1), gates(input_forget, 1, 1));
                let (g, o) = (gates(z, 2, 1).tanh(), gates(z, 3, 1).sigmoid());
                let c = f * c + i * g;
                Carry { h: o * c.tanh(), c: Some(c) }
            }
            (Cell::Gru, _, Some(bias_hh)) => {
                let recurrent = recurrent + tape.param(bias_hh);
                let reset_update = (gates(z, 0, 2) + gates(recurrent, 0, 2)).sigmoid();
                let (r, u) = (gates(reset_update, 0, 1), gates(reset_update, 1, 1));
                let n = (gates(z, 2, 1) + r * gates(recurrent, 2, 1)).tanh();
                Carry { h: n + u * (h - n), c }
            }
            (Cell::Sigmoid, ..) => Carry { h: (z + recurrent).sigmoid(), c },
            (Cell::Irnn, ..) => Carry { h: (z + recurrent).relu(), c },
            _ => Carry { h: (z + recurrent).tanh(), c },
        }
    }

    /// The type of the layer's parameters.
    fn dtype(&self, x: Tensor<'_>) -> DType {
        x.tape().param(self.weight_hh).dtype()
    }
}
