//! Reductions, sums along an axis, and operations that normalise rows.

use super::{Row, row};
use crate::Gradcheck;
use wgrad::Shape;

pub(super) fn reductions() -> Vec<Row> {
    let mut rows = vec![];
    let cases: [(Shape, &'static [usize]); 8] = [
        ([].into(), &[]),
        ([5].into(), &[0]),
        ([3, 5].into(), &[0]),
        ([3, 5].into(), &[1]),
        ([2, 3, 4].into(), &[0, 2]),
        ([2, 3, 4].into(), &[1]),
        ([2, 1, 3, 2].into(), &[0, 1, 2, 3]),
        ([3, 0].into(), &[0]),
    ];
    for (shape, axes) in cases {
        let any = || Gradcheck::new([shape.clone()]);
        rows.push(row("sum_axes", any(), move |x| x[0].sum_axes(axes)));
        rows.push(row("max_axes", any(), move |x| x[0].max_axes(axes)));
        rows.push(row("norm_axes", any(), move |x| x[0].norm_axes(axes)));
        rows.push(row("min_axes", any(), move |x| x[0].min_axes(axes)));
        rows.push(row("prod_axes", any(), move |x| x[0].prod_axes(axes)));
        if shape.numel() > 0 {
            rows.push(row("mean_axes", any(), move |x| x[0].mean_axes(axes)));
            rows.push(row("var_axes", any(), move |x| x[0].var_axes(axes)));
            rows.push(row("std_axes", any(), move |x| x[0].std_axes(axes)));
            rows.push(row("logsumexp_axes", any(), move |x| x[0].logsumexp_axes(axes)));
        }
        if axes.len() > 1 || axes == [0] && shape.numel() > 1 {
            rows.push(row("var_axes_with", any(), move |x| x[0].var_axes_with(axes, 1.0)));
            rows.push(row("std_axes_with", any(), move |x| x[0].std_axes_with(axes, 1.0)));
        }
    }
    for (shape, axes) in [([0usize, 3], &[1usize][..]), ([2, 0], &[0])] {
        let any = || Gradcheck::new([shape]);
        rows.push(row("mean_axes: none", any(), move |x| x[0].mean_axes(axes)));
        rows.push(row("var_axes: none", any(), move |x| x[0].var_axes(axes)));
        rows.push(row("std_axes: none", any(), move |x| x[0].std_axes(axes)));
        rows.push(row("std_axes_with: none", any(), move |x| x[0].std_axes_with(axes, 1.0)));
        rows.push(row("prod_axes: none", any(), move |x| x[0].prod_axes(axes)));
        rows.push(row("var_axes_with: none", any(), move |x| x[0].var_axes_with(axes, 1.0)));
        rows.push(row("logsumexp_axes: none", any(), move |x| x[0].logsumexp_axes(axes)));
    }
    rows.extend([
        row("sum: of nothing", Gradcheck::new([[3usize, 0]]), |x| x[0].sum()),
        row("prod: of nothing", Gradcheck::new([[3usize, 0]]), |x| x[0].prod() + x[0].sum()),
        row("prod: of a zero", Gradcheck::new([[5usize]]), |x| (x[0] * x[0].tape().iota(5).cast(x[0].dtype())).prod()),
        row("norm: of nothing", Gradcheck::new([[0usize]]), |x| x[0].norm()),
        row("dot: of nothing", Gradcheck::new([[0usize]]), |x| x[0].dot(x[0])),
        row("all_finite: of nothing", Gradcheck::new([[0usize]]), |x| {
            x[0].all_finite().cast(x[0].dtype()) + x[0].sum()
        }),
    ]);
    rows.push(row("sum_axes: of nothing", Gradcheck::new([[3usize, 0]]), |x| x[0].sum_axes(&[1])));
    for (shape, axis) in [([3usize, 5], 0), ([3, 5], 1), ([1, 1], 1), ([0, 3], 1)] {
        let any = || Gradcheck::new([shape]);
        let kept = Shape::from(shape).with(axis, 1);
        let (first, last) = (kept.clone(), kept);
        rows.push(row("argmax", any(), move |x| x[0].gather(x[0].argmax(axis).reshape(&first), axis)));
        rows.push(row("argmin", any(), move |x| x[0].gather(x[0].argmin(axis).reshape(&last), axis)));
        rows.push(row("max_with_index", any(), move |x| x[0].max_with_index(axis).0));
        rows.push(row("argsort", any(), move |x| {
            let up = x[0].argsort(axis, false).cast(x[0].dtype());
            x[0] * (up - x[0].argsort(axis, true).cast(x[0].dtype()))
        }));
        rows.push(row("sort", any(), move |x| x[0].sort(axis, false).0 * x[0].sin()));
        rows.push(row("sort: descending", any(), move |x| x[0].sort(axis, true).0 * x[0].sin()));
        rows.push(row("topk", any(), move |x| x[0].topk(1, axis).0));
    }
    for (shape, axis) in [([3usize, 5], 0), ([3, 5], 1), ([1, 1], 0), ([0, 3], 0), ([3, 0], 0), ([7, 2], 0)] {
        rows.push(row("cumsum", Gradcheck::new([shape]), move |x| x[0].cumsum(axis)));
        rows.push(row("cumprod", Gradcheck::new([shape]), move |x| x[0].cumprod(axis)));
        rows.push(row("softmax", Gradcheck::new([shape]), move |x| x[0].softmax(axis)));
        rows.push(row("log_softmax", Gradcheck::new([shape]), move |x| x[0].log_softmax(axis)));
        // The logsumexp of no elements is minus infinity, which has no finite differences.
        if shape[axis] > 0 {
            rows.push(row("logsumexp", Gradcheck::new([shape]), move |x| x[0].logsumexp(axis)));
            rows.push(row("softmax_entropy", Gradcheck::new([shape]), move |x| x[0].softmax_entropy(axis)));
        }
    }
    for shape in [vec![5usize], vec![3, 1], vec![1], vec![]] {
        let any = || Gradcheck::new([shape.clone()]);
        rows.push(row("mean", any(), |x| x[0].mean()));
        rows.push(row("sum", any(), |x| x[0].sum()));
        rows.push(row("prod", any(), |x| x[0].prod()));
        rows.push(row("max", any(), |x| x[0].max()));
        rows.push(row("min", any(), |x| x[0].min()));
        rows.push(row("norm", any(), |x| x[0].norm()));
        rows.push(row("dot", any(), |x| x[0].dot(x[0].sin())));
        rows.push(row("all_finite", any(), |x| x[0].all_finite().select(x[0] * x[0], x[0])));
    }
    rows
}
