//! Mean and variance, and normalisation by them or by the root of the mean square.

use super::reduce::ascending;
use crate::{
    DType, Tensor,
    lints::Mark,
    pitfall::{Pitfall, Severity},
    tape::Call,
    tape::hook::{OwnRule, Vjp},
};

/// The results of [`Tensor::batch_norm`].
#[derive(Clone, Copy, Debug)]
pub struct BatchNormed<'t> {
    /// The normalised tensor.
    pub y: Tensor<'t>,
    /// The mean of each channel, `[channels]`; f32 for f16.
    pub mean: Tensor<'t>,
    /// The variance of each channel (divided by n), `[channels]`; f32 for f16.
    pub var: Tensor<'t>,
    /// The number of elements that a channel has.
    count: f64,
}

impl<'t> BatchNormed<'t> {
    /// The running mean and variance after this batch: `(1 - momentum) old + momentum new`, with the unbiased variance
    /// of the batch, in the type of the old ones. They are constants to gradients.
    ///
    /// Check that they are finite: an infinite variance makes `y` 0, so the loss and the gradients are finite, and the
    /// step is taken. To skip the step and the assignment unless they are finite, see [`crate::Grads::skip_unless`].
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

/// The mean of rows, the distances of the elements from it, and their squares.
struct Moments<'t> {
    mean: Tensor<'t>,
    centred: Tensor<'t>,
    /// The sum of the squares of `centred`.
    squares: Tensor<'t>,
}

/// `r (g - y mean(g y))`, for `y = r x` with `r = 1 / sqrt(mean(x^2) + eps)`. It has no square of x, which may overflow
/// where y and r do not.
fn unit_rms_vjp<'t>(axes: &[usize], vjp: &Vjp<'_, 't>) -> Vec<Option<Tensor<'t>>> {
    unit_vjp(axes, vjp, |g| g)
}

/// As [`unit_rms_vjp`], for the distance from the mean: `r (g - mean(g) - y mean(g y))`.
fn standardized_vjp<'t>(axes: &[usize], vjp: &Vjp<'_, 't>) -> Vec<Option<Tensor<'t>>> {
    unit_vjp(axes, vjp, |g| g - g.mean_axes(axes).unreduce(axes, &g.shape()))
}

fn unit_vjp<'t>(
    axes: &[usize],
    vjp: &Vjp<'_, 't>,
    centred: impl Fn(Tensor<'t>) -> Tensor<'t>,
) -> Vec<Option<Tensor<'t>>> {
    let (y, r) = (vjp.outputs[0], vjp.outputs[1]);
    let repeated = |row: Tensor<'t>| row.unreduce(axes, &y.shape());
    let by_y = vjp.cotangents[0].map(|g| (centred(g) - y * repeated((g * y).mean_axes(axes))) * repeated(r));
    // r itself falls by `r^2 y / n` as an element rises.
    let by_r = vjp.cotangents[1].map(|g| y * repeated(-(g * r * r / y.extent(axes))));
    vec![by_y.into_iter().chain(by_r).reduce(|a, b| a + b)]
}

