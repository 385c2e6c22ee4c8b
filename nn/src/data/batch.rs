//! Batches: arrays by name.

use std::{collections::BTreeMap, ops::Index};
use wgrad::Array;

/// Arrays of some samples, by name, as a trainer takes them. Names are in alphabetical order.
///
/// ```
/// use wgrad::{Array, DType};
/// use wgrad_nn::data::Batch;
/// // Inputs `x` and targets `y`.
/// let batch = Batch::new(Array::zeros([32, 64], DType::F32), Array::zeros([32], DType::U32));
/// assert_eq!(batch["x"].shape()[..], [32, 64]);
/// // Any other names.
/// let ids = Array::zeros([32, 10], DType::U32);
/// let batch = Batch::from([("ids", ids.clone()), ("mask", Array::zeros([32, 10], DType::Bool))]).with("next", ids);
/// assert_eq!(batch.names().collect::<Vec<_>>(), ["ids", "mask", "next"]);
/// ```
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Batch {
    arrays: BTreeMap<String, Array>,
}

impl Batch {
    /// Inputs, named `x`, and targets, named `y`.
    pub fn new(x: Array, y: Array) -> Self {
        Self::from([("x", x), ("y", y)])
    }

    /// The same batch with an array of this name, in place of any other of the name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, array: Array) -> Self {
        self.arrays.insert(name.into(), array);
        self
    }

    /// The array of this name; `None` if there is none. `batch["x"]` panics instead.
    pub fn get(&self, name: &str) -> Option<&Array> {
        self.arrays.get(name)
    }

    /// The names of the arrays.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.keys().map(String::as_str)
    }

    /// The arrays by name, as [`crate::Trainer::step`] and [`wgrad::Session::run`] take them.
    pub fn inputs(&self) -> Vec<(&str, &Array)> {
        self.arrays.iter().map(|(name, array)| (name.as_str(), array)).collect()
    }

    /// The arrays of these names. All others are dropped.
    ///
    /// # Panics
    /// If there is no array of a name, or a name comes twice.
    #[track_caller]
    pub fn take<const N: usize>(mut self, names: [&str; N]) -> [Array; N] {
        let mut taken = Vec::with_capacity(N);
        for name in names {
            match self.arrays.remove(name) {
                Some(array) => taken.push(array),
                None => self.lacks(name),
            }
        }
        taken.try_into().expect("an array for each name")
    }

    #[track_caller]
    fn lacks(&self, name: &str) -> ! {
        let known: Vec<&str> = self.names().collect();
        panic!("batch: no array {name:?}: it has {}", known.join(", "))
    }
}

impl Index<&str> for Batch {
    type Output = Array;

    /// The array of this name.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    fn index(&self, name: &str) -> &Array {
        match self.get(name) {
            Some(array) => array,
            None => self.lacks(name),
        }
    }
}

impl<S: Into<String>, const N: usize> From<[(S, Array); N]> for Batch {
    /// A batch of named arrays.
    ///
    /// # Panics
    /// If two have one name.
    #[track_caller]
    fn from(arrays: [(S, Array); N]) -> Self {
        let mut batch = Self::default();
        for (name, array) in arrays {
            let name = name.into();
            assert!(batch.get(&name).is_none(), "batch: two arrays are named {name:?}");
            batch.arrays.insert(name, array);
        }
        batch
    }
}

impl FromIterator<(String, Array)> for Batch {
    /// A batch of named arrays; of two that have one name, the later.
    fn from_iter<I: IntoIterator<Item = (String, Array)>>(arrays: I) -> Self {
        Self { arrays: arrays.into_iter().collect() }
    }
}

impl IntoIterator for Batch {
    type Item = (String, Array);
    type IntoIter = std::collections::btree_map::IntoIter<String, Array>;

    fn into_iter(self) -> Self::IntoIter {
        self.arrays.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgrad::DType;

    fn rows(rows: usize) -> Array {
        Array::zeros([rows], DType::F32)
    }

    #[test]
    fn arrays_are_found_by_name() {
        let batch = Batch::from([("left", rows(2)), ("target", rows(3)), ("right", rows(4))]);
        assert_eq!(batch.inputs(), [("left", &rows(2)), ("right", &rows(4)), ("target", &rows(3))]);
        assert_eq!((batch.get("right"), batch.get("x")), (Some(&rows(4)), None));
        let changed = batch.clone().with("left", rows(5));
        assert_eq!((changed["left"].shape()[0], changed.names().count()), (5, 3));
        assert_eq!(batch.clone().into_iter().collect::<Batch>(), batch);
        assert_eq!(batch.take(["target", "left"]), [rows(3), rows(2)]);
        assert_eq!(Batch::new(rows(1), rows(2)), Batch::from([("y", rows(2)), ("x", rows(1))]));
    }

    #[test]
    #[should_panic(expected = "batch: no array \"z\": it has x, y")]
    fn a_name_that_is_missing_is_told_with_those_there_are() {
        let _ = &Batch::new(rows(1), rows(1))["z"];
    }

    #[test]
    #[should_panic(expected = "batch: no array \"x\": it has y")]
    fn an_array_is_taken_once() {
        Batch::new(rows(1), rows(1)).take(["x", "x"]);
    }

    #[test]
    #[should_panic(expected = "batch: two arrays are named \"x\"")]
    fn names_differ() {
        let _ = Batch::from([("x", rows(1)), ("x", rows(2))]);
    }
}
