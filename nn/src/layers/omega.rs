//! Pascanu's regulariser against vanishing gradients.

use super::{Outputs, Recurrent};
use crate::Cell;
use wgrad::{Recurrence, Tensor};

/// The regulariser Omega of Pascanu, Mikolov & Bengio 2013 ("On the difficulty of training recurrent neural networks",
/// equations 9 and 10): it asks that the error keep its norm on its way back through each time step.
///
/// `mean over t and samples of (|dL/dh_(t+1) dh_(t+1)/dh_t| / |dL/dh_(t+1)| - 1)^2`
///
/// As in the paper its gradient is the immediate one with respect to `weight_hh`: errors and activations are constants.
/// The paper sums over the time steps; the mean lets one weight fit sequences of every length. Add the regulariser to
/// the loss with a weight; 5 suffices for temporal order. A sample whose error is exactly 0 at a step contributes 0
/// there.
///
/// `outputs` are those of [`Recurrent::unrolled`]: there, the error of a hidden state includes its effect on all later
/// steps.
///
/// # Panics
/// If the layer is gated or was not unrolled, if there is only one time step, or if `loss` is not a float scalar.
#[track_caller]
pub fn omega<'t>(loss: Tensor<'t>, layer: &Recurrent, outputs: &Outputs<'t>) -> Tensor<'t> {
    let steps = outputs.steps();
    assert!(outputs.is_unrolled(), "omega: needs the outputs of `unrolled`, whose every step has its own error");
    of_steps(loss, layer.cell, loss.tape().param(layer.weight_hh), &steps)
}

/// A recurrence step by step, for [`of_steps`]: the hidden state after each, `[batch, hidden]`.
#[track_caller]
pub(crate) fn unrolled<'t>(cell: Cell, x: &[Tensor<'t>]) -> Vec<Tensor<'t>> {
    let recurrence = Recurrence { cell, z: x[0], w_hh: x[1], h0: x[2], c0: None, b_hh: None };
    recurrence.unrolled().into_iter().map(|(h, _)| h).collect()
}

/// The regulariser of a plain cell's hidden states, each computed from the one before by the recurrent weights `w_hh`.
#[track_caller]
pub(crate) fn of_steps<'t>(loss: Tensor<'t>, cell: Cell, w_hh: Tensor<'t>, steps: &[Tensor<'t>]) -> Tensor<'t> {
    let tape = loss.tape();
    assert!(steps.len() > 1, "omega: an error goes back through at least one time step, and this layer ran one");
    let _call = tape.call("omega", &[loss]);
    let _scope = tape.enter("omega");
    let errors: Vec<Tensor<'t>> =
        loss.grad_wrt(steps).into_iter().zip(steps).map(|(error, h)| error.unwrap_or_else(|| h.zeros_like())).collect();
    let after = |x: Tensor<'t>| x.detach().slice(0, 1, steps.len() - 1);
    let (error, h) = (after(Tensor::stack(&errors)), after(Tensor::stack(steps)));
    let slope = match cell {
        Cell::Tanh => 1.0 - h.square(),
        Cell::Sigmoid => h * (1.0 - h),
        Cell::Irnn => h.equals(0.0).select(h.zeros_like(), h.ones_like()),
        Cell::Lstm | Cell::Gru => {
            panic!("omega: {} has gates; it is for plain recurrent layers", cell.scope())
        }
    };
    let one_back = (error * slope).matmul(w_hh).norm_axes(&[2]);
    let norm = error.norm_axes(&[2]);
    let silent = norm.equals(0.0);
    let one = norm.ones_like();
    let ratio = silent.select(one, one_back) / silent.select(one, norm);
    (ratio - 1.0).square().mean()
}
