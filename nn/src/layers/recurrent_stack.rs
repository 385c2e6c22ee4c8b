//! Recurrent layers on top of each other, in one direction of time or in both.

use super::{Builder, Dropout, Recurrent, RecurrentInit};
use wgrad::{Cell, Tensor};

/// Settings of a [`RecurrentStack`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StackConfig {
    /// The number of layers, at least 1.
    pub layers: usize,
    /// True if each layer also runs from the last step to the first (Schuster and Paliwal 1997).
    pub bidirectional: bool,
    /// The dropout between layers, of the outputs of all layers but the last (Zaremba et al. 2014). It does nothing to
    /// a single layer.
    pub dropout: Option<Dropout>,
}

impl Default for StackConfig {
    /// One layer, forward in time, without dropout.
    fn default() -> Self {
        Self { layers: 1, bidirectional: false, dropout: None }
    }
}

/// Recurrent layers, each of which runs over the outputs of the one below. Its results have the layout of PyTorch's
/// `RNN`, `LSTM` and `GRU` with `num_layers`, `bidirectional` and `dropout`.
///
/// ```
/// use wgrad::{DType, Store, Tape};
/// use wgrad_nn::{Builder, Cell, RecurrentInit, RecurrentStack, StackConfig};
/// let mut store = Store::new();
/// let config = StackConfig { layers: 2, bidirectional: true, ..StackConfig::default() };
/// let b = Builder::new(&mut store, 0);
/// let stack = RecurrentStack::new(b, Cell::Lstm, 6, 50, &RecurrentInit::default(), &config);
/// let t = Tape::new(store.into_parts().0);
/// let out = stack.forward(t.input("x", [20, 8, 6], DType::F32), false);
/// assert_eq!((out.hidden.shape(), out.last.shape()), ([20, 8, 100].into(), [4, 8, 50].into()));
/// ```
#[derive(Clone, Debug)]
pub struct RecurrentStack {
    /// The lowest layer first; of each, the direction forward in time, then the reverse one if there is one.
    pub layers: Vec<Vec<Recurrent>>,
    /// The settings.
    pub config: StackConfig,
}

/// The results of a [`RecurrentStack`].
#[derive(Clone, Copy, Debug)]
pub struct StackOutputs<'t> {
    /// The hidden states of the highest layer, `[time, batch, directions * hidden]`: those of the forward direction,
    /// then those that the reverse one had at the same step of the sequence.
    pub hidden: Tensor<'t>,
    /// The hidden state that each layer and direction ends with, `[layers * directions, batch, hidden]`; the reverse
    /// direction ends at the first step. Layers are in order, and the directions of a layer side by side.
    pub last: Tensor<'t>,
    /// An LSTM's memory that each layer and direction ends with, like `last`.
    pub memory: Option<Tensor<'t>>,
}

/// The names of the directions, in paths and scopes.
const DIRECTIONS: [&str; 2] = ["forward", "reverse"];

impl RecurrentStack {
    /// Declares the layers, from `inputs` to `hidden` units in each direction: `layer/0/forward`, `layer/0/reverse`,
    /// `layer/1/forward`, and so on, each a [`Recurrent`].
    ///
    /// # Panics
    /// If there is no layer.
    #[track_caller]
    pub fn new(
        mut b: Builder<'_>,
        cell: Cell,
        inputs: usize,
        hidden: usize,
        init: &RecurrentInit,
        config: &StackConfig,
    ) -> Self {
        assert!(config.layers > 0, "recurrent_stack: needs at least one layer");
        let names = &DIRECTIONS[..directions(config)];
        let (mut b, mut layers) = (b.at("layer"), Vec::with_capacity(config.layers));
        for i in 0..config.layers {
            let inputs = if i == 0 { inputs } else { names.len() * hidden };
            let (mut b, mut layer) = (b.at(&i.to_string()), Vec::with_capacity(names.len()));
            for name in names {
                layer.push(Recurrent::new(b.at(name), cell, inputs, hidden, init));
            }
            layers.push(layer);
        }
        Self { layers, config: *config }
    }

    /// Runs over a sequence `[time, batch, inputs]`, from hidden states of zeros.
    ///
    /// # Panics
    /// If `x` does not have that shape, the parameters' type, and at least one time step.
    #[track_caller]
    pub fn forward<'t>(&self, x: Tensor<'t>, training: bool) -> StackOutputs<'t> {
        self.run(x, None, training)
    }

    /// Runs over a sequence from given hidden states, and memories of an LSTM, both
    /// `[layers * directions, batch, hidden]` in the order of [`StackOutputs::last`].
    ///
    /// # Panics
    /// As [`RecurrentStack::forward`]; if the hidden states or memories have another shape; if there is a memory
    /// without an LSTM, or an LSTM without a memory.
    #[track_caller]
    pub fn forward_from<'t>(
        &self,
        x: Tensor<'t>,
        h: Tensor<'t>,
        memory: Option<Tensor<'t>>,
        training: bool,
    ) -> StackOutputs<'t> {
        self.run(x, Some((h, memory)), training)
    }

    #[track_caller]
    fn run<'t>(
        &self,
        x: Tensor<'t>,
        start: Option<(Tensor<'t>, Option<Tensor<'t>>)>,
        training: bool,
    ) -> StackOutputs<'t> {
        self.check(x, start);
        let tape = x.tape();
        let _call = tape.call("recurrent_stack", &[x]);
        let (mut hidden, mut last, mut memory) = (x, vec![], vec![]);
        for (i, layer) in self.layers.iter().enumerate() {
            let _scope = tape.enter_turn("layer", i);
            if i > 0 {
                hidden = Dropout::optional(self.config.dropout, hidden, training);
            }
            let mut steps = Vec::with_capacity(layer.len());
            for (recurrent, name) in layer.iter().zip(DIRECTIONS) {
                let _scope = tape.enter(name);
                let turned = |x: Tensor<'t>| if name == DIRECTIONS[1] { x.flip(&[0]) } else { x };
                let out = match start {
                    Some((h, c)) => {
                        let own = |all: Tensor<'t>| all.index(0, last.len());
                        recurrent.forward_from(turned(hidden), own(h), c.map(own))
                    }
                    None => recurrent.forward(turned(hidden)),
                };
                steps.push(turned(out.stacked()));
                last.push(out.last);
                memory.extend(out.memory);
            }
            hidden = Tensor::concat(&steps, 2);
        }
        let memory = (!memory.is_empty()).then(|| Tensor::stack(&memory));
        StackOutputs { hidden, last: Tensor::stack(&last), memory }
    }

    #[track_caller]
    fn check(&self, x: Tensor<'_>, start: Option<(Tensor<'_>, Option<Tensor<'_>>)>) {
        let (shape, first) = (x.shape(), &self.layers[0][0]);
        assert!(
            shape.rank() == 3 && shape[0] > 0,
            "recurrent_stack of {}{shape}: needs a sequence [time, batch, inputs] of at least one step",
            x.dtype()
        );
        let Some((h, memory)) = start else { return };
        let is_lstm = first.cell == Cell::Lstm;
        assert!(memory.is_some() == is_lstm, "recurrent_stack: an LSTM, and nothing else, has a memory to start from");
        let want = [self.layers.len() * directions(&self.config), shape[1], first.hidden];
        for state in std::iter::once(h).chain(memory) {
            let have = state.shape();
            assert!(*have == want, "recurrent_stack of {}{shape}: starts from states {want:?}, not {have}", x.dtype());
        }
    }
}

/// The number of directions.
fn directions(config: &StackConfig) -> usize {
    1 + usize::from(config.bidirectional)
}
