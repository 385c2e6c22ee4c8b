//! Functions that normalise a row by the sum of its exponentials: soft-max, its logarithm, its entropy, `logsumexp`.
//!
//! All of them work on differences from the row's maximum, and keep a sum of `1 + rest` as `rest`: to add the maximum,
//! or the 1, would often round away the whole result.

use crate::{Tensor, tape::hook::Vjp};

/// The exponentials of rows.
struct Shares<'t> {
    axes: Vec<usize>,
    /// `x - m`, where m is the maximum, or 0 if that is non-finite. m is a constant to gradients.
    below: Tensor<'t>,
    /// `e^(x - m)`, which is 1 at a maximum.
    e: Tensor<'t>,
    /// 1 at each maximum, 0 elsewhere.
    top: Tensor<'t>,
    /// The m of each row.
    shift: Tensor<'t>,
    /// `sum(e) - 1` of each row: one maximum, whose exponential is 1, is left out.
    rest: Tensor<'t>,
}

impl<'t> Shares<'t> {
    #[track_caller]
    fn new(x: Tensor<'t>, axes: &[usize]) -> Self {
        let (e, below, shift) = x.shifted_exp(axes);
        let e = e.with_rest(x, below, shift.unreduce(axes, &x.shape()));
        let top = below.equals(0.0).select(x.ones_like(), x.zeros_like());
        let rest = (e - top).sum_axes(axes) + (top.sum_axes(axes) - 1.0);
        Self { axes: axes.to_vec(), below, e, top, shift, rest }
    }

    /// A row's value, for each of its elements.
    #[track_caller]
    fn repeated(&self, row: Tensor<'t>) -> Tensor<'t> {
        row.unreduce(&self.axes, &self.e.shape())
    }

    /// `log(sum(e))`, of each row.
    #[track_caller]
    fn log(&self) -> Tensor<'t> {
        self.rest.log1p()
    }

    /// `1 / sum(e)`, for each element.
    #[track_caller]
    fn unit(&self) -> Tensor<'t> {
        self.repeated((self.rest + 1.0).recip())
    }

    /// `x - m`, but 0 where the exponential is 0, as `0 log 0` is 0 in the limit.
    #[track_caller]
    fn finite_below(&self) -> Tensor<'t> {
        self.e.equals(0.0).select(self.e.zeros_like(), self.below)
    }

    /// The sum of `p (m - x)` over a row, whose terms are all positive.
    #[track_caller]
    fn depth(&self) -> Tensor<'t> {
        -(self.e * self.finite_below()).sum_axes(&self.axes) / (self.rest + 1.0)
    }
}

/// `g - p sum(g)`, of shares p, computed as `g (1 - p) - p (sum(g) - g)`. `1 - p` is the sum of the other shares; the
/// first form loses it if p is nearly 1.
fn log_softmax_vjp<'t>(axes: &[usize], vjp: &Vjp<'_, 't>) -> Vec<Option<Tensor<'t>>> {
    let (x, g) = (vjp.inputs[0], vjp.cotangents[0].expect("asked of the only output"));
    let s = Shares::new(x, axes);
    let others = (s.repeated(s.rest) - (s.e - s.top)) + (x.ones_like() - s.top);
    let other_g = s.repeated(g.sum_axes(axes)) - g;
    vec![Some((g * others - s.e * other_g) * s.unit())]
}

/// `p (h - sum(p h))` with `h = g - c`, where c is the mean of g over the largest shares. With g itself, the difference
/// would cancel if p is nearly 1.
fn softmax_vjp<'t>(axes: &[usize], vjp: &Vjp<'_, 't>) -> Vec<Option<Tensor<'t>>> {
    let (p, unit) = (vjp.outputs[0], vjp.outputs[1]);
    // Nothing but this rule reads the second output, and no gradient flows through a comparison.
    let g = vjp.cotangents[0].expect("the shares alone are differentiated");
    let repeated = |row: Tensor<'t>| row.unreduce(axes, &p.shape());
    let top = p.equals(repeated(unit)).select(p.ones_like(), p.zeros_like());
    let h = g - repeated((g * top).sum_axes(axes) / top.sum_axes(axes));
    vec![Some(p * (h - repeated((p * h).sum_axes(axes))))]
}

