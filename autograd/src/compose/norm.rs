//! Normalisation by mean and variance, or by the root of the mean square.

use crate::Tensor;

/// What [`Tensor::batch_norm`] gives.
#[derive(Clone, Copy, Debug)]
pub struct BatchNormed<'t> {
    /// The normalised tensor.
    pub y: Tensor<'t>,
    /// The mean of each channel, `[channels]`.
    pub mean: Tensor<'t>,
    /// The variance of each channel (divided by n), `[channels]`.
    pub var: Tensor<'t>,
    /// How many elements a channel has.
    count: f64,
}

impl<'t> BatchNormed<'t> {
    /// The running mean and variance after this batch: `(1 - momentum) old + momentum new`, with the unbiased variance
    /// of the batch. They are constants to gradients.
    #[track_caller]
    pub fn running(&self, mean: Tensor<'t>, var: Tensor<'t>, momentum: f64) -> (Tensor<'t>, Tensor<'t>) {
        mean.tape().at_caller(|| {
            let unbiased = self.var.detach() * (self.count / (self.count - 1.0));
            let mix = |old: Tensor<'t>, new: Tensor<'t>| old * (1.0 - momentum) + new * momentum;
            (mix(mean, self.mean.detach()), mix(var, unbiased))
        })
    }
}

impl<'t> Tensor<'t> {
    /// `(x - mean) / sqrt(var + eps)` over some axes (ascending); and mean and variance.
    #[track_caller]
    fn standardized(self, axes: &[usize], eps: f64) -> (Self, Self, Self) {
        let (shape, mean) = (self.shape(), self.mean_axes(axes));
        let centred = self - mean.unreduce(axes, &shape);
        let var = centred.square().mean_axes(axes);
        (centred * (var + eps).rsqrt().unreduce(axes, &shape), mean, var)
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
    /// If there are not so many dimensions, or weight and bias do not broadcast.
    #[track_caller]
    pub fn layer_norm(self, dims: usize, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>, eps: f64) -> Self {
        let axes = self.last_axes(dims, "layer_norm");
        self.tape.at_caller(|| self.standardized(&axes, eps).0.affine(weight, bias))
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
            let scale = (self.square().mean_axes(&axes) + eps).rsqrt();
            (self * scale.unreduce(&axes, &self.shape())).affine(weight, None)
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
            BatchNormed { y: y.affine(weight.map(fit), bias.map(fit)), mean, var, count }
        })
    }

    /// Batch normalisation by given statistics `[channels]`, for evaluation.
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
            ((self - fit(mean)) * (fit(var) + eps).rsqrt()).affine(weight.map(fit), bias.map(fit))
        })
    }
}
