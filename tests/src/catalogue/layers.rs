//! The operations of layers: losses, normalisation, pooling, attention.

use super::{Row, indexing::index, row};
use crate::Gradcheck;
use wgrad::{Array, Attention, CrossEntropy, DType, Pool2d, Reduction, Shape, Tensor};

pub(super) fn losses() -> Vec<Row> {
    let matrix = |indices: Array| Gradcheck::new([[3usize, 4]]).indices(vec![indices]);
    let signed = |shape: &[usize], values: &[i32]| Array::new(shape, values.to_vec());
    let pair = |shape: &[usize]| Gradcheck::new([Shape::from(shape), Shape::from(shape)]);
    let plain = CrossEntropy::default();
    let ignoring = CrossEntropy { ignore_index: Some(-100), ..plain };
    let mut rows = vec![
        row("cross_entropy", matrix(index([3], &[3, 0, 2])), |x| x[0].cross_entropy(x[1])),
        row("cross_entropy: of one", Gradcheck::new([[1usize, 1]]).indices(vec![index([1], &[0])]), |x| {
            x[0].cross_entropy(x[1])
        }),
        row("cross_entropy_with", matrix(signed(&[3], &[3, -100, 2])), move |x| {
            x[0].cross_entropy_with(x[1], &ignoring)
        }),
        row("cross_entropy_with: smoothed", matrix(signed(&[3], &[3, -100, 2])), move |x| {
            x[0].cross_entropy_with(x[1], &CrossEntropy { label_smoothing: 0.2, ..ignoring })
        }),
        row("cross_entropy_with: an index ignored", matrix(index([3], &[3, 1, 2])), move |x| {
            x[0].cross_entropy_with(x[1], &CrossEntropy { ignore_index: Some(1), reduction: Reduction::Sum, ..plain })
        }),
        row(
            "cross_entropy_with: an axis of classes",
            Gradcheck::new([[2usize, 3, 2]]).indices(vec![index([2, 2], &[2, 0, 1, 1])]),
            move |x| x[0].cross_entropy_with(x[1], &CrossEntropy { reduction: Reduction::None, ..plain }),
        ),
        row("cross_entropy_with: of nothing", Gradcheck::new([[0usize, 3]]).indices(vec![index([0], &[])]), move |x| {
            x[0].cross_entropy_with(x[1], &CrossEntropy { reduction: Reduction::Sum, ..plain })
        }),
        row("cross_entropy_with: of one", Gradcheck::new([[1usize, 1]]).indices(vec![index([1], &[0])]), move |x| {
            x[0].cross_entropy_with(x[1], &plain)
        }),
        row("accuracy", Gradcheck::new([[4usize, 3]]).indices(vec![index([4], &[2, 0, 1, 2])]), |x| {
            x[0].sum() * x[0].accuracy(x[1]).cast(x[0].dtype())
        }),
        row("accuracy: of one", Gradcheck::new([[1usize, 1]]).indices(vec![index([1], &[0])]), |x| {
            x[0].sum() * x[0].accuracy(x[1]).cast(x[0].dtype())
        }),
    ];
    fn weighted<'t>(x: &[Tensor<'t>], reduction: Reduction, label_smoothing: f64) -> Tensor<'t> {
        // Weights are constants, so what the check moves must not reach them.
        let weights = x[0].tape().iota(4).cast(x[0].dtype()) * 0.5 + 0.25;
        let options = CrossEntropy {
            class_weights: Some(weights),
            label_smoothing,
            ignore_index: Some(-100),
            reduction,
            ..CrossEntropy::default()
        };
        x[0].cross_entropy_with(x[1], &options)
    }
    rows.extend([
        row("cross_entropy_with: weighted", matrix(signed(&[3], &[3, -100, 2])), move |x| {
            weighted(x, Reduction::Mean, 0.0)
        }),
        row("cross_entropy_with: weighted and smoothed", matrix(signed(&[3], &[3, 0, 2])), move |x| {
            weighted(x, Reduction::Sum, 0.3)
        }),
        row("nll", matrix(index([3], &[3, 0, 2])), |x| x[0].log_softmax(1).nll(x[1])),
        row("nll: of one", Gradcheck::new([[1usize, 1]]).indices(vec![index([1], &[0])]), |x| x[0].nll(x[1])),
        row("nll_with", matrix(signed(&[3], &[3, -100, 2])), move |x| x[0].nll_with(x[1], &ignoring)),
        row("nll_with: of one", Gradcheck::new([[1usize, 1]]).indices(vec![index([1], &[0])]), move |x| {
            x[0].nll_with(x[1], &plain)
        }),
        row("nll_with: of nothing", Gradcheck::new([[0usize, 3]]).indices(vec![index([0], &[])]), move |x| {
            x[0].nll_with(x[1], &CrossEntropy { reduction: Reduction::Sum, ..plain })
        }),
    ]);
    for (shape, reduction) in [
        (&[3usize, 2][..], Reduction::Mean),
        (&[3, 2], Reduction::Sum),
        (&[1], Reduction::None),
        (&[0], Reduction::Sum),
    ] {
        rows.push(row("l1", pair(shape), move |x| x[0].l1(x[1], reduction)));
        rows.push(row("huber", pair(shape), move |x| x[0].huber(x[1], 0.8, reduction)));
        rows.push(row("kl_divergence", pair(shape).positive(), move |x| x[0].kl_divergence(x[1], reduction)));
        rows.push(row("bce_with_logits_weighted", pair(shape), move |x| {
            x[0].bce_with_logits_weighted(x[1], x[0].tape().scalar(2.5, x[0].dtype()), reduction)
        }));
    }
    for shape in [&[3usize, 2][..], &[1], &[]] {
        rows.push(row("mse", pair(shape), |x| x[0].mse(x[1])));
        rows.push(row("bce_with_logits", pair(shape), |x| x[0].bce_with_logits(x[1], Reduction::Mean)));
    }
    for (shape, reduction) in [(&[3usize, 2][..], Reduction::Sum), (&[1], Reduction::None), (&[0], Reduction::Sum)] {
        rows.push(row("mse_with", pair(shape), move |x| x[0].mse_with(x[1], reduction)));
        rows.push(row("bce_with_logits", pair(shape), move |x| x[0].bce_with_logits(x[1], reduction)));
    }
    rows
}

