//! Matrix products and convolutions.

use super::{Row, row};
use crate::Gradcheck;
use wgrad::{Conv2d, Shape, Tensor};

pub(super) fn products() -> Vec<Row> {
    let pair = |a: &[usize], b: &[usize]| Gradcheck::new([Shape::from(a), Shape::from(b)]);
    let mut rows = vec![];
    for (m, k, n) in [(2, 3, 4), (1, 5, 1), (3, 1, 2), (2, 0, 3), (0, 2, 2), (1, 1, 1)] {
        rows.push(row("matmul", pair(&[m, k], &[k, n]), |x| x[0].matmul(x[1])));
        rows.push(row("matmul_t", pair(&[m, k], &[n, k]), |x| x[0].matmul_t(x[1])));
        rows.push(row("matmul: transposed", pair(&[k, m], &[k, n]), |x| x[0].transpose().matmul(x[1])));
    }
    rows.extend([
        row("matmul: batched", pair(&[2, 2, 3], &[2, 3, 2]), |x| x[0].matmul(x[1])),
        row("matmul_t: batched", pair(&[2, 1, 2, 3], &[2, 1, 2, 3]), |x| x[0].matmul_t(x[1])),
        row("matmul: with one matrix", pair(&[2, 2, 3], &[3, 2]), |x| x[0].matmul(x[1])),
        row("matmul: with a broadcast batch", pair(&[2, 1, 2, 3], &[3, 3, 2]), |x| x[0].matmul(x[1])),
        row("matmul: of vectors", pair(&[3], &[3]), |x| x[0].matmul(x[1])),
        row("matmul: of a vector and a matrix", pair(&[3], &[3, 2]), |x| x[0].matmul(x[1])),
        row("matmul: of a matrix and a vector", pair(&[2, 3], &[3]), |x| x[0].matmul(x[1])),
        row("matmul: of a batch and a vector", pair(&[2, 2, 3], &[3]), |x| x[0].matmul(x[1])),
        row("matmul: of a vector and a batch", pair(&[3], &[2, 3, 2]), |x| x[0].matmul(x[1])),
        row("matmul: with itself", Gradcheck::new([[3usize, 3]]), |x| x[0].matmul(x[0]).matmul_t(x[0])),
    ]);
    rows
}

