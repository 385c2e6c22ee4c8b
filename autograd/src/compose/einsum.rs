//! Einstein's summation: products of tensors by the names of their axes.

use crate::{Shape, Tensor};

/// A tensor whose axes have names.
struct Named<'t> {
    tensor: Tensor<'t>,
    axes: Vec<char>,
}

impl<'t> Tensor<'t> {
    /// The sum of products that an equation names: `"bij,bjk->bik"` multiplies two batches of matrices. Each operand has
    /// a letter for each of its axes. A letter that the result lacks is summed over; a letter twice in one operand takes
    /// its diagonal. Without `->`, the result has the letters that occur once, in alphabetical order.
    ///
    /// Operands are multiplied from left to right, each pair by one batched matrix product. Letters do not broadcast,
    /// and there is no ellipsis.
    ///
    /// ```
    /// use wgrad::{DType, Tape, Tensor};
    /// let t = Tape::default();
    /// let queries = t.input("queries", [2, 5, 4, 8], DType::F32);
    /// let keys = t.input("keys", [2, 7, 4, 8], DType::F32);
    /// let scores = Tensor::einsum("bqhd,bkhd->bhqk", &[queries, keys]);
    /// assert_eq!(scores.shape(), [2, 4, 5, 7].into());
    /// ```
    ///
    /// # Panics
    /// If there is no operand, the equation is not of this form or does not fit the operands, or a letter stands for two
    /// extents.
    #[track_caller]
    pub fn einsum(equation: &str, operands: &[Tensor<'t>]) -> Self {
        assert!(!operands.is_empty(), "einsum: {equation:?} of no tensor");
        let tape = operands[0].tape;
        let _call = tape.call("einsum", operands);
        let refused = |why: &str| format!("{equation:?}: {why}");
        let compact: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, result) = match compact.split_once("->") {
            Some((inputs, result)) => (inputs.to_string(), Some(result.to_string())),
            None => (compact, None),
        };
        let letters = |text: &str| text.chars().all(|c| c.is_ascii_alphabetic());
        let parts: Vec<Vec<char>> = inputs.split(',').map(|part| part.chars().collect()).collect();
        let named = inputs.split(',').chain(result.as_deref()).all(letters);
        tape.require(named, "einsum", operands, || refused("an axis is a letter from a to z or from A to Z"));
        let count = parts.len() == operands.len();
        tape.require(count, "einsum", operands, || refused("the equation has another number of operands"));
        let ranks = parts.iter().zip(operands).all(|(axes, x)| axes.len() == x.rank());
        tape.require(ranks, "einsum", operands, || refused("an operand has another number of axes than letters"));
        let extents = |letter: char| {
            let of = parts.iter().zip(operands);
            let all = of.flat_map(|(axes, x)| axes.iter().copied().zip(x.shape().to_vec()));
            all.filter(move |(axis, _)| *axis == letter).map(|(_, extent)| extent).collect::<Vec<_>>()
        };
        let all: Vec<char> = parts.concat();
        let equal = all.iter().all(|&letter| extents(letter).windows(2).all(|pair| pair[0] == pair[1]));
        tape.require(equal, "einsum", operands, || refused("a letter stands for two extents"));
        let result: Vec<char> = match result {
            Some(result) => result.chars().collect(),
            None => {
                let mut once: Vec<char> = all
                    .iter()
                    .copied()
                    .filter(|letter| all.iter().filter(|other| *other == letter).count() == 1)
                    .collect();
                once.sort_unstable();
                once
            }
        };
        let distinct = |axes: &[char]| (1..axes.len()).all(|i| !axes[..i].contains(&axes[i]));
        let known = distinct(&result) && result.iter().all(|letter| all.contains(letter));
        tape.require(known, "einsum", operands, || {
            refused("a letter of the result occurs in no operand, or twice in the result")
        });
        let mut named =
            parts.iter().zip(operands).map(|(axes, &tensor)| Named { tensor, axes: axes.clone() }.diagonal());
        let mut product = named.next().expect("there is an operand");
        for (i, next) in named.enumerate() {
            let wanted = |letter: &char| result.contains(letter) || parts[i + 2..].concat().contains(letter);
            product = product.times(next, &wanted);
        }
        product.summed(&|letter| result.contains(letter)).ordered(&result).tensor
    }
}

