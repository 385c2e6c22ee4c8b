//! Gradient passes: short pure functions that record what happens to gradients between the loss and the optimizer.
//!
//! No pass has a gradient rule or a kernel of its own. Each is a region of the program (see [`crate::Program::passes`])
//! whose body is ordinary nodes, so a pass can be printed, differentiated and fused like the model itself.

use crate::{
    DType, Operand, Tensor,
    grads::{Grads, Scaled, Unscaled},
    pass_state::Action,
    scaler::LossScaler,
    store::Flat,
};
use std::marker::PhantomData;

impl<'t, S> Grads<'t, S> {
    /// Records `f` as a pass over the flat vectors. It returns the new vectors, then anything else worth naming.
    #[track_caller]
    fn pass(
        &self,
        name: &'static str,
        parameters: &[(&'static str, String)],
        f: impl FnOnce(&Flat<'t>) -> (Flat<'t>, Vec<Tensor<'t>>),
    ) -> (Flat<'t>, Vec<Tensor<'t>>) {
        if let Some(action) = Action::of_pass(name) {
            self.apply(action);
        }
        let mut result = None;
        self.tape.pass(name, parameters, &self.flat.tensors(), || {
            let (flat, extra) = f(&self.flat);
            let outputs = flat.tensors().into_iter().chain(extra.iter().copied()).collect();
            result = Some((flat, extra));
            outputs
        });
        result.expect("the pass has run")
    }

    /// Bool scalar: whether every element is finite. Recorded on the values as they stand, before any arithmetic that
    /// could hide or spread an infinity.
    #[track_caller]
    fn all_finite(&self) -> Tensor<'t> {
        let checks = self.flat.tensors().into_iter().map(Tensor::all_finite);
        checks.reduce(Tensor::and).unwrap_or_else(|| self.tape.scalar(1.0, DType::Bool))
    }
}

impl<'t> Grads<'t, Scaled> {
    /// Divides by the loss scale, after checking the scaled values: a NaN or infinity among them makes the verdict
    /// false, and the optimizer then leaves parameters, state and counters as they are.
    ///
    /// `g / s`, as a multiplication by `1 / s` rounded to f32 (Micikevicius et al. 2018; PyTorch's `GradScaler`).
    ///
    /// # Panics
    /// If this is not the scaler that scaled the loss.
    #[track_caller]
    pub fn unscale(self, scaler: &LossScaler) -> Grads<'t, Unscaled> {
        assert!(
            self.scaler == *scaler,
            "unscale: the loss was scaled by {}, and this scaler has {scaler}",
            self.scaler
        );
        scaler.check_window(self.tape);
        for action in scaler.actions() {
            self.apply(*action);
        }
        let (flat, checked) = self.pass("unscale", &[("scale", scaler.to_string())], |flat| {
            let finite = self.all_finite();
            scaler.judge(finite);
            (flat.map(|_, g| scaler.unscaled(g)), vec![finite])
        });
        let mut grads = Grads {
            tape: self.tape,
            flat,
            present: self.present,
            absent: self.absent,
            verdict: self.verdict,
            scaler: LossScaler::none(),
            passes: self.passes,
            scale: PhantomData,
        };
        grads.and_verdict(checked[0]);
        grads
    }
}

impl<'t> Grads<'t, Unscaled> {
    /// Makes the step depend on every element being finite: a NaN or infinity skips it, and parameters, optimizer state
    /// and counters stay as they are.
    #[track_caller]
    pub fn check_finite(mut self) -> Self {
        let (_, checked) = self.pass("check_finite", &[], |flat| (flat.clone(), vec![self.all_finite()]));
        self.and_verdict(checked[0]);
        self
    }

    /// Scales all gradients together so that their global norm is at most `max_norm` (Pascanu et al. 2013):
    ///
    /// `n = |g|`, `g * min(1, max_norm / (n + 1e-6))`
    ///
    /// Gradients within the bound keep their bits. A norm that is not finite makes the verdict false, also where it
    /// overflows though every element is finite: no step is better than one along zeros. `max_norm` is in the unit of
    /// the gradient; a tensor may be given, and the gradient flows to it.
    ///
    /// Taps: `clip_by_global_norm/norm` (before clipping), `clip_by_global_norm/coefficient`.
    ///
    /// # Panics
    /// If `max_norm` is a number below 0, or NaN; or a tensor that is not a scalar.
    #[track_caller]
    pub fn clip_by_global_norm(mut self, max_norm: impl Into<Operand<'t>>) -> Self {
        let max_norm = max_norm.into();
        match max_norm {
            Operand::Value(v) => assert!(v >= 0.0, "clip_by_global_norm: max_norm is {v}, and must be at least 0"),
            Operand::Tensor(m) => {
                assert!(m.rank() == 0, "clip_by_global_norm: max_norm has shape {}, and must be a scalar", m.shape());
            }
        }
        let parameters = [("max_norm", max_norm.to_string())];
        let (flat, values) = self.pass("clip_by_global_norm", &parameters, |flat| {
            let norm = self.norm();
            let coefficient = (max_norm.like(norm).cast(norm.dtype()) / (norm + 1e-6)).minimum(1.0);
            (flat.map(|_, g| g * coefficient.cast(g.dtype())), vec![norm, coefficient, norm.is_finite()])
        });
        self.tape.tap("clip_by_global_norm/norm", values[0]);
        self.tape.tap("clip_by_global_norm/coefficient", values[1]);
        self.and_verdict(values[2]);
        self.with_flat(flat)
    }
}
