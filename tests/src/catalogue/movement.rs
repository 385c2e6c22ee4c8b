//! Operations that move elements: shapes, views, joins, padding.

use super::{Row, row};
use crate::Gradcheck;
use wgrad::Tensor;

pub(super) fn movement() -> Vec<Row> {
    let matrix = || Gradcheck::new([[3usize, 4]]);
    let pair = |a: [usize; 2], b: [usize; 2]| Gradcheck::new([a, b]);
    vec![
        row("reshape", matrix(), |x| x[0].reshape([2, 1, 6])),
        row("reshape: to a scalar", Gradcheck::new([[1usize, 1]]), |x| x[0].reshape([])),
        row("reshape: of a transpose", matrix(), |x| x[0].transpose().reshape([2, 6])),
        row("reshape: of nothing", Gradcheck::new([[0usize, 4]]), |x| x[0].reshape([3, 0])),
        row("permute", Gradcheck::new([[2usize, 3, 1, 2]]), |x| x[0].permute(&[3, 0, 2, 1])),
        row("broadcast_to", Gradcheck::new([[2usize, 1, 3]]), |x| x[0].broadcast_to([4, 2, 5, 3])),
        row("broadcast_to: nothing", Gradcheck::new([[2usize, 1]]), |x| x[0].broadcast_to([2, 0])),
        row("reshape: of an expand", Gradcheck::new([[2usize, 1]]), |x| x[0].broadcast_to([2, 3]).reshape([6])),
        row("slice", matrix(), |x| x[0].slice(1, 1, 2)),
        row("slice: of nothing", matrix(), |x| x[0].slice(0, 0, 0)),
        row("slice: backwards", matrix(), |x| x[0].slice_step(1, 3, 2, -2)),
        row("slice: with a stride", matrix(), |x| x[0].slice_step(1, 0, 2, 3)),
        row("slice: overlapping", matrix(), |x| x[0].slice(1, 0, 3) * x[0].slice(1, 1, 3)),
        row("slice: interleaving", matrix(), |x| x[0].slice_step(1, 0, 2, 2) * x[0].slice_step(1, 1, 2, 2)),
        row("slice: of two axes", matrix(), |x| x[0].slice(0, 1, 1).sum() * x[0].slice(1, 2, 1)),
        row("slice: and the whole", matrix(), |x| x[0] * x[0].slice(0, 0, 1) + x[0].slice(0, 2, 1)),
        row("slice: empty and full", matrix(), |x| {
            Tensor::concat(&[x[0].slice(1, 0, 0), x[0].slice(1, 0, 2), x[0].slice(1, 2, 0), x[0].slice(1, 3, 1)], 1)
        }),
        row("index", matrix(), |x| x[0].index(0, 2)),
        row("concat", pair([2, 3], [2, 2]), |x| Tensor::concat(&[x[0], x[1], x[0]], 1)),
        row("concat: with nothing", pair([2, 3], [0, 3]), |x| Tensor::concat(&[x[1], x[0], x[1]], 0)),
        row("stack", pair([2, 3], [2, 3]), |x| Tensor::stack(&[x[0], x[1]])),
        row("stack: of nothing", pair([2, 0], [2, 0]), |x| Tensor::stack(&[x[0], x[1]])),
        row("transpose", matrix(), |x| x[0].transpose()),
        row("transpose: of nothing", Gradcheck::new([[0usize, 3]]), |x| x[0].transpose()),
        row("transpose: of one", Gradcheck::new([[1usize, 1]]), |x| x[0].transpose()),
        row("swap_axes", Gradcheck::new([[2usize, 3, 1, 2]]), |x| x[0].swap_axes(0, 3).swap_axes(1, 1)),
        row("swap_axes: of nothing", Gradcheck::new([[2usize, 0]]), |x| x[0].swap_axes(0, 1)),
        row("swap_axes: of one", Gradcheck::new([[1usize, 1]]), |x| x[0].swap_axes(0, 1)),
        row("unsqueeze", matrix(), |x| x[0].unsqueeze(0).unsqueeze(2).unsqueeze(4)),
        row("unsqueeze: of nothing", Gradcheck::new([[0usize]]), |x| x[0].unsqueeze(1)),
        row("unsqueeze: of one", Gradcheck::new([[1usize]]), |x| x[0].unsqueeze(1)),
        row("squeeze", Gradcheck::new([[3usize, 1, 2]]), |x| x[0].squeeze(1)),
        row("squeeze: of nothing", Gradcheck::new([[1usize, 0]]), |x| x[0].squeeze(0)),
        row("squeeze: of one", Gradcheck::new([[1usize]]), |x| x[0].squeeze(0)),
        row("flatten_from", Gradcheck::new([[2usize, 3, 1, 2]]), |x| x[0].flatten_from(1)),
        row("flatten_from: of nothing", Gradcheck::new([[2usize, 0, 3]]), |x| x[0].flatten_from(0)),
        row("flatten_from: of one", Gradcheck::new([[1usize, 1]]), |x| x[0].flatten_from(1)),
        row("flip", matrix(), |x| x[0].flip(&[0]) + x[0].flip(&[1]) * x[0].flip(&[1, 0])),
        row("flip: of nothing", Gradcheck::new([[2usize, 0]]), |x| x[0].flip(&[1, 0])),
        row("flip: of one", Gradcheck::new([[1usize]]), |x| x[0].flip(&[0])),
        row("pad_with", matrix(), |x| x[0].pad_with(0, 2, 1, -1.5).pad_with(1, 0, 1, 0.0)),
        row("pad_with: of nothing", Gradcheck::new([[2usize, 0]]), |x| x[0].pad_with(1, 1, 1, 2.0)),
        row("pad_with: of one", Gradcheck::new([[1usize]]), |x| x[0].pad_with(0, 0, 0, 2.0)),
        row("permute: of nothing", Gradcheck::new([[2usize, 0, 1]]), |x| x[0].permute(&[1, 2, 0])),
        row("permute: of one", Gradcheck::new([[1usize, 1]]), |x| x[0].permute(&[1, 0])),
        row("slice: of one", Gradcheck::new([[1usize]]), |x| x[0].slice(0, 0, 1)),
        row("slice: where there is nothing", Gradcheck::new([[0usize, 3]]), |x| x[0].slice(1, 1, 2)),
        row("index: of one", Gradcheck::new([[1usize, 1]]), |x| x[0].index(0, 0)),
        row("index: where there is nothing", Gradcheck::new([[3usize, 0]]), |x| x[0].index(0, 2)),
        row("concat: of one", pair([1, 1], [1, 1]), |x| Tensor::concat(x, 0)),
        row("stack: of one", pair([1, 1], [1, 1]), |x| Tensor::stack(x)),
        row("broadcast_to: of one", Gradcheck::new([[1usize]]), |x| x[0].broadcast_to([3])),
        row("broadcast_to: of nothing", Gradcheck::new([[0usize, 1]]), |x| x[0].broadcast_to([0, 3])),
        row("pad: of one", Gradcheck::new([[1usize]]), |x| x[0].pad(0, 1, 0)),
        row("pad", matrix(), |x| x[0].pad(0, 2, 1).pad(1, 0, 1)),
        row("pad: of nothing", Gradcheck::new([[2usize, 0]]), |x| x[0].pad(1, 1, 1)),
    ]
}