pub(super) fn norms() -> Vec<Row> {
    const EPS: f64 = 1e-3;
    let with = |x: &[usize], affine: &[usize]| Gradcheck::new([Shape::from(x), affine.into(), affine.into()]);
    let mut rows = vec![
        row("layer_norm: plain", Gradcheck::new([[2usize, 5]]), |x| x[0].layer_norm(1, None, None, EPS)),
        row("rms_norm: plain", Gradcheck::new([[2usize, 5]]), |x| x[0].rms_norm(1, None, EPS)),
        row("group_norm: plain", Gradcheck::new([[2usize, 4, 3]]), |x| x[0].group_norm(2, None, None, EPS)),
        row("batch_norm: plain", Gradcheck::new([[3usize, 2]]), |x| x[0].batch_norm(None, None, EPS).y),
        row("group_norm: instances", with(&[2, 3, 3], &[3]), |x| x[0].group_norm(3, Some(x[1]), Some(x[2]), EPS)),
        row("group_norm: of one", with(&[1, 1, 1], &[1]), |x| x[0].group_norm(1, Some(x[1]), Some(x[2]), EPS)),
        row("group_norm: of nothing", with(&[0, 2, 3], &[2]), |x| x[0].group_norm(2, Some(x[1]), Some(x[2]), EPS)),
        row("batch_norm: without channels", with(&[3, 0, 2], &[0]), |x| x[0].batch_norm(Some(x[1]), Some(x[2]), EPS).y),
        row("batch_norm: statistics", Gradcheck::new([[3usize, 2]]), |x| {
            let normed = x[0].batch_norm(None, None, EPS);
            normed.y + (normed.mean * normed.var).cast(normed.y.dtype())
        }),
    ];
    for (x, affine, dims) in
        [(&[3usize, 5][..], &[5usize][..], 1), (&[2, 3, 2], &[3, 2], 2), (&[1], &[1], 1), (&[0, 3], &[3], 1)]
    {
        rows.push(row("layer_norm", with(x, affine), move |x| x[0].layer_norm(dims, Some(x[1]), Some(x[2]), EPS)));
        rows.push(row("rms_norm", with(x, affine), move |x| x[0].rms_norm(dims, Some(x[1]), EPS) + x[2]));
    }
    for (x, channels) in [(&[3usize, 2][..], 2), (&[2, 4, 3], 4), (&[2, 2, 1, 3], 2)] {
        rows.push(row("group_norm", with(x, &[channels]), |x| x[0].group_norm(2, Some(x[1]), Some(x[2]), EPS)));
        rows.push(row("batch_norm", with(x, &[channels]), |x| x[0].batch_norm(Some(x[1]), Some(x[2]), EPS).y));
    }
    for (x, channels) in [(&[3usize, 2][..], 2usize), (&[2, 3, 2], 3), (&[1, 1], 1), (&[0, 2], 2)] {
        let shapes: Vec<Shape> = [x, &[channels], &[channels], &[channels], &[channels]].map(Shape::from).into();
        rows.push(row("batch_norm_eval", Gradcheck::new(shapes), |x| {
            x[0].batch_norm_eval(x[1], x[2].square(), Some(x[3]), Some(x[4]), EPS)
        }));
    }
    rows
}

