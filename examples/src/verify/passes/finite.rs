//! Steps that are skipped if a gradient is non-finite.

use super::{Pass, find, recorded};
use crate::verify::{
    Attempt, Refusal,
    kind::{Results, Vector},
};
use wgrad::{FiniteGuard, Grads, OnGiveUp, Optimizer, ParamSet, Store, Tensor};
use wgrad_nn::optim::{Adam, AdamConfig, Sgd, SgdConfig};

pub const PASSES: &[Pass] = &[Pass { name: "apply_if_finite", run: apply_if_finite }];

/// Declares an optimizer over the parameters of a store, and returns its step.
type Make = fn(&mut Store, &ParamSet, f64) -> Box<dyn for<'t> Fn(Grads<'t>)>;

/// Makes one step after the other, on the gradients along the first dimension of `g`.
fn apply_if_finite(vector: &Vector<'_>) -> Attempt<Results> {
    let (inputs, attrs) = (vector.inputs("in/")?, vector.attrs());
    let make: Make = match attrs.text("inner")? {
        "sgd" => |store, params, lr| {
            let sgd = Sgd::new(store, params, SgdConfig { lr: lr.into(), ..SgdConfig::default() });
            Box::new(move |grads| sgd.step(grads))
        },
        "adam" => |store, params, lr| {
            let adam = Adam::new(store, params, AdamConfig { lr: lr.into(), ..AdamConfig::default() });
            Box::new(move |grads| adam.step(grads))
        },
        other => return Err(Refusal::Unsupported(format!("optimizer {other:?} around which to check"))),
    };
    let (lr, most) = (attrs.number("lr")?, attrs.extent("max_consecutive_errors")?);
    let most = u32::try_from(most).map_err(|_| Refusal::Misfit(format!("{most} errors in a row exceed u32")))?;
    let p0 = ("p0".to_string(), find(&inputs, "p0")?.1.clone());
    let declare = |store: &mut Store, params: &ParamSet| {
        let step = make(store, params, lr);
        (step, FiniteGuard::new(store, "guard", Some(most), OnGiveUp::Accept))
    };
    recorded(vector, &inputs, &[p0], declare, |r, (step, guard)| {
        let (g, param) = (r.input("g")?, r.params[0]);
        let mut seen: [Vec<Tensor<'_>>; 4] = Default::default();
        for t in 0..g.shape().first().copied().unwrap_or(0) {
            step(r.given(&[(param, g.index(0, t))]).skip_if_not_finite(guard));
            let states = [guard.in_a_row(), guard.total(), guard.last_finite()].map(|state| r.tape.state(state));
            let values = [r.tape.param(param), states[0], states[1], states[2]];
            seen.iter_mut().zip(values).for_each(|(seen, value)| seen.push(value));
        }
        for (name, seen) in ["p", "notfinite_count", "total_notfinite", "last_finite"].iter().zip(&seen) {
            r.out(name, Tensor::stack(seen));
        }
        Ok(())
    })
}
