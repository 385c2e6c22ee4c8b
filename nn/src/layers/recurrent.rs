//! Recurrent layers over time-major sequences: one product for all inputs, then a cell over time, as one fused op or
//! step by step.

use super::{Builder, Init};
use wgrad::{Cell, Param, Recurrence, Tensor};

/// First values of a recurrent layer. Matrices are drawn per gate.
#[derive(Clone, PartialEq, Debug)]
pub struct RecurrentInit {
    /// The initializer of `weight_ih`, per gate `[hidden, inputs]`.
    pub input: Init,
    /// The initializer of `weight_hh`, per gate `[hidden, hidden]`.
    pub hidden: Init,
    /// The initializer of the biases, per gate `[hidden]`.
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

    /// Pascanu et al. 2013, "smart tanh": 15 non-zeros per row at spectral radius 0.95, input weights of deviation
    /// 0.01.
    pub fn smart_tanh() -> Self {
        Self { hidden: Init::SparseSpectral { nonzeros: 15, radius: 0.95 }, ..Self::normal(0.01) }
    }

    /// Le et al. 2015: the identity for the recurrence, input weights of deviation 0.001.
    pub fn irnn() -> Self {
        Self { hidden: Init::Identity { gain: 1.0 }, ..Self::normal(0.001) }
    }

    /// The values that suit a cell: [`RecurrentInit::irnn`] for [`Cell::Irnn`], else the default.
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
    /// The kind of cell.
    pub cell: Cell,
    /// The width of the hidden state.
    pub hidden: usize,
    /// `[gates * hidden, inputs]`.
    pub weight_ih: Param,
    /// `[gates * hidden, hidden]`.
    pub weight_hh: Param,
    /// `[gates * hidden]`, added to the product of the input.
    pub bias: Param,
    /// `[gates * hidden]`, added to the product of the hidden state; a GRU's only.
    pub bias_hh: Option<Param>,
}

/// The outputs of a recurrent layer.
#[derive(Clone, Debug)]
pub struct Outputs<'t> {
    /// The hidden state after the last time step, `[batch, hidden]`.
    pub last: Tensor<'t>,
    /// An LSTM's memory after the last time step, `[batch, hidden]`.
    pub memory: Option<Tensor<'t>>,
    hidden: Hidden<'t>,
}

/// The hidden states of all time steps.
#[derive(Clone, Debug)]
enum Hidden<'t> {
    /// `[time, batch, hidden]`, from one op.
    Whole(Tensor<'t>),
    /// One tensor `[batch, hidden]` per step, each computed from the one before.
    Steps(Vec<Tensor<'t>>),
}

impl<'t> Outputs<'t> {
    /// The hidden states as `[time, batch, hidden]`.
    #[track_caller]
    pub fn stacked(&self) -> Tensor<'t> {
        match &self.hidden {
            Hidden::Whole(h) => *h,
            Hidden::Steps(steps) => Tensor::stack(steps),
        }
    }

    /// The hidden state after each time step, each `[batch, hidden]`. Only an unrolled layer computes the later steps
    /// from these tensors; only there does a gradient with respect to one of them include its effect on the later
    /// steps.
    #[track_caller]
    pub fn steps(&self) -> Vec<Tensor<'t>> {
        match &self.hidden {
            Hidden::Whole(h) => (0..h.shape()[0]).map(|t| h.index(0, t)).collect(),
            Hidden::Steps(steps) => steps.clone(),
        }
    }

    /// True if the layer was unrolled: see [`Recurrent::unrolled`].
    pub fn is_unrolled(&self) -> bool {
        matches!(self.hidden, Hidden::Steps(_))
    }
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
        let (h, memory) = self.zeros(x);
        self.forward_from(x, h, memory)
    }

    /// Runs over a sequence from a given hidden state, and an LSTM's memory, both `[batch, hidden]`.
    ///
    /// # Panics
    /// As [`Recurrent::forward`]; if there is a memory without an LSTM, or an LSTM without a memory.
    #[track_caller]
    pub fn forward_from<'t>(&self, x: Tensor<'t>, h: Tensor<'t>, memory: Option<Tensor<'t>>) -> Outputs<'t> {
        self.check(x, memory);
        let _call = x.tape().call(self.cell.scope(), &[x, h]);
        let _scope = x.tape().enter(self.cell.scope());
        let (h, c) = self.recurrence(x, h, memory).run();
        let last = |steps: Tensor<'t>| steps.index(0, x.shape()[0] - 1);
        Outputs { last: last(h), memory: c.map(last), hidden: Hidden::Whole(h) }
    }

    /// As [`Recurrent::forward`], step by step in primitives: the same values, more slowly. Each step's hidden state is
    /// a tensor that the later ones are computed from, so that a gradient with respect to each can be taken.
    ///
    /// # Panics
    /// As [`Recurrent::forward`].
    #[track_caller]
    pub fn unrolled<'t>(&self, x: Tensor<'t>) -> Outputs<'t> {
        let (h, memory) = self.zeros(x);
        self.unrolled_from(x, h, memory)
    }

    /// As [`Recurrent::forward_from`], step by step: see [`Recurrent::unrolled`].
    ///
    /// # Panics
    /// As [`Recurrent::forward_from`].
    #[track_caller]
    pub fn unrolled_from<'t>(&self, x: Tensor<'t>, h: Tensor<'t>, memory: Option<Tensor<'t>>) -> Outputs<'t> {
        self.check(x, memory);
        let _call = x.tape().call(self.cell.scope(), &[x, h]);
        let _scope = x.tape().enter(self.cell.scope());
        let steps = self.recurrence(x, h, memory).unrolled();
        let (last, memory) = steps[steps.len() - 1];
        Outputs { last, memory, hidden: Hidden::Steps(steps.into_iter().map(|(h, _)| h).collect()) }
    }

    /// The initial state of zeros.
    #[track_caller]
    fn zeros<'t>(&self, x: Tensor<'t>) -> (Tensor<'t>, Option<Tensor<'t>>) {
        let (tape, batch) = (x.tape(), x.shape().get(1).copied().unwrap_or(0));
        let zeros = tape.full([batch, self.hidden], 0.0, tape.param(self.weight_hh).dtype());
        (zeros, (self.cell == Cell::Lstm).then_some(zeros))
    }

    #[track_caller]
    fn check(&self, x: Tensor<'_>, memory: Option<Tensor<'_>>) {
        let (shape, scope) = (x.shape(), self.cell.scope());
        assert!(
            shape.rank() == 3 && shape[0] > 0,
            "{scope} of {}{shape}: needs a sequence [time, batch, inputs] of at least one step",
            x.dtype()
        );
        assert!(
            memory.is_some() == (self.cell == Cell::Lstm),
            "{scope}: an LSTM, and nothing else, has a memory to start from"
        );
    }

    #[track_caller]
    fn recurrence<'t>(&self, x: Tensor<'t>, h0: Tensor<'t>, c0: Option<Tensor<'t>>) -> Recurrence<'t> {
        let tape = x.tape();
        // One tall product for all steps; a diagnosis hooks it to see dL/dz of each step.
        let z = (x.matmul_t(tape.param(self.weight_ih)) + tape.param(self.bias)).probe("time/z");
        let (w_hh, b_hh) = (tape.param(self.weight_hh), self.bias_hh.map(|bias| tape.param(bias)));
        Recurrence { cell: self.cell, z, w_hh, h0, c0, b_hh }
    }
}