pub(super) fn convolutions() -> Vec<Row> {
    let pair = |x: [usize; 4], w: [usize; 4]| Gradcheck::new([Shape::from(x), Shape::from(w)]);
    let plain = Conv2d::default();
    let cases: [(&str, Conv2d, [usize; 4], [usize; 4]); 16] = [
        ("conv2d", plain, [2, 3, 4, 5], [2, 3, 3, 2]),
        ("conv2d: of one", plain, [1, 1, 1, 1], [1, 1, 1, 1]),
        ("conv2d: of nothing", plain, [0, 2, 3, 3], [2, 2, 2, 2]),
        ("conv2d: to nothing", plain, [1, 2, 3, 3], [0, 2, 2, 2]),
        ("conv2d: without channels", plain, [1, 0, 3, 3], [2, 0, 2, 2]),
        ("conv2d: in squares", Conv2d { padding: [1, 1], ..plain }, [4, 3, 5, 4], [2, 3, 3, 3]),
        (
            "conv2d: in squares, padded beyond the kernel",
            Conv2d { padding: [3, 0], ..plain },
            [1, 2, 2, 5],
            [3, 2, 3, 3],
        ),
        ("conv2d: in squares and groups", Conv2d { groups: 2, ..plain }, [1, 4, 4, 3], [4, 2, 3, 3]),
        ("conv2d: with a stride", Conv2d { stride: [2, 3], ..plain }, [1, 2, 5, 7], [3, 2, 3, 2]),
        ("conv2d: with a stride that leaves a rest", Conv2d { stride: [3, 2], ..plain }, [1, 1, 6, 6], [1, 1, 2, 3]),
        ("conv2d: padded", Conv2d { padding: [1, 2], ..plain }, [1, 2, 3, 2], [2, 2, 3, 3]),
        ("conv2d: padded beyond the kernel", Conv2d { padding: [2, 1], ..plain }, [1, 1, 2, 2], [1, 1, 1, 1]),
        ("conv2d: dilated", Conv2d { dilation: [2, 3], padding: [1, 0], ..plain }, [1, 1, 5, 5], [2, 1, 2, 2]),
        ("conv2d: in groups", Conv2d { groups: 2, ..plain }, [2, 4, 3, 3], [4, 2, 2, 2]),
        ("conv2d: depthwise", Conv2d { groups: 3, padding: [1, 1], ..plain }, [1, 3, 3, 4], [6, 1, 3, 3]),
        (
            "conv2d: with everything",
            Conv2d { stride: [2, 1], padding: [1, 2], dilation: [2, 1], groups: 2 },
            [2, 2, 5, 3],
            [2, 1, 2, 3],
        ),
    ];
    let mut rows: Vec<Row> = vec![];
    for (name, conv, x, w) in cases {
        rows.push(row(name, pair(x, w), move |x| x[0].conv2d(x[1], conv)));
    }
    let signals = |x: [usize; 3], w: [usize; 3]| Gradcheck::new([Shape::from(x), Shape::from(w)]);
    rows.extend([
        row("conv1d", signals([2, 3, 5], [2, 3, 3]), |x| x[0].conv1d(x[1], 1, 1, 1, 1)),
        row("conv1d: of one", signals([1, 1, 1], [1, 1, 1]), |x| x[0].conv1d(x[1], 1, 0, 1, 1)),
        row("conv1d: of nothing", signals([0, 2, 3], [1, 2, 2]), |x| x[0].conv1d(x[1], 1, 0, 1, 1)),
        row("conv1d: with everything", signals([2, 4, 7], [2, 2, 2]), |x| x[0].conv1d(x[1], 2, 1, 3, 2)),
    ]);
    let doubles = Conv2d { stride: [2, 2], padding: [1, 1], ..plain };
    let padded = Conv2d { stride: [3, 2], padding: [1, 0], ..plain };
    let everything = Conv2d { stride: [2, 1], padding: [1, 2], dilation: [2, 1], groups: 2 };
    for (name, conv, rest, x, w) in [
        ("conv_transpose2d", plain, [0, 0], [2, 3, 4, 3], [3, 2, 3, 2]),
        ("conv_transpose2d: of one", plain, [0, 0], [1, 1, 1, 1], [1, 1, 1, 1]),
        ("conv_transpose2d: of nothing", plain, [0, 0], [0, 2, 3, 3], [2, 2, 2, 2]),
        ("conv_transpose2d: that doubles", doubles, [0, 0], [1, 2, 3, 2], [2, 3, 4, 4]),
        ("conv_transpose2d: padded", padded, [2, 1], [1, 1, 2, 3], [1, 2, 3, 3]),
        ("conv_transpose2d: with everything", everything, [1, 0], [2, 2, 3, 5], [2, 2, 2, 3]),
    ] {
        rows.push(row(name, pair(x, w), move |x| x[0].conv_transpose2d(x[1], conv, rest)));
    }
    rows.extend([
        row("conv_transpose1d", signals([2, 3, 5], [3, 2, 3]), |x| x[0].conv_transpose1d(x[1], 2, 1, 1, 1, 1)),
        row("conv_transpose1d: of one", signals([1, 1, 1], [1, 1, 1]), |x| x[0].conv_transpose1d(x[1], 1, 0, 0, 1, 1)),
        row("conv_transpose1d: of nothing", signals([0, 2, 3], [2, 1, 2]), |x| {
            x[0].conv_transpose1d(x[1], 1, 0, 0, 1, 1)
        }),
        row("conv_transpose1d: with everything", signals([2, 4, 3], [4, 1, 2]), |x| {
            x[0].conv_transpose1d(x[1], 2, 1, 1, 3, 2)
        }),
    ]);
    rows.into_iter().map(|row| Row { weighs: true, ..row }).collect()
}

pub(super) fn einsum() -> Vec<Row> {
    let of = |shapes: &[&[usize]]| Gradcheck::new(shapes.iter().map(|&shape| Shape::from(shape)).collect::<Vec<_>>());
    vec![
        row("einsum", of(&[&[2, 3], &[3, 4]]), |x| Tensor::einsum("ij,jk->ik", x)),
        row("einsum: of a batch", of(&[&[2, 3, 2, 2], &[2, 4, 2, 2]]), |x| Tensor::einsum("bqhd, bkhd -> bhqk", x)),
        row("einsum: of three", of(&[&[2, 3], &[3], &[3, 2]]), |x| Tensor::einsum("ij,j,jk->ki", x)),
        row("einsum: without a result", of(&[&[2, 3], &[3, 2]]), |x| Tensor::einsum("ij,jk", x)),
        row("einsum: to a scalar", of(&[&[3], &[3]]), |x| Tensor::einsum("i,i->", x)),
        row("einsum: outer", of(&[&[2], &[3]]), |x| Tensor::einsum("i,j->ji", x)),
        row("einsum: elementwise", of(&[&[2, 3], &[3, 2]]), |x| Tensor::einsum("ij,ji->ij", x)),
        row("einsum: of a diagonal", of(&[&[3, 2, 3]]), |x| Tensor::einsum("iji->ji", x)),
        row("einsum: of a trace", of(&[&[3, 3]]), |x| Tensor::einsum("ii", x)),
        row("einsum: with a sum on one side", of(&[&[2, 3], &[2, 2]]), |x| Tensor::einsum("ab,ac->a", x)),
        row("einsum: of nothing", of(&[&[2, 0], &[0, 3]]), |x| Tensor::einsum("ij,jk->ik", x)),
        row("einsum: of no diagonal", of(&[&[0, 0]]), |x| Tensor::einsum("ii->i", x)),
        row("einsum: of one", of(&[&[1, 1], &[1, 1]]), |x| Tensor::einsum("ij,jk->ik", x)),
    ]
    .into_iter()
    .map(|row| Row { weighs: true, ..row })
    .collect()
}
