//! Normalisation by mean and variance, or by the root of the mean square.

use crate::{Tensor, call::Call, lints::Mark};

/// What [`Tensor::batch_norm`] gives.
#[derive(Clone, Copy, Debug)]
pub struct BatchNormed<'t> {
    /// The normalised tensor.
    pub y: Tensor<'t>,
    /// The mean of each channel, `[channels]`; of halves, in f32.
    pub mean: Tensor<'t>,
    /// The variance of each channel (divided by n), `[channels]`; of halves, in f32.
    pub var: Tensor<'t>,
    /// How many elements a channel has.
    count: f64,
}

impl<'t> BatchNormed<'t> {
    /// The running mean and variance after this batch: `(1 - momentum) old + momentum new`, with the unbiased variance
    /// of the batch, in the type of the old ones. They are constants to gradients.
    ///
    /// They do not always share the fate of a step: an infinite variance makes `y` 0, and loss and gradients finite. Keep
    /// the step from being taken, and them from being assigned, unless they are finite: see [`crate::Grads::skip_unless`].
    #[track_caller]
    pub fn running(&self, mean: Tensor<'t>, var: Tensor<'t>, momentum: f64) -> (Tensor<'t>, Tensor<'t>) {
        let tape = self.mean.tape;
        let _call = tape.call("running", &[mean, var]);
        let fits = [mean.shape(), var.shape()] == [self.mean.shape(), self.var.shape()];
        tape.require(fits, "running", &[mean, var], || {
            format!("a mean and a variance for {} channels", self.mean.shape())
        });
        let unbiased = self.var.detach() * (self.count / (self.count - 1.0));
        let mix = |old: Tensor<'t>, new: Tensor<'t>| old * (1.0 - momentum) + new.cast(old.dtype()) * momentum;
        (mix(mean, self.mean.detach()), mix(var, unbiased))
    }
}

