//! Indexing, segments of flat vectors, and integer leaves: positions and random words.

use super::{Row, row};
use crate::Gradcheck;
use wgrad::{Array, DType, Shape, Tape, Tensor, op::Segments};

pub(super) fn index(shape: impl Into<Shape>, values: &[u32]) -> Array {
    Array::new(shape, values.to_vec())
}

pub(super) fn indexing() -> Vec<Row> {
    let ranges: Box<[(usize, usize)]> = [(0, 2), (2, 0), (3, 4)].into();
    let segments = std::sync::Arc::new(Segments { total: 8, ranges });
    let [sum, max, norm, broadcast] = [(); 4].map(|()| segments.clone());
    let matrix = |indices: Array| Gradcheck::new([[3usize, 4]]).indices(vec![indices]);
    vec![
        row("gather: rows", matrix(index([2, 4], &[0, 2, 1, 0, 2, 2, 0, 1])), |x| x[0].gather(x[1], 0)),
        row("gather: columns", matrix(index([3, 3], &[3, 0, 0, 1, 1, 1, 2, 3, 0])), |x| x[0].gather(x[1], 1)),
        row("gather: nothing", matrix(index([3, 0], &[])), |x| x[0].gather(x[1], 1)),
        row("rows", matrix(index([2, 2], &[0, 2, 2, 1])), |x| x[0].rows(x[1])),
        row("scatter_add", matrix(index([3, 4], &[0, 1, 0, 1, 1, 1, 0, 0, 4, 0, 1, 4])), |x| {
            x[0].scatter_add(x[1], 0, 5)
        }),
        row("scatter_add: along rows", matrix(index([3, 4], &[0, 1, 0, 1, 1, 1, 0, 0, 2, 0, 1, 2])), |x| {
            x[0].scatter_add(x[1], 1, 3)
        }),
        row("gather: of one", Gradcheck::new([[1usize, 1]]).indices(vec![index([1, 1], &[0])]), |x| {
            x[0].gather(x[1], 0)
        }),
        row("gather: from nothing", Gradcheck::new([[0usize, 4]]).indices(vec![index([0, 2], &[])]), |x| {
            x[0].gather(x[1], 1)
        }),
        row("scatter_add: of one", Gradcheck::new([[1usize]]).indices(vec![index([1], &[2])]), |x| {
            x[0].scatter_add(x[1], 0, 4)
        }),
        row("scatter_add: of nothing", Gradcheck::new([[0usize]]).indices(vec![index([0], &[])]), |x| {
            x[0].scatter_add(x[1], 0, 4)
        }),
        row("rows: of vectors of one", Gradcheck::new([[3usize, 1]]).indices(vec![index([3], &[2, 2, 0])]), |x| {
            x[0].rows(x[1])
        }),
        row("rows: of a vector", Gradcheck::new([[1usize]]).indices(vec![index([], &[0])]), |x| x[0].rows(x[1])),
        row("rows: none", matrix(index([0, 2], &[])), |x| x[0].rows(x[1])),
        row("rows: of nothing", Gradcheck::new([[3usize, 0]]).indices(vec![index([2], &[2, 0])]), |x| x[0].rows(x[1])),
        row("embedding", matrix(index([2, 2], &[0, 2, 2, 1])), |x| x[0].embedding(x[1], None)),
        row("embedding: of one", Gradcheck::new([[1usize, 1]]).indices(vec![index([1], &[0])]), |x| {
            x[0].embedding(x[1], None)
        }),
        row("embedding: of nothing", Gradcheck::new([[3usize, 0]]).indices(vec![index([1], &[0])]), |x| {
            x[0].embedding(x[1], None)
        }),
        row("index_select", matrix(index([5], &[0, 2, 2, 1, 0])), |x| x[0].index_select(0, x[1])),
        row("index_select: columns", matrix(index([2], &[3, 3])), |x| x[0].index_select(1, x[1])),
        row("index_select: of one", Gradcheck::new([[1usize]]).indices(vec![index([1], &[0])]), |x| {
            x[0].index_select(0, x[1])
        }),
        row("index_select: of nothing", Gradcheck::new([[3usize, 0]]).indices(vec![index([2], &[2, 0])]), |x| {
            x[0].index_select(0, x[1])
        }),
        row("one_hot", matrix(index([3], &[3, 0, 7])), |x| x[0] * x[1].one_hot(4, x[0].dtype()) * x[0]),
        row("one_hot: of one", Gradcheck::new([[1usize, 1]]).indices(vec![index([1], &[0])]), |x| {
            x[0] * x[1].one_hot(1, x[0].dtype())
        }),
        row("one_hot: of nothing", Gradcheck::new([[0usize, 2]]).indices(vec![index([0], &[])]), |x| {
            x[0] * x[1].one_hot(2, x[0].dtype())
        }),
        row("segment_sum: of nothing", Gradcheck::new([[0usize]]), |x| {
            x[0].segment_sum(&std::sync::Arc::new(Segments { total: 0, ranges: [(0, 0)].into() }))
        }),
        row("segment_broadcast: of nothing", Gradcheck::new([[0usize]]), |x| {
            x[0].segment_broadcast(&std::sync::Arc::new(Segments { total: 2, ranges: [].into() }))
        }),
        row("segment_sum: of all", Gradcheck::new([[7usize]]), |x| {
            x[0].segment_sum(&std::sync::Arc::new(Segments { total: 7, ranges: [(0, 7)].into() }))
        }),
        row("segment_sum: of one", Gradcheck::new([[1usize]]), |x| {
            x[0].segment_sum(&std::sync::Arc::new(Segments { total: 1, ranges: [(0, 1)].into() }))
        }),
        row("segment_broadcast: of one", Gradcheck::new([[1usize]]), |x| {
            x[0].segment_broadcast(&std::sync::Arc::new(Segments { total: 2, ranges: [(1, 1)].into() }))
        }),
        row("segment_sum", Gradcheck::new([[8usize]]), move |x| x[0].segment_sum(&sum)),
        row("segment_max", Gradcheck::new([[8usize]]), move |x| {
            // The maximum of an empty segment is minus infinity, so it is bounded here.
            x[0].segment_max(&max).maximum(-1e3)
        }),
        row("segment_norm", Gradcheck::new([[8usize]]), move |x| x[0].segment_norm(&norm)),
        row("segment_norm: of all", Gradcheck::new([[7usize]]), |x| {
            x[0].segment_norm(&std::sync::Arc::new(Segments { total: 7, ranges: [(0, 7)].into() }))
        }),
        row("segment_max: of all", Gradcheck::new([[7usize]]), |x| {
            x[0].segment_max(&std::sync::Arc::new(Segments { total: 7, ranges: [(0, 7)].into() }))
        }),
        row("table", Gradcheck::new([[3usize]]), |x| x[0].tape().table(&[1.5, -2.0, 0.25], x[0].dtype()) * x[0] * x[0]),
        row("segment_norm: of nothing", Gradcheck::new([[0usize]]), |x| {
            x[0].segment_norm(&std::sync::Arc::new(Segments { total: 0, ranges: [(0, 0)].into() }))
        }),
        row("segment_norm: of one", Gradcheck::new([[1usize]]), |x| {
            x[0].segment_norm(&std::sync::Arc::new(Segments { total: 1, ranges: [(0, 1)].into() }))
        }),
        row("segment_max: of nothing", Gradcheck::new([[0usize]]), |x| {
            x[0].segment_max(&std::sync::Arc::new(Segments { total: 0, ranges: [].into() }))
        }),
        row("segment_max: of one", Gradcheck::new([[1usize]]), |x| {
            x[0].segment_max(&std::sync::Arc::new(Segments { total: 1, ranges: [(0, 1)].into() }))
        }),
        row("table: of one", Gradcheck::new([[1usize]]), |x| x[0].tape().table(&[0.1], x[0].dtype()) * x[0] * x[0]),
        row("table: of nothing", Gradcheck::new([[0usize]]), |x| x[0].tape().table(&[], x[0].dtype()) * x[0]),
        row("segment_broadcast", Gradcheck::new([[3usize]]), move |x| x[0].segment_broadcast(&broadcast)),
        row("random", Gradcheck::new([[3usize, 3]]), |x| {
            words(x[0].tape(), [3, 3]).cast(x[0].dtype()) * 2f64.powi(-32) * x[0] * x[0]
        }),
        row("iota: of nothing", Gradcheck::new([[0usize]]), |x| x[0].tape().iota(0).cast(x[0].dtype()) * x[0]),
        row("iota: of one", Gradcheck::new([[1usize]]), |x| x[0].tape().iota(1).cast(x[0].dtype()) + x[0] * x[0]),
        row("random: none", Gradcheck::new([[0usize]]), |x| x[0] * words(x[0].tape(), [0]).cast(x[0].dtype())),
        row("random: of one", Gradcheck::new([[1usize]]), |x| {
            x[0] * words(x[0].tape(), [1]).cast(x[0].dtype()) * 2f64.powi(-32)
        }),
        row("iota", Gradcheck::new([[3usize]]), |x| x[0].tape().iota(3).cast(x[0].dtype()) * x[0] * x[0]),
    ]
}

/// Random words of 32 bits.
fn words(t: &Tape, shape: impl Into<Shape>) -> Tensor<'_> {
    t.random(t.table(&[1.0, 2.0], DType::U32), t.scalar(3.0, DType::U32), 4, shape)
}
