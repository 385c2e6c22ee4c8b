//! Losses.

use crate::{DType, Tensor, lints::Mark};

/// The reduction of the losses of single elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// The mean of the losses.
    #[default]
    Mean,
    /// The sum of the losses.
    Sum,
    /// No reduction: one loss per element.
    None,
}

/// The options of [`Tensor::cross_entropy_with`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'t> {
    /// The axis of the classes.
    pub class_axis: usize,
    /// The reduction of the single losses.
    pub reduction: Reduction,
    /// Targets of this value have no loss and no gradient, and do not count in the mean.
    pub ignore_index: Option<i64>,
    /// The share of each target that is spread evenly over all classes (Szegedy et al. 2016), in [0, 1].
    pub label_smoothing: f64,
    /// The weight of each class, `[classes]`, of the logits' type. A loss is multiplied by the weight of its target, and
    /// the mean is over the sum of these weights. It is a constant to gradients.
    pub class_weights: Option<Tensor<'t>>,
}

impl Default for CrossEntropy<'_> {
    /// The mean over all targets, with the classes in axis 1, no smoothing and equal weights.
    fn default() -> Self {
        Self {
            class_axis: 1,
            reduction: Reduction::Mean,
            ignore_index: None,
            label_smoothing: 0.0,
            class_weights: None,
        }
    }
}

impl<'t> Tensor<'t> {
    #[track_caller]
    fn paired(self, target: Tensor<'t>, what: &str) {
        let fits = self.shape() == target.shape() && self.dtype() == target.dtype();
        self.tape.require(fits, what, &[self, target], || "the shapes or types differ".into());
    }

    #[track_caller]
    fn reduced(self, reduction: Reduction) -> Self {
        match reduction {
            Reduction::Mean => self.mean(),
            Reduction::Sum => self.sum(),
            Reduction::None => self,
        }
    }

    /// The mean cross-entropy of logits `[rows, classes]` against class indices `[rows]` (u32), in nats.
    ///
    /// An index that is not a class is an error when the program runs.
    ///
    /// # Panics
    /// If the shapes or types do not fit.
    #[track_caller]
    pub fn cross_entropy(self, targets: Tensor<'t>) -> Self {
        let _call = self.tape.call("cross_entropy", &[self, targets]);
        let shape = self.shape();
        let fits = shape.rank() == 2 && *targets.shape() == shape[..1];
        self.tape.require(fits, "cross_entropy", &[self, targets], || {
            "needs logits [rows, classes] and targets [rows]".into()
        });
        self.cross_entropy_with(targets, &CrossEntropy::default())
    }

    /// The cross-entropy, in nats, of logits, one of whose axes is that of the classes, against class indices of the
    /// other axes (u32, or i32 for a negative `ignore_index`).
    ///
    /// An index that is neither a class nor ignored is an error when the program runs. The mean over no target at all
    /// is NaN, as 0 / 0 is; its gradient is 0. The logits are probed as `logits`: see [`crate::Tape::with_probe`].
    ///
    /// # Panics
    /// If the shapes or types do not fit, or the smoothing is outside [0, 1].
    #[track_caller]
    pub fn cross_entropy_with(self, targets: Tensor<'t>, options: &CrossEntropy<'t>) -> Self {
        let _call = self.tape.call("cross_entropy", &[self, targets]);
        self.check_classes("cross_entropy", targets, options);
        self.tape.mark(self, Mark::Logits);
        let log = self.probe("logits").wide_log_softmax(options.class_axis);
        log.likelihood(targets, options).cast(self.dtype())
    }

    /// The negative log-likelihood of log-probabilities, as [`Tensor::log_softmax`] gives them, against class indices:
    /// [`Tensor::cross_entropy_with`] of these without its soft-max.
    ///
    /// # Panics
    /// As [`Tensor::cross_entropy_with`].
    #[track_caller]
    pub fn nll_with(self, targets: Tensor<'t>, options: &CrossEntropy<'t>) -> Self {
        let _call = self.tape.call("nll", &[self, targets]);
        self.check_classes("nll", targets, options);
        self.cast(self.wide()).likelihood(targets, options).cast(self.dtype())
    }

    /// The mean negative log-likelihood of log-probabilities `[rows, classes]` against class indices `[rows]` (u32).
    ///
    /// # Panics
    /// If the shapes or types do not fit.
    #[track_caller]
    pub fn nll(self, targets: Tensor<'t>) -> Self {
        let _call = self.tape.call("nll", &[self, targets]);
        let shape = self.shape();
        let fits = shape.rank() == 2 && *targets.shape() == shape[..1];
        self.tape.require(fits, "nll", &[self, targets], || {
            "needs log-probabilities [rows, classes] and targets [rows]".into()
        });
        self.nll_with(targets, &CrossEntropy::default())
    }