pub(super) fn pooling() -> Vec<Row> {
    let images = |shape: [usize; 4]| Gradcheck::new([shape]);
    let pool = Pool2d::square(2);
    let overlapping = Pool2d { kernel: [3, 2], stride: [2, 1], padding: [1, 1] };
    let mut rows = vec![];
    for (shape, pool) in [
        ([2, 2, 4, 4], pool),
        ([1, 1, 5, 3], pool),
        ([1, 2, 5, 4], overlapping),
        ([1, 1, 1, 1], Pool2d::square(1)),
        ([0, 2, 4, 4], pool),
        ([1, 1, 3, 3], Pool2d { kernel: [3, 3], stride: [1, 1], padding: [1, 1] }),
    ] {
        rows.push(row("max_pool2d", images(shape), move |x| x[0].max_pool2d(&pool)));
        rows.push(row("avg_pool2d", images(shape), move |x| x[0].avg_pool2d(&pool, true)));
        rows.push(row("avg_pool2d: of what is there", images(shape), move |x| x[0].avg_pool2d(&pool, false)));
    }
    for (shape, windows) in [
        ([2, 2, 4, 6], [2, 3]),
        ([1, 2, 5, 3], [3, 2]),
        ([1, 1, 2, 3], [3, 5]),
        ([1, 1, 1, 1], [1, 1]),
        ([0, 2, 3, 3], [2, 2]),
    ] {
        rows.push(row("adaptive_avg_pool2d", images(shape), move |x| x[0].adaptive_avg_pool2d(windows)));
        rows.push(row("adaptive_max_pool2d", images(shape), move |x| x[0].adaptive_max_pool2d(windows)));
    }
    for (shape, [kernel, stride, padding]) in
        [([2usize, 2, 6], [2, 2, 0]), ([1, 2, 5], [3, 1, 1]), ([1, 1, 1], [1, 1, 0]), ([0, 2, 4], [2, 2, 0])]
    {
        let signals = || Gradcheck::new([shape]);
        rows.push(row("max_pool1d", signals(), move |x| x[0].max_pool1d(kernel, stride, padding)));
        rows.push(row("avg_pool1d", signals(), move |x| x[0].avg_pool1d(kernel, stride, padding, false)));
    }
    for shape in [[2, 3, 2, 3], [1, 1, 1, 1], [0, 2, 2, 2]] {
        rows.push(row("global_avg_pool", images(shape), |x| x[0].global_avg_pool()));
    }
    rows
}

