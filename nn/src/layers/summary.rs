//! A table of a model's parameters.

use std::fmt;
use wgrad::{DType, Layout, ParamSet, Shape};

/// A table of a model's parameters, in the order of declaration, which prints with totals.
///
/// ```
/// use wgrad::Store;
/// use wgrad_nn::{Builder, Init, Linear, Summary};
/// let mut store = Store::new();
/// Linear::new(Builder::new(&mut store, 0).at("head"), 300, 4, &Init::Normal(0.01));
/// let text = Summary::new(store.layout(), &store.params()).to_string();
/// assert_eq!(text, "\
/// parameter    shape     type  elements  bytes
/// head/bias    [4]       f32          4     16
/// head/weight  [4, 300]  f32      1,200  4,800
/// 2 parameters of 1,204 elements, 4,816 bytes; all are trained
/// ");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// A row for each parameter.
    pub rows: Vec<Row>,
}

/// One parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its path.
    pub path: String,
    /// Its shape.
    pub shape: Shape,
    /// Its type.
    pub dtype: DType,
    /// True if it is trained.
    pub trained: bool,
}

impl Row {
    /// The bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.shape.numel() * self.dtype.size()
    }
}

impl Summary {
    /// The summary of all parameters of a store. Those outside `trained` are frozen.
    ///
    /// # Panics
    /// If a parameter is another store's.
    #[track_caller]
    pub fn new(layout: &Layout, trained: &ParamSet) -> Self {
        layout.check(trained);
        let row = |(id, p): (wgrad::Param, &wgrad::ParamDecl)| Row {
            path: p.path.clone(),
            shape: p.shape.clone(),
            dtype: layout.state(p.arena).dtype,
            trained: trained.contains(id),
        };
        Self { rows: layout.params().map(row).collect() }
    }

    /// The number of elements of all parameters.
    pub fn elements(&self) -> usize {
        self.rows.iter().map(|row| row.shape.numel()).sum()
    }

    /// The number of elements that are trained.
    pub fn trained(&self) -> usize {
        self.rows.iter().filter(|row| row.trained).map(|row| row.shape.numel()).sum()
    }

    /// The bytes of all parameters, without the padding between them.
    pub fn bytes(&self) -> usize {
        self.rows.iter().map(Row::bytes).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["parameter", "shape", "type", "elements", "bytes"].map(String::from);
        let cells = |row: &Row| {
            let Row { path, shape, dtype, .. } = row;
            [path.clone(), shape.to_string(), dtype.to_string(), grouped(shape.numel()), grouped(row.bytes())]
        };
        let rows: Vec<[String; 5]> = std::iter::once(head).chain(self.rows.iter().map(cells)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(width);
        let marks = std::iter::once("").chain(self.rows.iter().map(|row| if row.trained { "" } else { "  frozen" }));
        for ([path, shape, dtype, elements, bytes], mark) in rows.iter().zip(marks) {
            writeln!(f, "{path:a$}  {shape:b$}  {dtype:c$}  {elements:>d$}  {bytes:>e$}{mark}")?;
        }
        let (count, elements, trained) = (self.rows.len(), self.elements(), self.trained());
        write!(f, "{count} parameters of {} elements, {} bytes; ", grouped(elements), grouped(self.bytes()))?;
        match trained == elements {
            true => writeln!(f, "all are trained"),
            false => writeln!(f, "{} elements are trained", grouped(trained)),
        }
    }
}

/// A number with commas between its thousands.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let comma = |i: usize| i > 0 && (digits.len() - i).is_multiple_of(3);
    digits.char_indices().flat_map(|(i, digit)| comma(i).then_some(',').into_iter().chain([digit])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        layers::{Builder, Init, paths},
        models::{Mlp, MlpConfig},
    };
    use wgrad::Store;

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1000, 123_456, 1_234_567].map(grouped), ["0", "999", "1,000", "123,456", "1,234,567"]);
    }

    #[test]
    fn frozen_parameters_are_marked_and_counted() {
        let mut store = Store::new();
        let config = MlpConfig { inputs: 3, width: 2, depth: 1, outputs: 1, init: Init::Ones, ..MlpConfig::default() };
        Mlp::new(Builder::new(&mut store, 0).with_dtype(DType::F64), &config);
        let trained = paths::freeze(store.layout(), &store.params(), "layer/**");
        let summary = Summary::new(store.layout(), &trained);
        assert_eq!((summary.elements(), summary.trained(), summary.bytes()), (11, 3, 88));
        let text = summary.to_string();
        assert!(text.contains("layer/0/weight  [2, 3]  f64          6     48  frozen\n"), "{text}");
        assert!(text.contains("head/weight     [1, 2]  f64          2     16\n"), "{text}");
        assert!(text.ends_with("4 parameters of 11 elements, 88 bytes; 3 elements are trained\n"), "{text}");
    }
}