    #[track_caller]
    fn check_classes(self, what: &str, targets: Tensor<'t>, options: &CrossEntropy<'t>) {
        let CrossEntropy { class_axis: axis, label_smoothing, class_weights, .. } = *options;
        let shape = self.shape();
        let fits = axis < shape.rank()
            && targets.shape() == shape.without(&[axis])
            && matches!(targets.dtype(), DType::U32 | DType::I32)
            && self.dtype().is_float();
        self.tape.require(fits, what, &[self, targets], || {
            format!("needs floats with an axis {axis} of classes, and targets (u32 or i32) of their shape without it")
        });
        self.tape.require((0.0..=1.0).contains(&label_smoothing), what, &[self, targets], || {
            format!("a label smoothing of {label_smoothing}")
        });
        if let Some(weights) = class_weights {
            let fits = *weights.shape() == [shape[axis]] && weights.dtype() == self.dtype();
            self.tape.require(fits, what, &[self, weights], || {
                format!("needs {} class weights of the logits' type", shape[axis])
            });
        }
    }

    /// The negative log-likelihood of log-probabilities in the type of sums.
    #[track_caller]
    fn likelihood(self, targets: Tensor<'t>, options: &CrossEntropy<'t>) -> Self {
        let (log, shape, of) = (self, self.shape(), targets.dtype());
        let CrossEntropy { class_axis: axis, reduction, ignore_index, label_smoothing, class_weights } = *options;
        // An ignored index that the targets' type cannot hold equals no target.
        let holds = |index: &i64| {
            if of == DType::U32 { u32::try_from(*index).is_ok() } else { i32::try_from(*index).is_ok() }
        };
        let ignored = ignore_index.filter(holds).map(|index| targets.equals(index as f64));
        let known = ignored.map_or(targets, |ignored| ignored.select(targets.zeros_like(), targets));
        let class = match of {
            // A negative number is not a class, but the conversion would make it class 0.
            DType::I32 => {
                let none = self.tape.scalar(f64::from(u32::MAX), DType::U32);
                known.less(0.0).select(none.broadcast_to(known.shape()), known.cast(DType::U32))
            }
            _ => known,
        };
        let picked_from = |x: Tensor<'t>| x.gather(class.reshape(shape.with(axis, 1)), axis).reshape(targets.shape());
        let weights = class_weights.map(|weights| {
            let dims: Vec<usize> = (0..shape.rank()).map(|d| if d == axis { shape[axis] } else { 1 }).collect();
            weights.detach().cast(log.dtype()).reshape(dims).broadcast_to(&shape)
        });
        let log = weights.map_or(log, |weights| log * weights);
        let mut picked = picked_from(log);
        if label_smoothing > 0.0 {
            picked = picked * (1.0 - label_smoothing) + log.mean_axes(&[axis]) * label_smoothing;
        }
        let counted = |x: Tensor<'t>| ignored.map_or(x, |ignored| ignored.select(x.zeros_like(), x));
        let reduced = match (reduction, weights) {
            (Reduction::Mean, Some(weights)) => counted(picked).sum() / counted(picked_from(weights)).sum(),
            (Reduction::Mean, None) if ignored.is_some() => {
                let count = counted(picked.ones_like()).sum();
                self.tape.mark(count, Mark::TokenCount);
                counted(picked).sum() / count
            }
            (other, _) => counted(picked).reduced(other),
        };
        -reduced
    }

    /// The cross-entropy of logits against probabilities of the same shape, each element an independent decision:
    /// `-y log sigmoid(x) - (1 - y) log(1 - sigmoid(x))`. It is computed as `log(1 + e^-|x|) + |x| d`, where d is
    /// `1 - y` for positive x and y for others, so that nothing overflows or cancels.
    ///
    /// # Panics
    /// If the shapes or types differ.
    #[track_caller]
    pub fn bce_with_logits(self, targets: Tensor<'t>, reduction: Reduction) -> Self {
        let _call = self.tape.call("bce_with_logits", &[self, targets]);
        self.paired(targets, "bce_with_logits");
        let (x, y) = (self.cast(self.wide()), targets.cast(self.wide()));
        // A selection, not a sum of functions with kinks: at 0 each branch has the derivatives of the whole.
        let positive = x.greater(0.0);
        let (size, denied) = (positive.select(x, -x), positive.select(y.ones_like() - y, y));
        ((-size).exp().log1p() + denied * size).reduced(reduction).cast(self.dtype())
    }

