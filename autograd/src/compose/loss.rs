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
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CrossEntropy {
    /// The axis of the classes.
    pub class_axis: usize,
    /// The reduction of the single losses.
    pub reduction: Reduction,
    /// Targets of this value have no loss and no gradient, and do not count in the mean.
    pub ignore_index: Option<i64>,
    /// The share of each target that is spread evenly over all classes (Szegedy et al. 2016), in [0, 1].
    pub label_smoothing: f64,
}

impl Default for CrossEntropy {
    /// The mean over all targets, with the classes in axis 1 and no smoothing.
    fn default() -> Self {
        Self { class_axis: 1, reduction: Reduction::Mean, ignore_index: None, label_smoothing: 0.0 }
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
    pub fn cross_entropy_with(self, targets: Tensor<'t>, options: &CrossEntropy) -> Self {
        let _call = self.tape.call("cross_entropy", &[self, targets]);
        let (shape, of) = (self.shape(), targets.dtype());
        let CrossEntropy { class_axis: axis, reduction, ignore_index, label_smoothing } = *options;
        let fits = axis < shape.rank()
            && targets.shape() == shape.without(&[axis])
            && matches!(of, DType::U32 | DType::I32)
            && self.dtype().is_float();
        self.tape.require(fits, "cross_entropy", &[self, targets], || {
            format!("needs logits (floats), and targets (u32 or i32) of their shape without axis {axis}")
        });
        self.tape.require((0.0..=1.0).contains(&label_smoothing), "cross_entropy", &[self, targets], || {
            format!("a label smoothing of {label_smoothing}")
        });
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
        self.tape.mark(self, Mark::Logits);
        let log = self.probe("logits").wide_log_softmax(axis);
        let mut picked = log.gather(class.reshape(shape.with(axis, 1)), axis).reshape(targets.shape());
        if label_smoothing > 0.0 {
            picked = picked * (1.0 - label_smoothing) + log.mean_axes(&[axis]) * label_smoothing;
        }
        let Some(ignored) = ignored else { return (-picked.reduced(reduction)).cast(self.dtype()) };
        let picked = ignored.select(picked.zeros_like(), picked);
        let reduced = match reduction {
            Reduction::Mean => {
                let count = (!ignored).cast(self.wide()).sum();
                self.tape.mark(count, Mark::TokenCount);
                picked.sum() / count
            }
            other => picked.reduced(other),
        };
        (-reduced).cast(self.dtype())
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
