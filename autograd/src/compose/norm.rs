//! Normalisation by mean and variance, or by the root of the mean square.

use crate::{Tensor, lints::Mark};

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
        mean.tape().at_caller(|| {
            assert!(
                [mean.shape(), var.shape()] == [self.mean.shape(), self.var.shape()],
                "running: a mean of {} and a variance of {} for {} channels{}",
                mean.shape(),
                var.shape(),
                self.mean.shape(),
                mean.tape().recorded_at()
            );
            let unbiased = self.var.detach() * (self.count / (self.count - 1.0));
            let mix = |old: Tensor<'t>, new: Tensor<'t>| old * (1.0 - momentum) + new.cast(old.dtype()) * momentum;
            (mix(mean, self.mean.detach()), mix(var, unbiased))
        })
    }
}

impl<'t> Tensor<'t> {
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
    fn affine(self, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>) -> Self {
        let scaled = weight.map_or(self, |weight| self * weight);
        bias.map_or(scaled, |bias| scaled + bias)
    }

    /// A vector with one element per channel, to broadcast with this tensor, whose channels are axis 1.
    #[track_caller]
    fn per_channel(self, x: Tensor<'t>, what: &str) -> Self {
        let shape = self.shape();
        let channels = shape.get(1).copied().unwrap_or(0);
        assert!(
            *x.shape() == [channels],
            "{what} of {}{shape}: needs one element per channel, not {}{}{}",
            self.dtype(),
            x.shape(),
            x.dtype(),
            self.tape.recorded_at()
        );
        x.reshape((0..shape.rank()).map(|d| if d == 1 { channels } else { 1 }).collect::<Vec<_>>())
    }

    /// A weight or bias with one element for each of the last `dims` dimensions: another would repeat the result, or
    /// itself, unasked.
    #[track_caller]
    fn of_last_axes(self, x: Tensor<'t>, dims: usize, what: &str) -> Tensor<'t> {
        let shape = self.shape();
        assert!(
            x.shape()[..] == shape[shape.rank() - dims..],
            "{what} of {}{shape} over {dims} dimensions: weight and bias have their shape, not {}{}{}",
            self.dtype(),
            x.dtype(),
            x.shape(),
            self.tape.recorded_at()
        );
        x
    }

    /// The last `dims` axes.
    #[track_caller]
    fn last_axes(self, dims: usize, what: &str) -> Vec<usize> {
        let rank = self.rank();
        assert!((1..=rank).contains(&dims), "{what} of {}{} over {dims} dimensions", self.dtype(), self.shape());
        (rank - dims..rank).collect()
    }

    /// Layer normalisation (Ba et al. 2016): `(x - mean) / sqrt(var + eps) * weight + bias` over the last `dims`
    /// dimensions; weight and bias have their shape.
    ///
    /// # Panics
    /// If there are not so many dimensions, or weight and bias are of another shape.
    #[track_caller]
    pub fn layer_norm(self, dims: usize, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>, eps: f64) -> Self {
        let axes = self.last_axes(dims, "layer_norm");
        self.tape.at_caller(|| {
            let fit = |x| self.of_last_axes(x, dims, "layer_norm");
            self.standardized(&axes, eps).0.affine(weight.map(fit), bias.map(fit))
        })
    }

    /// RMS normalisation (Zhang and Sennrich 2019): `x / sqrt(mean(x^2) + eps) * weight` over the last `dims` dimensions;
    /// the weight has their shape.
    ///
    /// # Panics
    /// As [`Tensor::layer_norm`].
    #[track_caller]
    pub fn rms_norm(self, dims: usize, weight: Option<Tensor<'t>>, eps: f64) -> Self {
        let axes = self.last_axes(dims, "rms_norm");
        self.tape.at_caller(|| {
            let x = self.cast(self.wide());
            let scale = (x.square().mean_axes(&axes) + eps).rsqrt();
            let y = (x * scale.unreduce(&axes, &self.shape())).cast(self.dtype());
            y.affine(weight.map(|weight| self.of_last_axes(weight, dims, "rms_norm")), None)
        })
    }

    /// Group normalisation (Wu and He 2018) of `[batch, channels, ..]`: the channels of each group, with all that follows
    /// them, are standardised together; weight and bias are `[channels]`.
    ///
    /// # Panics
    /// If the groups do not divide the channels, or weight or bias do not fit.
    #[track_caller]
    pub fn group_norm(self, groups: usize, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>, eps: f64) -> Self {
        let shape = self.shape();
        assert!(
            shape.rank() >= 2 && groups > 0 && shape[1].is_multiple_of(groups),
            "group_norm of {}{shape} in {groups} groups: needs [batch, channels, ..] with as many channels in each group",
            self.dtype()
        );
        let inner: usize = shape[1..].iter().product::<usize>() / groups;
        self.tape.at_caller(|| {
            let fit = |x| self.per_channel(x, "group_norm");
            let grouped = self.reshape([shape[0], groups, inner]).standardized(&[2], eps).0.reshape(shape);
            grouped.affine(weight.map(fit), bias.map(fit))
        })
    }

    /// Batch normalisation (Ioffe and Szegedy 2015) of `[batch, channels, ..]` by the batch's own mean and variance, for
    /// training; weight and bias are `[channels]`. [`BatchNormed::running`] has the statistics for evaluation.
    ///
    /// # Panics
    /// If a channel has fewer than two elements, which have no variance; or weight or bias do not fit.
    #[track_caller]
    pub fn batch_norm(self, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>, eps: f64) -> BatchNormed<'t> {
        let shape = self.shape();
        let axes: Vec<usize> = (0..shape.rank()).filter(|&d| d != 1).collect();
        let count = self.extent(&axes);
        assert!(
            shape.rank() >= 2 && count > 1.0,
            "batch_norm of {}{shape}: needs [batch, channels, ..] with more than one element in each channel",
            self.dtype()
        );
        self.tape.at_caller(|| {
            let fit = |x| self.per_channel(x, "batch_norm");
            let (y, mean, var) = self.standardized(&axes, eps);
            self.tape.mark(y, Mark::BatchStatistics);
            BatchNormed { y: y.affine(weight.map(fit), bias.map(fit)), mean, var, count }
        })
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
        self.tape.at_caller(|| {
            let fit = |x| self.per_channel(x, "batch_norm");
            let wide = |x: Tensor<'t>| x.cast(self.wide());
            let y = (wide(self) - fit(wide(mean))) * (fit(wide(var)) + eps).rsqrt();
            y.cast(self.dtype()).affine(weight.map(fit), bias.map(fit))
        })
    }
}
