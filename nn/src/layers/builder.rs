//! The builder: declares parameters under paths, with initial values that depend on seed and path alone.

use super::{buffers, init::Init};
use crate::random::generator;
use wgrad::{Array, DType, Data, Param, Shape, StateId, Store};

/// Declares the parameters of modules in a store.
///
/// A parameter's random numbers depend on the seed and its path only, so the order of declaration does not matter.
///
/// ```
/// use wgrad::Store;
/// use wgrad_nn::{Builder, Init};
/// let mut store = Store::new();
/// let mut b = Builder::new(&mut store, 7);
/// let weight = b.at("rnn").param("weight_hh", [3, 3], &Init::Orthogonal { gain: 1.0 });
/// assert_eq!(store.layout().param(weight).path, "rnn/weight_hh");
/// ```
pub struct Builder<'s> {
    store: &'s mut Store,
    path: String,
    seed: u64,
    dtype: DType,
}

impl<'s> Builder<'s> {
    /// A builder at the root of a store, for f32 parameters.
    pub fn new(store: &'s mut Store, seed: u64) -> Self {
        Self { store, path: String::new(), seed, dtype: DType::F32 }
    }

    /// The same builder, for parameters of another float type. They hold the same numbers, rounded to it.
    ///
    /// # Panics
    /// If the type is not f32 or f64.
    #[track_caller]
    pub fn with_dtype(self, dtype: DType) -> Self {
        assert!(dtype.is_float(), "builder: {dtype} parameters have no gradient");
        assert!(dtype != DType::F16, "builder: f16 loses small updates: declare parameters in f32, and cast them");
        Self { dtype, ..self }
    }

    /// A builder for a named part of the model: its parameters' paths are `<this path>/<name>/..`.
    pub fn at(&mut self, name: &str) -> Builder<'_> {
        Builder { path: self.join(name), store: self.store, seed: self.seed, dtype: self.dtype }
    }

    /// The path so far, its parts joined by `/`; empty at the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The type of the parameters.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Declares a parameter with random or constant first values.
    ///
    /// # Panics
    /// If its path is taken, or the shape does not fit the initializer.
    #[track_caller]
    pub fn param(&mut self, name: &str, shape: impl Into<Shape>, init: &Init) -> Param {
        self.blocks(name, 1, shape, init)
    }

    /// Declares a parameter made of `count` equal blocks along its first axis, such as the gates of an LSTM, each drawn
    /// on its own as a tensor of `shape`: fans and orthogonality are the block's.
    ///
    /// # Panics
    /// If its path is taken, the shape does not fit the initializer, or has no dimension to repeat.
    #[track_caller]
    pub fn blocks(&mut self, name: &str, count: usize, shape: impl Into<Shape>, init: &Init) -> Param {
        let shape = shape.into();
        let values = self.draw(name, count, &shape, init);
        self.value(name, stacked(count, shape), &values)
    }

    /// As [`Builder::blocks`], with one block, `(position, value)`, constant.
    #[track_caller]
    pub(crate) fn blocks_but(
        &mut self,
        name: &str,
        count: usize,
        shape: impl Into<Shape>,
        init: &Init,
        (position, value): (usize, f64),
    ) -> Param {
        let shape = shape.into();
        let mut values = self.draw(name, count, &shape, init);
        let len = shape.numel();
        values[position * len..(position + 1) * len].fill(value);
        self.value(name, stacked(count, shape), &values)
    }

    #[track_caller]
    fn draw(&self, name: &str, count: usize, shape: &Shape, init: &Init) -> Vec<f64> {
        let mut random = generator(self.seed, &self.join(name), 0);
        let mut values = Vec::with_capacity(count * shape.numel());
        for _ in 0..count {
            values.extend(init.sample(shape, &mut random));
        }
        values
    }

    /// Declares a parameter with given first values, row-major, rounded to the builder's type.
    ///
    /// # Panics
    /// If its path is taken, or the shape does not hold as many values.
    #[track_caller]
    pub fn value(&mut self, name: &str, shape: impl Into<Shape>, values: &[f64]) -> Param {
        let array = Array::new(shape, Data::from_f64(self.dtype, values));
        self.store.param(&self.join(name), &array)
    }

    /// Declares a buffer with its first values, row-major: a state, named `buffers/<path>/<name>`, that a forward pass
    /// in training updates; see [`crate::Buffers`]. It has the builder's type.
    ///
    /// # Panics
    /// If its name is taken, or the shape does not hold as many values.
    #[track_caller]
    pub fn buffer(&mut self, name: &str, shape: impl Into<Shape>, values: &[f64]) -> StateId {
        let array = Array::new(shape, Data::from_f64(self.dtype, values));
        self.store.state(&format!("{}{}", buffers::PREFIX, self.join(name)), &array)
    }

    /// Declares a state, named `cache/<path>/<name>`, that keeps what sampling has computed.
    #[track_caller]
    pub(crate) fn cache(&mut self, name: &str, value: &Array) -> StateId {
        self.store.state(&format!("cache/{}", self.join(name)), value)
    }

    fn join(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}/{name}", self.path) }
    }
}

/// The shape of `count` blocks of a shape along its first axis.
fn stacked(count: usize, shape: Shape) -> Shape {
    if count == 1 { shape } else { shape.with(0, count * shape[0]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(declare: impl Fn(&mut Builder<'_>)) -> Vec<(String, Vec<f64>)> {
        let mut store = Store::new();
        declare(&mut Builder::new(&mut store, 3).with_dtype(DType::F64));
        let (layout, data) = store.into_parts();
        let arena = data[0].to_f64();
        let of = |p: &wgrad::ParamDecl| (p.path.clone(), arena[p.offset..p.offset + p.shape.numel()].to_vec());
        let mut all: Vec<_> = layout.params().map(|(_, p)| of(p)).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    #[test]
    fn values_do_not_depend_on_the_order_of_declaration() {
        let forward = values(|b| {
            b.at("a").at("b").param("w", [4, 5], &Init::Normal(1.0));
            b.param("v", [7], &Init::Uniform(1.0));
        });
        let backward = values(|b| {
            b.param("v", [7], &Init::Uniform(1.0));
            b.at("a").at("b").param("w", [4, 5], &Init::Normal(1.0));
        });
        assert_eq!(forward, backward);
        assert_eq!(forward[0].0, "a/b/w");
        assert_ne!(forward[0].1[0], forward[1].1[0]);
    }

    #[test]
    fn blocks_are_drawn_one_by_one() {
        let gates = values(|b| {
            b.blocks("w", 3, [4, 4], &Init::Identity { gain: 2.0 });
        });
        let one: Vec<f64> = (0..16).map(|i| if i % 5 == 0 { 2.0 } else { 0.0 }).collect();
        assert_eq!(gates[0].1, [one.clone(), one.clone(), one].concat());
    }

    #[test]
    #[should_panic(expected = "builder: f16 loses small updates")]
    fn half_parameters_are_refused() {
        let _ = Builder::new(&mut Store::new(), 1).with_dtype(DType::F16);
    }

    #[test]
    #[should_panic(expected = "declared twice")]
    fn a_taken_path_panics() {
        values(|b| {
            b.param("w", [1], &Init::Zeros);
            b.param("w", [1], &Init::Zeros);
        });
    }
}