/// `-g p (log p + H)`, with `log p + H` computed as `x - m` minus its mean under p, for the maximum m.
fn entropy_vjp<'t>(axes: &[usize], vjp: &Vjp<'_, 't>) -> Vec<Option<Tensor<'t>>> {
    let (x, g) = (vjp.inputs[0], vjp.cotangents[0].expect("asked of the only output"));
    let s = Shares::new(x, axes);
    let p = s.e * s.unit();
    vec![Some(-(s.repeated(g) * p * (s.finite_below() + s.repeated(s.depth()))))]
}

impl<'t> Tensor<'t> {
    /// `log(sum(e^x))` along an axis, which disappears.
    #[track_caller]
    pub fn logsumexp(self, axis: usize) -> Self {
        let _call = self.tape.call("logsumexp", &[self]);
        self.logsumexp_axes(&[axis])
    }

    /// `log(sum(e^x))` over some axes, which disappear, without overflow.
    #[track_caller]
    pub fn logsumexp_axes(self, axes: &[usize]) -> Self {
        let _call = self.tape.call("logsumexp_axes", &[self]);
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        let shares = Shares::new(self.cast(self.wide()), &axes);
        (shares.log() + shares.shift).cast(self.dtype())
    }

    /// `e^(x - m)`, `x - m`, and m: the maximum over some axes (ascending), or 0 if that is non-finite. m is a constant
    /// to gradients.
    #[track_caller]
    pub(super) fn shifted_exp(self, axes: &[usize]) -> (Self, Self, Self) {
        let max = self.max_axes(axes).detach();
        let shift = max.is_finite().select(max, max.zeros_like());
        let below = self - shift.unreduce(axes, &self.shape());
        (below.exp(), below, shift)
    }

    /// This `e^below`, for `below = x - m`, corrected by the rounding error of that difference (Knuth's exact sum). For
    /// an element 64 below the maximum, the correction is up to 64 half units in the last place of the exponential. It
    /// is a constant to gradients, which flow through `below` already.
    #[track_caller]
    fn with_rest(self, x: Tensor<'t>, below: Tensor<'t>, m: Tensor<'t>) -> Self {
        let minus_m = below - x;
        let rest = (x - (below - minus_m)) - (m + minus_m);
        // An infinite element has no correction.
        self + self * rest.is_finite().select(rest, rest.zeros_like()).detach()
    }

    /// `x - logsumexp(x)` along an axis, as `(x - m) - log(sum(e^(x - m)))` with the maximum m. For f16, all of it is
    /// computed in f32.
    #[track_caller]
    pub fn log_softmax(self, axis: usize) -> Self {
        let _call = self.tape.call("log_softmax", &[self]);
        self.wide_log_softmax(axis).cast(self.dtype())
    }

    /// As [`Tensor::log_softmax`], but f32 for f16.
    #[track_caller]
    pub(super) fn wide_log_softmax(self, axis: usize) -> Self {
        let x = self.cast(self.wide());
        let shares = Shares::new(x, &[axis]);
        let y = shares.below - shares.repeated(shares.log());
        x.composed("log_softmax", &[axis], &[y], log_softmax_vjp)
    }

    /// `e^x / sum(e^x)` along an axis. The share of an element that lies d below the maximum is off by up to d units in
    /// the last place, or a few: for speed it ignores the rounding error of `x - m`, which [`Tensor::log_softmax`]
    /// corrects.
    #[track_caller]
    pub fn softmax(self, axis: usize) -> Self {
        let _call = self.tape.call("softmax", &[self]);
        let x = self.cast(self.wide());
        let (e, ..) = x.shifted_exp(&[axis]);
        let unit = e.sum_axes(&[axis]).recip();
        let shares = e * unit.unreduce(&[axis], &x.shape());
        x.composed("softmax", &[axis], &[shares, unit], softmax_vjp).cast(self.dtype())
    }

    /// The entropy `-sum(p log p)` of `p = softmax(x)` along an axis, which disappears, in nats: from 0, if one element
    /// has the whole share, to the logarithm of the number of elements. An element without a share, such as one masked
    /// with minus infinity, adds nothing and gets no gradient; `p * p.log()` would be NaN there.
    #[track_caller]
    pub fn softmax_entropy(self, axis: usize) -> Self {
        let _call = self.tape.call("softmax_entropy", &[self]);
        let x = self.cast(self.wide());
        let shares = Shares::new(x, &[axis]);
        let entropy = shares.log() + shares.depth();
        x.composed("softmax_entropy", &[axis], &[entropy], entropy_vjp).cast(self.dtype())
    }
}