pub(super) fn resizing() -> Vec<Row> {
    let mut rows = vec![];
    for (shape, extents) in [
        ([2usize, 2, 3, 2], [6, 4]),
        ([1, 2, 4, 5], [3, 7]),
        ([1, 1, 3, 3], [3, 1]),
        ([1, 1, 1, 1], [1, 1]),
        ([1, 1, 1, 1], [2, 3]),
        ([0, 2, 2, 2], [4, 3]),
    ] {
        let images = || Gradcheck::new([shape]);
        rows.push(row("resize_nearest2d", images(), move |x| x[0].resize_nearest2d(extents)));
        rows.push(row("resize_bilinear2d", images(), move |x| x[0].resize_bilinear2d(extents, false)));
        rows.push(row("resize_bilinear2d: with corners", images(), move |x| x[0].resize_bilinear2d(extents, true)));
    }
    rows
}

pub(super) fn attention() -> Vec<Row> {
    let qkv = |q: [usize; 4], k: [usize; 4], v: [usize; 4]| Gradcheck::new([q, k, v].map(Shape::from));
    let square = || qkv([1, 2, 3, 2], [1, 2, 3, 2], [1, 2, 3, 2]);
    let causal = |row: Row| Row { weighs: true, ..row };
    let allowed = Array::new([1, 2, 3, 3], [1u32, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 0, 0, 0, 1].to_vec());
    vec![
        row("attention", square(), |x| x[0].attention(x[1], x[2], &Attention::default())),
        row("attention: of one", qkv([1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]), |x| {
            x[0].attention(x[1], x[2], &Attention::default())
        }),
        row("attention: of nothing", qkv([0, 1, 2, 2], [0, 1, 3, 2], [0, 1, 3, 2]), |x| {
            x[0].attention(x[1], x[2], &Attention::default())
        }),
        row("attention: to nothing", qkv([1, 1, 2, 2], [1, 1, 0, 2], [1, 1, 0, 3]), |x| {
            x[0].attention(x[1], x[2], &Attention::default())
        }),
        causal(row("attention: causal", square(), |x| {
            x[0].attention(x[1], x[2], &Attention { causal: true, ..Attention::default() })
        })),
        row("attention: across, scaled", qkv([2, 1, 2, 3], [2, 1, 5, 3], [2, 1, 5, 1]), |x| {
            x[0].attention(x[1], x[2], &Attention { scale: Some(0.7), ..Attention::default() })
        }),
        causal(row("attention: grouped heads", qkv([1, 4, 2, 2], [1, 2, 3, 2], [1, 2, 3, 2]), |x| {
            x[0].attention(x[1], x[2], &Attention { causal: true, ..Attention::default() })
        })),
        row("attention: masked", square().indices(vec![allowed]), |x| {
            let mask = Some(x[3].cast(DType::Bool));
            x[0].attention(x[1], x[2], &Attention { mask, ..Attention::default() })
        }),
        row("attention: with added scores", Gradcheck::new([[2usize, 3, 2], [2, 3, 2], [2, 3, 2], [1, 3, 3]]), |x| {
            x[0].attention(x[1], x[2], &Attention { mask: Some(x[3]), ..Attention::default() })
        }),
        row("attention_weights: of nothing", qkv([0, 1, 2, 2], [0, 1, 3, 2], [1, 1, 1, 1]), |x| {
            x[0].attention_weights(x[1], &Attention::default()) * x[2]
        }),
        row("attention_weights: of one", qkv([1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]), |x| {
            x[0].attention_weights(x[1], &Attention::default()) * x[2]
        }),
        row("attention_scores: of nothing", qkv([0, 1, 2, 2], [0, 1, 3, 2], [1, 1, 1, 1]), |x| {
            x[0].attention_scores(x[1], &Attention::default()).cast(x[2].dtype()) * x[2]
        }),
        row("attention_scores: of one", qkv([1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]), |x| {
            x[0].attention_scores(x[1], &Attention::default()).cast(x[2].dtype()) * x[2]
        }),
        row("attention_weights", square(), |x| {
            x[0].attention_weights(x[1], &Attention { causal: true, ..Attention::default() })
                * x[2].index(3, 0).unsqueeze(3)
        }),
        row("attention_scores", square(), |x| {
            x[0].attention_scores(x[1], &Attention::default()).cast(x[2].dtype()) * x[2].index(3, 0).unsqueeze(3)
        }),
    ]
}
