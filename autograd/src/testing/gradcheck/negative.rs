//! Negative controls: a check that has never failed has shown nothing.

use super::{Directions, Gradcheck, GradcheckError, Mismatch, Order, Source, subject::Subject};
use crate::{Array, ParamSet, Session, Tensor};

/// A wrong gradient, planted at one input.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A thousandth too large.
    Scaled,
    /// Of the other sign.
    Negated,
    /// Zero.
    Zeroed,
    /// Wrong in the element of this row-major index, by 0.001 of its size plus 0.001.
    OneElement(usize),
    /// A term that the function does not have.
    TermTooMany,
}

/// Asserts that a check notices when the gradient of `f` is wrong: at each f64 input in turn it is scaled by 1.001,
/// negated, zeroed, changed in one element, and given a term too many, and each must be a first-order mismatch of that
/// input. (Scaling, negating and zeroing are tried only if they make a difference, and nothing is tried if a kink is
/// near every element.)
///
/// # Panics
/// If the check fails on `f` itself, or passes a planted fault; if the result of `f` is empty, and so has no gradient.
#[track_caller]
pub fn assert_detects_wrong_gradient(
    check: &Gradcheck,
    session: &mut Session,
    inputs: &[Array],
    f: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>,
) {
    let check = Gradcheck { order: Order::First, ..check.clone() };
    let plain = Subject::new(session, &ParamSet::default(), inputs, |_, x| f(x))
        .and_then(|subject| check.check_order(session, &subject, Order::First));
    let seen = plain.unwrap_or_else(|error| panic!("without a fault, the check fails: {error}"));
    let floats = (0..inputs.len()).filter(|&i| inputs[i].dtype().is_float());
    for (s, i) in floats.enumerate() {
        let compared = &seen.compared[s];
        let Some(first) = compared.iter().position(|compared| *compared) else { continue };
        let mut faults = vec![Fault::TermTooMany];
        if let Some(g) = &seen.gradients[s] {
            // A direction moves every element.
            let whole = check.directions != Directions::Elements;
            faults.push(Fault::OneElement(if whole { 0 } else { first }));
            if g.iter().enumerate().any(|(k, g)| g.abs() > 1e-3 && (whole || compared[k])) {
                faults.extend([Fault::Scaled, Fault::Negated, Fault::Zeroed]);
            }
        }
        for fault in faults {
            let found = check.check(session, inputs, |x| {
                let mut x = x.to_vec();
                x[i] = hooked(fault, x[i]);
                match fault {
                    Fault::TermTooMany => f(&x) + (x[i] - x[i].detach()).sum(),
                    _ => f(&x),
                }
            });
            match found {
                Err(GradcheckError::Mismatch(found)) if found.input == Source::Input(i) => {}
                other => panic!("{fault:?} at input {i} is not detected: {other:?}"),
            }
        }
    }
}

/// Asserts that a check finds a wrong derivative in a function that has one, and returns it.
///
/// # Panics
/// If the check passes, or fails for another reason.
#[track_caller]
pub fn assert_rejects(
    check: &Gradcheck,
    session: &mut Session,
    inputs: &[Array],
    wrong: impl for<'t> Fn(&[Tensor<'t>]) -> Tensor<'t>,
) -> Mismatch {
    match check.check(session, inputs, wrong) {
        Err(GradcheckError::Mismatch(found)) => *found,
        other => panic!("no wrong derivative is detected: {other:?}"),
    }
}

/// The same value, with a fault in the gradient that it passes on.
fn hooked(fault: Fault, x: Tensor<'_>) -> Tensor<'_> {
    match fault {
        Fault::Scaled => x.on_grad(|g| g * 1.001),
        Fault::Negated => x.on_grad(|g| -g),
        Fault::Zeroed => x.on_grad(|g| g.zeros_like()),
        Fault::OneElement(element) => x.on_grad(move |g| {
            let here = g.tape().iota(g.numel()).equals(element as f64).cast(g.dtype()).reshape(g.shape());
            g + here * (g.abs() + 1.0) * 1e-3
        }),
        Fault::TermTooMany => x,
    }
}