impl<'t> Tensor<'t> {
    /// Begins a function of this tensor, and of a weight and a bias where there are such.
    #[track_caller]
    fn call_with_options(self, name: &'static str, options: [Option<Tensor<'t>>; 2]) -> Call<'t> {
        let all: Vec<Tensor<'t>> = std::iter::once(self).chain(options.into_iter().flatten()).collect();
        self.tape.call(name, &all)
    }

    /// `(x - mean) / sqrt(var + eps)` over some axes (ascending); and mean and variance, which of halves are in f32.
    #[track_caller]
    fn standardized(self, axes: &[usize], eps: f64) -> (Self, Self, Self) {
        let (shape, dtype, x) = (self.shape(), self.dtype(), self.cast(self.wide()));
        let mean = x.mean_axes(axes);
        let centred = x - mean.unreduce(axes, &shape);
        let var = centred.square().mean_axes(axes);
        let y = centred * (var + eps).rsqrt().unreduce(axes, &shape);
        (y.cast(dtype), mean, var)
    }

    /// `x * weight + bias`, where given.
    #[track_caller]
    fn affine(self, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>) -> Self {
        // Not within closures: what does not fit is refused at the caller's line.
        let scaled = if let Some(weight) = weight { self * weight } else { self };
        if let Some(bias) = bias { scaled + bias } else { scaled }
    }

    /// A vector with one element per channel, to broadcast with this tensor, whose channels are axis 1.
    #[track_caller]
    fn per_channel(self, x: Tensor<'t>, what: &str) -> Self {
        let shape = self.shape();
        let channels = shape.get(1).copied().unwrap_or(0);
        self.tape.require(*x.shape() == [channels], what, &[self], || {
            format!("needs one element per channel, not {}{}", x.dtype(), x.shape())
        });
        x.reshape((0..shape.rank()).map(|d| if d == 1 { channels } else { 1 }).collect::<Vec<_>>())
    }

    /// As [`Tensor::per_channel`], of what may be missing.
    #[track_caller]
    fn each_channel(self, x: Option<Tensor<'t>>, what: &str) -> Option<Self> {
        Some(self.per_channel(x?, what))
    }

    /// Checks a weight or bias with one element for each of the last `dims` dimensions: another would repeat the result,
    /// or itself, unasked.
    #[track_caller]
    fn check_last_axes(self, x: Option<Tensor<'t>>, dims: usize, what: &str) {
        let (Some(x), shape) = (x, self.shape()) else { return };
        self.tape.require(x.shape()[..] == shape[shape.rank() - dims..], what, &[self], || {
            format!("weight and bias have the shape of the last {dims} dimensions, not {}{}", x.dtype(), x.shape())
        });
    }

    /// The last `dims` axes.
    #[track_caller]
    fn last_axes(self, dims: usize, what: &str) -> Vec<usize> {
        let rank = self.rank();
        self.tape.require((1..=rank).contains(&dims), what, &[self], || format!("there are no last {dims} dimensions"));
        (rank - dims..rank).collect()
    }

    /// Layer normalisation (Ba et al. 2016): `(x - mean) / sqrt(var + eps) * weight + bias` over the last `dims`
    /// dimensions; weight and bias have their shape.
    ///
    /// # Panics
    /// If there are not so many dimensions, or weight and bias are of another shape.
    #[track_caller]
    pub fn layer_norm(self, dims: usize, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>, eps: f64) -> Self {
        let _call = self.call_with_options("layer_norm", [weight, bias]);
        let axes = self.last_axes(dims, "layer_norm");
        self.check_last_axes(weight, dims, "layer_norm");
        self.check_last_axes(bias, dims, "layer_norm");
        self.standardized(&axes, eps).0.affine(weight, bias)
    }

    /// RMS normalisation (Zhang and Sennrich 2019): `x / sqrt(mean(x^2) + eps) * weight` over the last `dims` dimensions;
    /// the weight has their shape.
    ///
    /// # Panics
    /// As [`Tensor::layer_norm`].
    #[track_caller]
    pub fn rms_norm(self, dims: usize, weight: Option<Tensor<'t>>, eps: f64) -> Self {
        let _call = self.call_with_options("rms_norm", [weight, None]);
        let axes = self.last_axes(dims, "rms_norm");
        self.check_last_axes(weight, dims, "rms_norm");
        let x = self.cast(self.wide());
        let scale = (x.square().mean_axes(&axes) + eps).rsqrt();
        let y = (x * scale.unreduce(&axes, &self.shape())).cast(self.dtype());
        y.affine(weight, None)
    }

    /// Group normalisation (Wu and He 2018) of `[batch, channels, ..]`: the channels of each group, with all that follows
    /// them, are standardised together; weight and bias are `[channels]`.
    ///
    /// # Panics
    /// If the groups do not divide the channels, or weight or bias do not fit.
    #[track_caller]
    pub fn group_norm(self, groups: usize, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>, eps: f64) -> Self {
        let _call = self.call_with_options("group_norm", [weight, bias]);
        let shape = self.shape();
        let fits = shape.rank() >= 2 && groups > 0 && shape[1].is_multiple_of(groups);
        self.tape.require(fits, "group_norm", &[self], || {
            format!("needs [batch, channels, ..] with as many channels in each of {groups} groups")
        });
        let inner: usize = shape[1..].iter().product::<usize>() / groups;
        let (weight, bias) = (self.each_channel(weight, "group_norm"), self.each_channel(bias, "group_norm"));
        let grouped = self.reshape([shape[0], groups, inner]).standardized(&[2], eps).0.reshape(shape);
        grouped.affine(weight, bias)
    }

    /// Batch normalisation (Ioffe and Szegedy 2015) of `[batch, channels, ..]` by the batch's own mean and variance, for
    /// training; weight and bias are `[channels]`. [`BatchNormed::running`] has the statistics for evaluation.
    ///
    /// # Panics
    /// If a channel has fewer than two elements, which have no variance; or weight or bias do not fit.
    #[track_caller]
    pub fn batch_norm(self, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>, eps: f64) -> BatchNormed<'t> {
        let _call = self.call_with_options("batch_norm", [weight, bias]);
        let shape = self.shape();
        let axes: Vec<usize> = (0..shape.rank()).filter(|&d| d != 1).collect();
        let count = self.extent(&axes);
        self.tape.require(shape.rank() >= 2 && count > 1.0, "batch_norm", &[self], || {
            "needs [batch, channels, ..] with more than one element in each channel".into()
        });
        let (weight, bias) = (self.each_channel(weight, "batch_norm"), self.each_channel(bias, "batch_norm"));
        let (y, mean, var) = self.standardized(&axes, eps);
        self.tape.mark(y, Mark::BatchStatistics);
        BatchNormed { y: y.affine(weight, bias), mean, var, count }
    }

    /// Batch normalisation by given statistics `[channels]`, for evaluation. Of halves, the difference and its quotient
    /// are kept in f32.
    ///
    /// # Panics
    /// If statistics, weight or bias do not fit the channels.
    #[track_caller]
    pub fn batch_norm_eval(
        self,
        mean: Tensor<'t>,
        var: Tensor<'t>,
        weight: Option<Tensor<'t>>,
        bias: Option<Tensor<'t>>,
        eps: f64,
    ) -> Self {
        let _call = self.tape.call("batch_norm_eval", &[self, mean, var]);
        const NAME: &str = "batch_norm_eval";
        let (weight, bias) = (self.each_channel(weight, NAME), self.each_channel(bias, NAME));
        let (mean, var) = (self.per_channel(mean, NAME), self.per_channel(var, NAME));
        let wide = self.wide();
        let y = (self.cast(wide) - mean.cast(wide)) * (var.cast(wide) + eps).rsqrt();
        y.cast(self.dtype()).affine(weight, bias)
    }
}
