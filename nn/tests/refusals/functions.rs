//! Every function over tensors, given what it cannot take.

use super::refused_as;
use wgrad::{
    Attention, Cell, Conv2d, CrossEntropy, DType, Pool2d, Recurrence, Reduction, Rng, Store, Tape, Tensor, op::Segments,
};

/// Tensors to misuse.
struct Given<'t> {
    t: &'t Tape,
    rng: Rng,
    /// f32[2, 3]
    x: Tensor<'t>,
    /// f32[4]
    y: Tensor<'t>,
    /// f64[2, 3]
    wide: Tensor<'t>,
    /// u32[2, 3]
    index: Tensor<'t>,
    /// bool[2, 3]
    mask: Tensor<'t>,
    /// f32[2, 4, 5, 5]
    images: Tensor<'t>,
    /// f32[]
    scalar: Tensor<'t>,
}

type Misuse = for<'t> fn(&Given<'t>);

/// A name, and a call that it must refuse.
const FUNCTIONS: &[(&str, Misuse)] = &[
    // Primitives.
    ("recip", |g| _ = g.index.recip()),
    ("sqrt", |g| _ = g.index.sqrt()),
    ("exp", |g| _ = g.index.exp()),
    ("expm1", |g| _ = g.index.expm1()),
    ("log", |g| _ = g.index.log()),
    ("log1p", |g| _ = g.index.log1p()),
    ("sin", |g| _ = g.index.sin()),
    ("cos", |g| _ = g.index.cos()),
    ("tanh", |g| _ = g.mask.tanh()),
    ("erf", |g| _ = g.index.erf()),
    ("add", |g| _ = g.x + g.y),
    ("add", |g| _ = g.index + 0.5),
    ("add", |g| _ = 0.5 + g.index),
    ("sub", |g| _ = g.x - g.wide),
    ("sub", |g| _ = -1.0 - g.index),
    ("mul", |g| _ = g.x * g.y),
    ("div", |g| _ = g.mask / g.mask.detach()),
    ("pow", |g| _ = g.x.pow(g.y)),
    ("maximum", |g| _ = g.x.maximum(g.y)),
    ("maximum", |g| _ = g.x.maximum(g.wide)),
    ("less", |g| _ = g.x.less(g.index)),
    ("equals", |g| _ = g.x.equals(g.y)),
    ("equals", |g| _ = g.index.equals(-1.0)),
    ("not", |g| _ = !g.x),
    ("neg", |g| _ = -g.mask),
    ("select", |g| _ = g.mask.select(g.x, g.y)),
    ("select", |g| _ = g.x.select(g.x, g.x)),
    ("sum_axes", |g| _ = g.x.sum_axes(&[2])),
    ("max_axes", |g| _ = g.x.max_axes(&[1, 1])),
    ("norm_axes", |g| _ = g.index.norm_axes(&[0])),
    ("argmax", |g| _ = g.x.argmax(2)),
    ("cumsum", |g| _ = g.x.cumsum(2)),
    ("reshape", |g| _ = g.x.reshape([7])),
    ("permute", |g| _ = g.x.permute(&[0, 0])),
    ("transpose", |g| _ = g.y.transpose()),
    ("broadcast_to", |g| _ = g.x.broadcast_to([3, 3])),
    ("slice", |g| _ = g.x.slice(0, 1, 2)),
    ("index", |g| _ = g.x.index(1, 3)),
    ("index", |g| _ = g.x.index(2, 0)),
    ("concat", |g| _ = Tensor::concat(&[g.x, g.y], 0)),
    ("concat", |_| _ = Tensor::concat(&[], 0)),
    ("stack", |g| _ = Tensor::stack(&[g.x, g.y])),
    ("stack", |_| _ = Tensor::stack(&[])),
    ("pad", |g| _ = g.x.pad(2, 1, 1)),
    ("gather", |g| _ = g.x.gather(g.x, 0)),
    ("scatter_add", |g| _ = g.x.scatter_add(g.index.slice(1, 0, 2), 0, 4)),
    ("segment_sum", |g| _ = g.x.segment_sum(&Segments { total: 6, ranges: [(0, 6)].into() }.into())),
    ("matmul", |g| _ = g.x.matmul(g.x)),
    ("matmul", |g| _ = g.x.matmul(g.y)),
    ("matmul", |g| _ = g.images.matmul(g.x)),
    ("matmul_t", |g| _ = g.x.matmul_t(g.wide)),
    ("matmul_t", |g| _ = g.x.matmul_t(g.images)),
    ("full", |g| _ = g.t.full([2], 0.5, DType::U32)),
    ("table", |g| _ = g.t.table(&[0.5], DType::U32)),
    ("random", |g| _ = g.t.random(g.index, g.scalar, 0, [2])),
    ("grad", |g| _ = g.x.grad_wrt(&[g.x])),
    ("vjp", |g| _ = g.x.vjp(g.y, &[g.x])),
    ("on_grad", |g| _ = g.index.on_grad(|g| g)),
    ("retain_grad", |g| _ = g.scalar.detach().retain_grad("g")),
    // Comparisons and logic.
    ("less_equal", |g| _ = g.x.less_equal(g.y)),
    ("less_equal", |g| _ = g.index.less_equal(0.5)),
    ("greater", |g| _ = g.x.greater(g.wide)),
    ("greater_equal", |g| _ = g.x.greater_equal(g.y)),
    ("not_equals", |g| _ = g.x.not_equals(g.y)),
    ("and", |g| _ = g.x.and(g.mask)),
    ("or", |g| _ = g.x.or(g.mask)),
    // Powers and bounds.
    ("square", |g| _ = g.mask.square()),
    ("rsqrt", |g| _ = g.index.rsqrt()),
    ("guarded_sqrt", |g| _ = g.index.guarded_sqrt()),
    ("abs", |g| _ = g.mask.abs()),
    ("minimum", |g| _ = g.x.minimum(g.y)),
    ("clamp", |g| _ = g.x.clamp(1.0, -1.0)),
    ("clamp", |g| _ = g.index.clamp(0.5, 1.5)),
    // Activations.
    ("sigmoid", |g| _ = g.index.sigmoid()),
    ("softplus", |g| _ = g.index.softplus()),
    ("log_sigmoid", |g| _ = g.index.log_sigmoid()),
    ("relu", |g| _ = g.mask.relu()),
    ("leaky_relu", |g| _ = g.index.leaky_relu(0.1)),
    ("elu", |g| _ = g.index.elu(0.5)),
    ("gelu", |g| _ = g.index.gelu()),
    ("gelu_tanh", |g| _ = g.index.gelu_tanh()),
    ("silu", |g| _ = g.index.silu()),
    ("dropout", |g| _ = g.x.dropout(1.0, g.rng)),
    ("dropout", |g| _ = g.mask.dropout(0.5, g.rng)),
    ("uniform", |g| _ = g.rng.uniform(g.t, [2], DType::U32)),
    ("normal", |g| _ = g.rng.normal(g.t, [2], DType::U32)),
    ("bernoulli", |g| _ = g.rng.bernoulli(g.t, 1.5, [2])),
    // Reductions.
    ("mean", |g| _ = g.index.mean()),
    ("mean_axes", |g| _ = g.x.mean_axes(&[2])),
    ("var_axes", |g| _ = g.x.var_axes(&[2])),
    ("var_axes", |g| _ = g.index.var_axes(&[0])),
    ("var_axes_with", |g| _ = g.x.var_axes_with(&[2], 1.0)),
    ("min_axes", |g| _ = g.x.min_axes(&[2])),
    ("max_with_index", |g| _ = g.x.max_with_index(2)),
    ("argmin", |g| _ = g.x.argmin(2)),
    ("all_finite", |g| _ = g.index.all_finite()),
    ("dot", |g| _ = g.x.dot(g.y)),
    ("norm", |g| _ = g.index.norm()),
    ("logsumexp", |g| _ = g.x.logsumexp(2)),
    ("logsumexp_axes", |g| _ = g.x.logsumexp_axes(&[0, 2])),
    ("log_softmax", |g| _ = g.x.log_softmax(2)),
    ("softmax", |g| _ = g.x.softmax(2)),
    ("softmax", |g| _ = g.index.softmax(0)),
    // Movement.
    ("swap_axes", |g| _ = g.x.swap_axes(0, 2)),
    ("unsqueeze", |g| _ = g.x.unsqueeze(3)),
    ("squeeze", |g| _ = g.x.squeeze(0)),
    ("flatten_from", |g| _ = g.x.flatten_from(2)),
    ("flip", |g| _ = g.x.flip(&[2])),
    ("pad_with", |g| _ = g.x.pad_with(2, 1, 1, 1.0)),
    ("pad_with", |g| _ = g.index.pad_with(0, 1, 1, 0.5)),
    ("roll", |g| _ = g.x.roll(2, 1)),
    ("tril", |g| _ = g.y.tril(0)),
    ("triu", |g| _ = g.y.triu(0)),
    // Sorting and products.
    ("argsort", |g| _ = g.x.argsort(2, false)),
    ("sort", |g| _ = g.x.sort(2, false)),
    ("topk", |g| _ = g.x.topk(1, 2)),
    ("topk", |g| _ = g.x.topk(4, 1)),
    ("prod_axes", |g| _ = g.x.prod_axes(&[2])),
    ("prod_axes", |g| _ = g.mask.prod_axes(&[0])),
    ("cumprod", |g| _ = g.x.cumprod(2)),
    ("cumprod", |g| _ = g.mask.cumprod(0)),
    ("std_axes", |g| _ = g.x.std_axes(&[2])),
    ("std_axes", |g| _ = g.index.std_axes(&[0])),
    ("einsum", |_| _ = Tensor::einsum("ij->ij", &[])),
    ("einsum", |g| _ = Tensor::einsum("i1->i", &[g.x])),
    ("einsum", |g| _ = Tensor::einsum("ij,j->i", &[g.x])),
    ("einsum", |g| _ = Tensor::einsum("ijk->i", &[g.x])),
    ("einsum", |g| _ = Tensor::einsum("ij,j->i", &[g.x, g.y])),
    ("einsum", |g| _ = Tensor::einsum("ij->ik", &[g.x])),
    ("einsum", |g| _ = Tensor::einsum("ij->ii", &[g.x])),
    ("einsum", |g| _ = Tensor::einsum("ij,ij->i", &[g.x, g.wide])),
    ("floor", |g| _ = g.index.floor()),
    ("round", |g| _ = g.index.round()),
    ("ceil", |g| _ = g.index.ceil()),
    ("sign", |g| _ = g.mask.sign()),
    ("integers", |g| _ = g.rng.integers(g.t, 0, [3])),
    // Indexing.
    ("rows", |g| _ = g.x.rows(g.y)),
    ("rows", |g| _ = g.scalar.rows(g.index)),
    ("embedding", |g| _ = g.x.embedding(g.y, None)),
    ("embedding", |g| _ = g.x.embedding(g.x, Some(0))),
    ("index_select", |g| _ = g.x.index_select(2, g.y)),
    ("index_select", |g| _ = g.x.index_select(1, g.y)),
    ("one_hot", |g| _ = g.x.one_hot(3, DType::F32)),
    // Losses.
    ("cross_entropy", |g| _ = g.x.cross_entropy(g.index)),
    ("cross_entropy", |g| _ = g.x.cross_entropy(g.y.slice(0, 0, 2))),
    ("cross_entropy", |g| _ = g.index.cross_entropy(g.index.index(1, 0))),
    ("cross_entropy", |g| _ = g.x.cross_entropy_with(g.y, &CrossEntropy { class_axis: 0, ..CrossEntropy::default() })),
    ("bce_with_logits", |g| _ = g.x.bce_with_logits(g.y, Reduction::Mean)),
    ("bce_with_logits", |g| _ = g.x.bce_with_logits(g.index, Reduction::Mean)),
    ("cross_entropy", |g| {
        let (classes, class_weights) = (g.index.index(1, 0), Some(g.y));
        let _ = g.x.cross_entropy_with(classes, &CrossEntropy { class_weights, ..CrossEntropy::default() });
    }),
    ("nll", |g| _ = g.x.nll(g.index)),
    ("nll", |g| _ = g.x.nll(g.y.slice(0, 0, 2))),
    ("bce_with_logits_weighted", |g| _ = g.x.bce_with_logits_weighted(g.y, g.x, Reduction::Mean)),
    ("bce_with_logits_weighted", |g| _ = g.x.bce_with_logits_weighted(g.x, g.y, Reduction::Mean)),
    ("bce_with_logits_weighted", |g| _ = g.x.bce_with_logits_weighted(g.x, g.wide, Reduction::Mean)),
    ("l1", |g| _ = g.x.l1(g.y, Reduction::Mean)),
    ("huber", |g| _ = g.x.huber(g.wide, 1.0, Reduction::Mean)),
    ("huber", |g| _ = g.x.huber(g.x, 0.0, Reduction::Mean)),
    ("mse", |g| _ = g.x.mse(g.y)),
    ("mse", |g| _ = g.x.mse(g.wide)),
    ("mse", |g| _ = g.index.mse_with(g.index, Reduction::Mean)),
    ("accuracy", |g| _ = g.x.accuracy(g.index)),
    ("accuracy", |g| _ = g.x.accuracy(g.y.slice(0, 0, 2))),
    // Norms.
    ("layer_norm", |g| _ = g.x.layer_norm(3, None, None, 1e-5)),
    ("layer_norm", |g| _ = g.x.layer_norm(1, Some(g.y), None, 1e-5)),
    ("layer_norm", |g| _ = g.x.layer_norm(2, Some(g.wide), None, 1e-5)),
    ("layer_norm", |g| _ = g.x.layer_norm(2, None, Some(g.wide), 1e-5)),
    ("layer_norm", |g| _ = g.index.layer_norm(1, None, None, 1e-5)),
    ("rms_norm", |g| _ = g.x.rms_norm(1, Some(g.y), 1e-5)),
    ("rms_norm", |g| _ = g.index.rms_norm(1, None, 1e-5)),
    ("group_norm", |g| _ = g.images.group_norm(3, None, None, 1e-5)),
    ("group_norm", |g| _ = g.images.group_norm(2, Some(g.x), None, 1e-5)),
    ("batch_norm", |g| _ = g.y.batch_norm(None, None, 1e-5)),
    ("batch_norm", |g| _ = g.images.batch_norm(Some(g.x), None, 1e-5)),
    ("batch_norm_eval", |g| _ = g.images.batch_norm_eval(g.x, g.y, None, None, 1e-5)),
    ("running", |g| _ = g.images.batch_norm(None, None, 1e-5).running(g.x, g.y, 0.1)),
    // Pools, convolutions, attention, sequences.
    ("max_pool2d", |g| _ = g.x.max_pool2d(&Pool2d::square(2))),
    ("max_pool2d", |g| _ = g.images.max_pool2d(&Pool2d::square(6))),
    ("avg_pool2d", |g| _ = g.x.avg_pool2d(&Pool2d::square(2), true)),
    ("max_pool1d", |g| _ = g.x.max_pool1d(2, 1, 0)),
    ("max_pool1d", |g| _ = g.images.index(0, 0).max_pool1d(6, 1, 0)),
    ("avg_pool1d", |g| _ = g.images.avg_pool1d(2, 1, 0, true)),
    ("adaptive_avg_pool2d", |g| _ = g.x.adaptive_avg_pool2d([1, 1])),
    ("adaptive_avg_pool2d", |g| _ = g.images.cast(DType::U32).adaptive_avg_pool2d([1, 1])),
    ("adaptive_max_pool2d", |g| _ = g.images.adaptive_max_pool2d([2, 0])),
    ("resize_nearest2d", |g| _ = g.x.resize_nearest2d([4, 4])),
    ("resize_bilinear2d", |g| _ = g.images.resize_bilinear2d([0, 4], false)),
    ("resize_bilinear2d", |g| _ = g.images.cast(DType::U32).resize_bilinear2d([4, 4], true)),
    ("conv_transpose2d", |g| _ = g.images.conv_transpose2d(g.x, Conv2d::default(), [0, 0])),
    ("conv_transpose2d", |g| _ = g.images.conv_transpose2d(g.images, Conv2d::default(), [0, 0])),
    ("conv_transpose2d", |g| _ = g.images.conv_transpose2d(g.images.swap_axes(0, 1), Conv2d::default(), [1, 0])),
    ("conv_transpose1d", |g| _ = g.images.conv_transpose1d(g.images, 1, 0, 0, 1, 1)),
    ("conv_transpose1d", |g| _ = g.images.index(0, 0).conv_transpose1d(g.images.index(0, 0), 1, 3, 0, 1, 1)),
    ("global_avg_pool", |g| _ = g.y.global_avg_pool()),
    ("conv2d", |g| _ = g.images.conv2d(g.images.slice(1, 0, 3), Conv2d::default())),
    ("conv2d", |g| _ = g.images.conv2d(g.x, Conv2d::default())),
    ("conv1d", |g| _ = g.x.conv1d(g.x, 1, 0, 1, 1)),
    ("conv1d", |g| _ = g.images.index(0, 0).conv1d(g.images.index(0, 0).slice(1, 0, 3), 0, 0, 1, 1)),
    ("attention", |g| _ = g.x.attention(g.x, g.x, &Attention::default())),
    ("attention", |g| {
        let options = Attention { mask: Some(g.x), ..Attention::default() };
        let _ = g.images.attention(g.images, g.images, &options);
    }),
    ("attention", |g| {
        let options = Attention { dropout: Some((1.5, g.rng)), ..Attention::default() };
        let _ = g.images.attention(g.images, g.images, &options);
    }),
    ("attention_scores", |g| _ = g.x.attention_scores(g.x, &Attention::default())),
    ("attention_weights", |g| _ = g.images.attention_weights(g.x, &Attention::default())),
    ("sequence", |g| {
        let sequence = Recurrence { cell: Cell::Tanh, z: g.x, w_hh: g.x, h0: g.x, c0: None, b_hh: None };
        let _ = sequence.run();
    }),
    ("sequence", |g| {
        let sequence = Recurrence { cell: Cell::Tanh, z: g.x, w_hh: g.x, h0: g.x, c0: None, b_hh: None };
        let _ = sequence.unrolled();
    }),
];