impl<'t> Tensor<'t> {
    /// Begins a function of this tensor, and of a weight and a bias if given.
    #[track_caller]
    fn call_with_options(self, name: &'static str, options: [Option<Tensor<'t>>; 2]) -> Call<'t> {
        let all: Vec<Tensor<'t>> = std::iter::once(self).chain(options.into_iter().flatten()).collect();
        self.tape.call(name, &all)
    }

    /// The distance of each element from the mean over some axes, and the root of the mean square of these distances,
    /// in one walk for the mean and one for all else. `off` is the rounding error of the mean, and `s^2 - off^2` the
    /// mean square that is free of it; it is factored, so that no square overflows. `off` is a constant to gradients,
    /// because in exact arithmetic it is 0 for any x.
    #[track_caller]
    fn centred(self, axes: &[usize]) -> (Self, Self) {
        let repeated = |row: Tensor<'t>| row.unreduce(axes, &self.shape());
        let from_mean = self - repeated(self.mean_axes(axes));
        let (off, size) = (from_mean.mean_axes(axes).detach(), from_mean.root_mean_square(axes));
        let size = (size - off).maximum(0.0).sqrt() * (size + off).maximum(0.0).sqrt();
        (from_mean - repeated(off), size)
    }

    #[track_caller]
    fn root_mean_square(self, axes: &[usize]) -> Self {
        self.norm_axes(axes) / self.extent(axes).sqrt()
    }

    /// The moments over some axes, in one walk for the mean and one for all else: squares are taken of differences from
    /// the rounded mean, and the excess that this causes is subtracted from their sum (Chan, Golub and LeVeque 1983).
    #[track_caller]
    fn moments(self, axes: &[usize]) -> Moments<'t> {
        let repeated = |row: Tensor<'t>| row.unreduce(axes, &self.shape());
        let mean = self.mean_axes(axes);
        let from_mean = self - repeated(mean);
        let off = from_mean.mean_axes(axes).detach();
        // A finite excess, because infinity minus infinity would be NaN.
        let most = if self.dtype() == DType::F64 { f64::MAX } else { f32::MAX.into() };
        let excess = (off.square() * self.extent(axes)).minimum(most);
        let squares = from_mean.square().sum_axes(axes) - excess;
        let squares = squares.less(0.0).select(squares.zeros_like(), squares);
        Moments { mean: mean + off, centred: from_mean - repeated(off), squares }
    }

    /// `x / sqrt(mean(x^2) + eps)` over some axes (ascending), of x or, if `is_centred`, of its distance from the mean.
    /// Nothing overflows or underflows on the way, because only quotients are squared.
    #[track_caller]
    fn in_units_of_size(self, axes: &[usize], eps: f64, is_centred: bool) -> Self {
        let (x, size) = if is_centred { self.centred(axes) } else { (self, self.root_mean_square(axes)) };
        let r = size.hypot(eps.sqrt()).recip();
        let y = x * r.unreduce(axes, &self.shape());
        let (name, rule): (_, OwnRule) =
            if is_centred { ("standardized", standardized_vjp) } else { ("unit_rms", unit_rms_vjp) };
        self.composed(name, axes, &[y, r], rule)
    }

    /// `sqrt(x^2 + y^2)` of non-negative numbers, without a square that overflows.
    #[track_caller]
    fn hypot(self, y: f64) -> Self {
        if y == 0.0 {
            return self;
        }
        let y = self.tape.full(self.shape(), y, self.dtype());
        let below = self.less(y);
        let quotient = below.select(self, y) / below.select(y, self);
        (quotient.square() + 1.0).sqrt() * below.select(y, self)
    }

    /// The variance over some axes, which disappear: the mean squared distance from the mean (divided by n).
    #[track_caller]
    pub fn var_axes(self, axes: &[usize]) -> Self {
        let _call = self.tape.call("var_axes", &[self]);
        let x = self.cast(self.wide());
        (x.moments(axes).squares / x.extent(axes)).cast(self.dtype())
    }

    /// The sum of squared distances from the mean over some axes, which disappear, divided by `n - correction`. A
    /// correction of 1 gives the unbiased estimate of the variance. NaN or infinite if `n` is not larger than the
    /// correction.
    #[track_caller]
    pub fn var_axes_with(self, axes: &[usize], correction: f64) -> Self {
        let _call = self.tape.call("var_axes_with", &[self]);
        let degrees = self.degrees_of_freedom(axes, correction);
        let x = self.cast(self.wide());
        (x.moments(axes).squares / degrees).cast(self.dtype())
    }

    /// The standard deviation over some axes, which disappear: the root of the mean squared distance from the mean. Its
    /// gradient where all elements are equal is 0, and no square overflows.
    #[track_caller]
    pub fn std_axes(self, axes: &[usize]) -> Self {
        let _call = self.tape.call("std_axes", &[self]);
        self.std_axes_with(axes, 0.0)
    }

    /// The root of the sum of squared distances from the mean over some axes, which disappear, divided by
    /// `n - correction`: [`Tensor::std_axes`] for a correction of 0, PyTorch's default for 1. NaN or infinite if `n` is
    /// not larger than the correction.
    #[track_caller]
    pub fn std_axes_with(self, axes: &[usize], correction: f64) -> Self {
        let _call = self.tape.call("std_axes_with", &[self]);
        let degrees = self.degrees_of_freedom(axes, correction);
        let x = self.cast(self.wide());
        let repeated = |row: Tensor<'t>| row.unreduce(&ascending(axes), &self.shape());
        let from_mean = x - repeated(x.mean_axes(axes));
        // The rounding error of the mean, which is 0 for any x in exact arithmetic.
        let off = from_mean.mean_axes(axes).detach();
        ((from_mean - repeated(off)).norm_axes(axes) / degrees.sqrt()).cast(self.dtype())
    }

    /// The number of elements in some axes less the correction, at least 0.
    #[track_caller]
    fn degrees_of_freedom(self, axes: &[usize], correction: f64) -> f64 {
        let n = self.extent(axes);
        if n > 0.0 && n <= correction {
            let text = format!(
                "a variance with correction {correction} needs more elements than {n}; report 0, or take `var_axes`"
            );
            self.tape.note(Pitfall::SpreadOfOneElement, Severity::Warning, text);
        }
        (n - correction).max(0.0)
    }

    /// `normed * weight + bias`, each if given, rounded to this tensor's type at the end.
    #[track_caller]
    fn affine(self, normed: Tensor<'t>, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>, what: &str) -> Self {
        for x in weight.into_iter().chain(bias) {
            self.tape.require(x.dtype() == self.dtype(), what, &[self], || {
                format!("weight and bias have its type, not {}", x.dtype())
            });
        }
        let wide = |x: Tensor<'t>| x.cast(normed.dtype());
        let scaled = weight.map_or(normed, |weight| normed * wide(weight));
        bias.map_or(scaled, |bias| scaled + wide(bias)).cast(self.dtype())
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

    /// As [`Tensor::per_channel`], for a vector that may be missing.
    #[track_caller]
    fn each_channel(self, x: Option<Tensor<'t>>, what: &str) -> Option<Self> {
        Some(self.per_channel(x?, what))
    }

    /// Checks that a weight or bias has the shape of the last `dims` dimensions: any other would broadcast unasked.
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
    /// If there are fewer dimensions, or weight and bias are of another shape.
    #[track_caller]
    pub fn layer_norm(self, dims: usize, weight: Option<Tensor<'t>>, bias: Option<Tensor<'t>>, eps: f64) -> Self {
        let _call = self.call_with_options("layer_norm", [weight, bias]);
        let axes = self.last_axes(dims, "layer_norm");
        self.check_last_axes(weight, dims, "layer_norm");
        self.check_last_axes(bias, dims, "layer_norm");
        let y = self.cast(self.wide()).in_units_of_size(&axes, eps, true);
        self.affine(y, weight, bias, "layer_norm")
    }

    /// RMS normalisation (Zhang and Sennrich 2019): `x / sqrt(mean(x^2) + eps) * weight` over the last `dims`
    /// dimensions; the weight has their shape.
    ///
    /// # Panics
    /// As [`Tensor::layer_norm`].
    #[track_caller]
    pub fn rms_norm(self, dims: usize, weight: Option<Tensor<'t>>, eps: f64) -> Self {
        let _call = self.call_with_options("rms_norm", [weight, None]);
        let axes = self.last_axes(dims, "rms_norm");
        self.check_last_axes(weight, dims, "rms_norm");
        let y = self.cast(self.wide()).in_units_of_size(&axes, eps, false);
        self.affine(y, weight, None, "rms_norm")
    }

    /// Group normalisation (Wu and He 2018) of `[batch, channels, ..]`: the channels of each group, with all that
    /// follows them, are standardised together; weight and bias are `[channels]`.
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
        let grouped = self.cast(self.wide()).reshape([shape[0], groups, inner]);
        let y = grouped.in_units_of_size(&[2], eps, true).reshape(shape);
        self.affine(y, weight, bias, "group_norm")
    }

    /// Batch normalisation (Ioffe and Szegedy 2015) of `[batch, channels, ..]` by the batch's own mean and variance,
    /// for training; weight and bias are `[channels]`. [`BatchNormed::running`] has the statistics for evaluation.
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
        let x = self.cast(self.wide());
        let Moments { mean, centred, squares } = x.moments(&axes);
        let var = squares / count;
        let r = (var + eps).rsqrt();
        let y = centred * r.unreduce(&axes, &shape);
        let y = x.composed("standardized", &axes, &[y, r], standardized_vjp);
        self.tape.mark(y, Mark::BatchStatistics);
        BatchNormed { y: self.affine(y, weight, bias, "batch_norm"), mean, var, count }
    }

    /// Batch normalisation by given statistics `[channels]`, for evaluation. For f16, the difference and its quotient
    /// are computed in f32.
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
        self.affine(y, weight, bias, NAME)
    }
}
