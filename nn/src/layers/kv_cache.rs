//! Keys and values of past positions, kept in states, so that a token more costs one step.

use super::{AttentionConfig, Builder};
use wgrad::{Array, StateId, Tape, Tensor};

/// The keys and values that the attentions of a model have computed for the positions so far, and the number of these
/// positions: states of the store, which a program of few new positions reads and extends. [`crate::Gpt::cache`]
/// declares the cache of a model, and [`crate::Gpt::forward_cached`] uses it.
///
/// Shapes are fixed: a state has room for the whole context, the new rows take their places in it by a mask, and what
/// lies beyond the last position is masked out of the scores. The cache is empty at first. [`KvCache::reset`] empties
/// it for the next text; until then, each run continues the text of the run before.
///
/// A run that would exceed the context fails with [`wgrad::Error::IndexOutOfRange`]. On the CPU it leaves the cache as
/// it was; a GPU tells of the error after the run, and the cache needs a reset.
///
/// All samples of a batch are at the same position.
///
/// A cache belongs to a session that samples. A checkpoint of that session would hold it too; to use trained
/// parameters there, read them alone:
///
/// ```no_run
/// # fn load(session: &mut wgrad::Session) -> wgrad_nn::Result<()> {
/// use wgrad_nn::checkpoint;
/// let params = |name: &str| (!name.starts_with("state:")).then(|| name.to_string());
/// checkpoint::load_params(session, "model.safetensors", params)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvCache {
    /// The keys and the values of each attention.
    pub layers: Vec<KeysValues>,
    /// The number of positions so far, u32.
    pub position: StateId,
    /// The most positions that there is room for.
    pub context: usize,
}

/// The keys and values of one attention, each `[batch, kv_heads, context, head width]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeysValues {
    /// The keys, normalised and rotated if they are.
    pub keys: StateId,
    /// The values.
    pub values: StateId,
}

impl KvCache {
    /// Declares the states `cache/<path>/position`, `cache/<path>/layer/0/keys`, `cache/<path>/layer/0/values`, and so
    /// on, for so many attentions of the same settings, and for a batch of one size.
    #[track_caller]
    pub fn new(mut b: Builder<'_>, attention: &AttentionConfig, layers: usize, batch: usize, context: usize) -> Self {
        let position = b.cache("position", &Array::new([], vec![0u32]));
        let zeros = Array::zeros([batch, attention.shared_heads(), context, attention.head_width()], b.dtype());
        let (mut b, mut all) = (b.at("layer"), Vec::with_capacity(layers));
        for i in 0..layers {
            let mut b = b.at(&i.to_string());
            all.push(KeysValues { keys: b.cache("keys", &zeros), values: b.cache("values", &zeros) });
        }
        Self { layers: all, position, context }
    }

    /// Empties the cache, for a program that runs before each text. Keys and values become 0 too, so that one which is
    /// not finite does not outlive its text: a weight of 0 does not silence it.
    #[track_caller]
    pub fn reset(&self, tape: &Tape) {
        let all = self.layers.iter().flat_map(|layer| [layer.keys, layer.values]);
        for state in all.chain([self.position]) {
            tape.assign(state, tape.state(state).zeros_like());
        }
    }

    /// The positions of so many new rows, u32 `[time]`: those after all positions so far.
    ///
    /// # Panics
    /// If there are more than the context has.
    #[track_caller]
    pub fn positions<'t>(&self, tape: &'t Tape, time: usize) -> Tensor<'t> {
        let context = self.context;
        assert!(time <= context, "kv_cache: {time} positions, where the context has {context}");
        let _call = tape.call("kv_cache", &[]);
        // A position beyond the context is no row of this table, so the run fails.
        tape.iota(context).rows(tape.iota(time) + tape.state(self.position))
    }

    /// Counts so many new positions, once all attentions have met them. [`crate::Gpt::forward_cached`] does so itself.
    #[track_caller]
    pub fn advance(&self, tape: &Tape, time: usize) {
        tape.assign(self.position, tape.state(self.position) + time as f64);
    }

    /// The past of one attention, for so many new positions.
    #[track_caller]
    pub(crate) fn past<'t>(&self, tape: &'t Tape, layer: usize, time: usize) -> Past<'t> {
        let layers = self.layers.len();
        assert!(layer < layers, "kv_cache: there is no layer {layer} of {layers}");
        Past { of: self.layers[layer], positions: self.positions(tape, time), context: self.context }
    }
}

/// The past of one attention, and the positions of its new rows.
#[derive(Clone, Copy)]
pub(crate) struct Past<'t> {
    of: KeysValues,
    pub positions: Tensor<'t>,
    context: usize,
}

impl<'t> Past<'t> {
    /// True where a new row, `[time, 1]`, may attend to a row of the context: the rows up to its own.
    #[track_caller]
    pub fn seen(&self) -> Tensor<'t> {
        self.positions.tape().iota(self.context).less_equal(self.positions.unsqueeze(1))
    }

    /// All keys, once the new ones, `[batch, kv_heads, time, head width]`, have taken their places.
    #[track_caller]
    pub fn keys(&self, new: Tensor<'t>) -> Tensor<'t> {
        self.extended(self.of.keys, new)
    }

    /// All values, as [`Past::keys`].
    #[track_caller]
    pub fn values(&self, new: Tensor<'t>) -> Tensor<'t> {
        self.extended(self.of.values, new)
    }

    #[track_caller]
    fn extended(&self, state: StateId, new: Tensor<'t>) -> Tensor<'t> {
        let (tape, old, shape) = (new.tape(), new.tape().state(state), new.shape());
        assert!(
            old.shape() == shape.with(2, self.context) && old.dtype() == new.dtype(),
            "kv_cache of {}{}: has no room for rows of {}{shape}",
            old.dtype(),
            old.shape(),
            new.dtype()
        );
        let (time, slots) = (shape[2], tape.iota(self.context));
        let (first, last) = (self.positions.index(0, 0), self.positions.index(0, time - 1));
        let taken = slots.greater_equal(first).and(slots.less_equal(last));
        // The row that takes each place; a single one is read by all places, and needs no index.
        let row = taken.select(slots, first) - first;
        let rows = if time == 1 { new } else { new.index_select(2, row) };
        let all = taken.unsqueeze(1).select(rows, old);
        tape.assign(state, all);
        all
    }
}