impl<'t> Named<'t> {
    /// Takes the diagonal of axes of one name.
    #[track_caller]
    fn diagonal(mut self) -> Self {
        while let Some((first, second)) = self.repeated() {
            let axes: Vec<char> = self.axes.iter().enumerate().filter(|(i, _)| *i != second).map(|(_, c)| *c).collect();
            let (rank, extent) = (self.axes.len(), self.tensor.shape()[first]);
            let mut order: Vec<usize> = (0..rank).filter(|axis| *axis != first && *axis != second).collect();
            order.extend([first, second]);
            let x = self.tensor.permute(&order);
            let shape = x.shape();
            let flat = x.reshape([&shape[..rank - 2], &[extent * extent]].concat());
            let diagonal = flat.slice_step(rank - 2, 0, extent, extent as isize + 1);
            // It is the last axis now.
            let letter = self.axes[first];
            let mut moved: Vec<char> = axes.iter().copied().filter(|other| *other != letter).collect();
            moved.push(letter);
            self = Self { tensor: diagonal, axes: moved };
        }
        self
    }

    /// Two axes of one name.
    fn repeated(&self) -> Option<(usize, usize)> {
        let pairs = (0..self.axes.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
        pairs.into_iter().find(|&(first, second)| self.axes[first] == self.axes[second])
    }

    /// Sums over the axes that nobody wants.
    #[track_caller]
    fn summed(self, wanted: &dyn Fn(&char) -> bool) -> Self {
        let lost: Vec<usize> = (0..self.axes.len()).filter(|&axis| !wanted(&self.axes[axis])).collect();
        let axes = self.axes.iter().copied().filter(|letter| wanted(letter)).collect();
        Self { tensor: self.tensor.sum_axes(&lost), axes }
    }

    /// The axes in an order.
    #[track_caller]
    fn ordered(self, axes: &[char]) -> Self {
        let place = |letter: &char| self.axes.iter().position(|axis| axis == letter).expect("one of the axes");
        let order: Vec<usize> = axes.iter().map(place).collect();
        let tensor = if order.is_sorted() { self.tensor } else { self.tensor.permute(&order) };
        Self { tensor, axes: axes.to_vec() }
    }

    /// The product, summed over the axes of both that are not wanted.
    #[track_caller]
    fn times(self, other: Self, wanted: &dyn Fn(&char) -> bool) -> Self {
        let a = {
            let both = other.axes.clone();
            self.summed(&|letter| wanted(letter) || both.contains(letter))
        };
        let b = {
            let both = a.axes.clone();
            other.summed(&|letter| wanted(letter) || both.contains(letter))
        };
        let of = |x: &[char], keep: &dyn Fn(&char) -> bool| -> Vec<char> {
            x.iter().copied().filter(|letter| keep(letter)).collect()
        };
        let batch = of(&a.axes, &|letter| b.axes.contains(letter) && wanted(letter));
        let inner = of(&a.axes, &|letter| b.axes.contains(letter) && !wanted(letter));
        let rows = of(&a.axes, &|letter| !b.axes.contains(letter));
        let columns = of(&b.axes, &|letter| !a.axes.contains(letter));
        let a = a.ordered(&[&batch[..], &rows, &inner].concat()).tensor;
        let b = b.ordered(&[&batch[..], &inner, &columns].concat()).tensor;
        let (left, right) = (a.shape(), b.shape());
        let extent = |shape: &Shape, from: usize, count: usize| shape[from..from + count].iter().product::<usize>();
        let groups = extent(&left, 0, batch.len());
        let m = extent(&left, batch.len(), rows.len());
        let k = extent(&left, batch.len() + rows.len(), inner.len());
        let n = extent(&right, batch.len() + inner.len(), columns.len());
        let product = match inner.is_empty() {
            true => a.reshape([groups, m, 1]) * b.reshape([groups, 1, n]),
            false => a.reshape([groups, m, k]).matmul(b.reshape([groups, k, n])),
        };
        let kept = batch.len() + rows.len();
        let shape = [&left[..kept], &right[batch.len() + inner.len()..]].concat();
        Self { tensor: product.reshape(shape), axes: [batch, rows, columns].concat() }
    }
}
