//! Orthogonal matrices next to those of an arena, by Newton-Schulz steps: nothing but products of matrices.

use std::collections::BTreeMap;
use wgrad::{Layout, Param, Tensor};

/// The coefficients of a step, whose slope at 0 is the steepest with which singular values end near 1 (Jordan et al.
/// 2024).
const COEFFICIENTS: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);
/// The least norm that a matrix is divided by.
const LEAST: f64 = 1e-7;

/// A matrix in an arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    start: usize,
    pub rows: usize,
    pub columns: usize,
}

impl Matrix {
    /// A parameter as its first dimension by the product of the others; `None` if it has less than two dimensions, or
    /// no elements.
    #[track_caller]
    pub fn of(layout: &Layout, param: Param) -> Option<Self> {
        let decl = layout.param(param);
        let matrix = decl.shape.rank() >= 2 && decl.shape.numel() > 0;
        matrix.then(|| Self { start: decl.offset, rows: decl.shape[0], columns: decl.shape[1..].iter().product() })
    }

    fn len(&self) -> usize {
        self.rows * self.columns
    }
}

/// A flat vector with the given matrices of `flat` orthogonalised, and zeros elsewhere. Matrices of one shape, or of
/// its transpose, are one batch.
#[track_caller]
pub(super) fn orthogonalized<'t>(flat: Tensor<'t>, matrices: &[Option<Matrix>], steps: usize) -> Tensor<'t> {
    let mut shapes: BTreeMap<(usize, usize), Vec<Matrix>> = BTreeMap::new();
    for matrix in matrices.iter().flatten() {
        let shape = (matrix.rows.min(matrix.columns), matrix.rows.max(matrix.columns));
        shapes.entry(shape).or_default().push(*matrix);
    }
    let mut parts: Vec<(usize, Tensor<'t>)> = vec![];
    for batch in shapes.into_values() {
        // The product of the shorter side is the smaller one.
        let upright = |matrix: &Matrix, x: Tensor<'t>| if matrix.rows > matrix.columns { x.transpose() } else { x };
        let mut wide = Vec::with_capacity(batch.len());
        for matrix in &batch {
            let x = flat.slice(0, matrix.start, matrix.len()).reshape([matrix.rows, matrix.columns]);
            wide.push(upright(matrix, x));
        }
        let x = iterated(Tensor::stack(&wide), steps);
        for (i, matrix) in batch.iter().enumerate() {
            parts.push((matrix.start, upright(matrix, x.index(0, i)).reshape([matrix.len()])));
        }
    }
    // A transposed matrix is one with more rows than columns, so that it is turned back by its own shape.
    parts.sort_by_key(|(start, _)| *start);
    joined(flat, parts)
}

/// Parts at their places of a vector like another, with zeros between them.
#[track_caller]
fn joined<'t>(like: Tensor<'t>, parts: Vec<(usize, Tensor<'t>)>) -> Tensor<'t> {
    let zeros = |len: usize| like.tape().full([len], 0.0, like.dtype());
    let (mut joined, mut end) = (vec![], 0);
    for (start, part) in parts {
        if start > end {
            joined.push(zeros(start - end));
        }
        joined.push(part);
        end = start + part.numel();
    }
    if like.numel() > end || joined.is_empty() {
        joined.push(zeros(like.numel() - end));
    }
    Tensor::concat(&joined, 0)
}

/// The steps, of a batch `[count, rows, columns]` with no more rows than columns.
#[track_caller]
fn iterated(x: Tensor<'_>, steps: usize) -> Tensor<'_> {
    let (a, b, c) = COEFFICIENTS;
    let norm = x.norm_axes(&[1, 2]).maximum(LEAST);
    let mut x = x / norm.reshape([x.shape()[0], 1, 1]);
    for step in 0..steps {
        let _turn = x.tape().enter_turn("newton_schulz", step);
        let gram = x.matmul_t(x);
        x = x * a + (gram * b + gram.matmul(gram) * c).matmul(x);
    }
    x
}