#[test]
fn a_misused_function_is_refused_in_its_name_at_the_callers_line() {
    let mut store = Store::new();
    let rng = Rng::new(&mut store, "rng", 1);
    let mut faults = vec![];
    for (name, misuse) in FUNCTIONS {
        let t = super::tape(store.layout());
        let input = |name, shape: &[usize], dtype| t.input(name, shape, dtype);
        let x = input("x", &[2, 3], DType::F32);
        let given = Given {
            t: &t,
            rng,
            x,
            y: input("y", &[4], DType::F32),
            wide: input("wide", &[2, 3], DType::F64),
            index: input("index", &[2, 3], DType::U32),
            mask: x.less(0.0),
            images: input("images", &[2, 4, 5, 5], DType::F32),
            scalar: t.scalar(0.0, DType::U32),
        };
        faults.extend(super::fault(file!(), name, || misuse(&given)));
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// The tensors are named as the user gave them, and the part that refused them is told too.
#[test]
fn a_message_shows_what_the_user_gave() {
    let t = Tape::default();
    let (x, y) = (t.input("x", [5, 4], DType::F32), t.input("y", [5], DType::F32));
    let message = super::refusal(|| x.cross_entropy(y)).message;
    assert!(message.starts_with("cross_entropy of f32[5, 4] and f32[5]: "), "{message}");
    assert!(message.contains("targets (u32 or i32)"), "{message}");
    let message = super::refusal(|| x.index_select(0, y)).message;
    assert!(message.starts_with("index_select of f32[5, 4] and f32[5]: gather of "), "{message}");
}

/// What was refused leaves nothing behind: the next refusal is at its own line, in its own name.
#[test]
fn a_refusal_ends_with_its_function() {
    let t = Tape::default();
    let (x, y) = (t.input("x", [2, 3], DType::F32), t.input("y", [4], DType::F32));
    refused_as(file!(), "softmax", || _ = t.scoped("layer", || x.softmax(7)));
    refused_as(file!(), "add", || _ = x + y);
    let sum = x.sum();
    assert_eq!((t.scope_path().as_str(), sum.rank()), ("", 0));
}

/// A user's own function is named as those of the library are.
#[test]
fn functions_of_users_have_names_too() {
    #[track_caller]
    fn huber<'t>(x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
        let _call = x.tape().call("huber", &[x, y]);
        let d = (x - y).abs();
        d.less(1.0).select(d * d * 0.5, d - 0.5).mean()
    }
    let t = Tape::default();
    let (x, y) = (t.input("x", [3], DType::F32), t.input("y", [4], DType::F32));
    refused_as(file!(), "huber", || _ = huber(x, y));
    assert_eq!(huber(x, x).rank(), 0);
}