    /// [`Tensor::bce_with_logits`] with the loss of the positive part, `-y log sigmoid(x)`, multiplied by a weight that
    /// broadcasts with the logits: more than 1 where positives are rare. It is a constant to gradients.
    ///
    /// # Panics
    /// If the shapes or types do not fit.
    #[track_caller]
    pub fn bce_with_logits_weighted(
        self,
        targets: Tensor<'t>,
        positive_weight: Tensor<'t>,
        reduction: Reduction,
    ) -> Self {
        let _call = self.tape.call("bce_with_logits_weighted", &[self, targets, positive_weight]);
        self.paired(targets, "bce_with_logits_weighted");
        let fits = positive_weight.shape().broadcast(&self.shape()) == Some(self.shape())
            && positive_weight.dtype() == self.dtype();
        self.tape.require(fits, "bce_with_logits_weighted", &[self, targets, positive_weight], || {
            "needs a weight that broadcasts to the logits, of their type".into()
        });
        let [x, y, weight] = [self, targets, positive_weight.detach()].map(|x| x.cast(self.wide()));
        ((1.0 - y) * x.softplus() + y * weight * (-x).softplus()).reduced(reduction).cast(self.dtype())
    }

    /// The mean squared error.
    ///
    /// # Panics
    /// As [`Tensor::mse_with`].
    #[track_caller]
    pub fn mse(self, target: Tensor<'t>) -> Self {
        let _call = self.tape.call("mse", &[self, target]);
        self.mse_with(target, Reduction::Mean)
    }

    /// The squared errors. For f16, they are computed in f32.
    ///
    /// # Panics
    /// If the types or the shapes differ: to broadcast `[n, 1]` with `[n]`, say, would be a mistake.
    #[track_caller]
    pub fn mse_with(self, target: Tensor<'t>, reduction: Reduction) -> Self {
        let _call = self.tape.call("mse", &[self, target]);
        self.paired(target, "mse");
        (self.cast(self.wide()) - target.cast(self.wide())).square().reduced(reduction).cast(self.dtype())
    }

    /// The absolute errors. For f16, they are computed in f32. The gradient of an element without an error is 0.
    ///
    /// # Panics
    /// If the types or the shapes differ.
    #[track_caller]
    pub fn l1(self, target: Tensor<'t>, reduction: Reduction) -> Self {
        let _call = self.tape.call("l1", &[self, target]);
        self.paired(target, "l1");
        (self.cast(self.wide()) - target.cast(self.wide())).abs().reduced(reduction).cast(self.dtype())
    }

    /// Huber's loss (1964) of errors e: `e^2 / 2` up to `delta`, and `delta (|e| - delta / 2)` beyond. For f16, it is
    /// computed in f32.
    ///
    /// # Panics
    /// If the types or the shapes differ, or `delta` is not positive and finite.
    #[track_caller]
    pub fn huber(self, target: Tensor<'t>, delta: f64, reduction: Reduction) -> Self {
        let _call = self.tape.call("huber", &[self, target]);
        self.paired(target, "huber");
        let fits = delta > 0.0 && delta.is_finite();
        self.tape.require(fits, "huber", &[self, target], || format!("a delta of {delta}"));
        let error = self.cast(self.wide()) - target.cast(self.wide());
        // The square is taken of an error that is replaced beyond delta: it could overflow there.
        let beyond = error.abs().greater(delta);
        let square = beyond.select(error.zeros_like(), error).square() * 0.5;
        let line = (error.abs() - delta / 2.0) * delta;
        beyond.select(line, square).reduced(reduction).cast(self.dtype())
    }

    /// The Kullback-Leibler divergence of log-probabilities q (this tensor) from probabilities p of the same shape,
    /// element by element: `p (log p - q)`, 0 where p is 0. For f16, it is computed in f32. Its mean over samples is
    /// the sum divided by their number; [`Reduction::Mean`] divides by the number of elements.
    ///
    /// # Panics
    /// If the types or the shapes differ.
    #[track_caller]
    pub fn kl_divergence(self, target: Tensor<'t>, reduction: Reduction) -> Self {
        let _call = self.tape.call("kl_divergence", &[self, target]);
        self.paired(target, "kl_divergence");
        let (q, p) = (self.cast(self.wide()), target.cast(self.wide()));
        // The logarithm is taken of a number that replaces 0, so that no derivative meets 0 * inf.
        let none = p.equals(0.0);
        let log = none.select(p.ones_like(), p).log();
        none.select(p.zeros_like(), p * (log - q)).reduced(reduction).cast(self.dtype())
    }

    /// The share of rows of `[rows, classes]` whose largest logit is the target's (f32 scalar), for targets `[rows]`
    /// (u32).
    ///
    /// # Panics
    /// If the shapes or types do not fit.
    #[track_caller]
    pub fn accuracy(self, targets: Tensor<'t>) -> Self {
        let _call = self.tape.call("accuracy", &[self, targets]);
        let shape = self.shape();
        let fits = shape.rank() == 2 && *targets.shape() == shape[..1];
        self.tape
            .require(fits, "accuracy", &[self, targets], || "needs logits [rows, classes] and targets [rows]".into());
        self.argmax(1).equals(targets).cast(DType::F32).mean()
    }
}
