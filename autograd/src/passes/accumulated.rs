//! Hooks that run after a micro-batch has been added to an accumulator.

use crate::{
    Tensor,
    grads::Grads,
    passes::Accumulator,
    store::{Param, StateId},
    tape::hook::check_replacement,
};
use std::{fmt, sync::Arc};

type HookFn = Arc<dyn for<'a> Fn(Tensor<'a>) -> Tensor<'a> + Send + Sync>;

/// The hooks of an accumulator, in the order of registration.
#[derive(Clone, Default)]
pub(super) struct AccumulatedHooks(Vec<(Param, HookFn)>);

impl fmt::Debug for AccumulatedHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(param, _)| param)).finish()
    }
}

impl AccumulatedHooks {
    /// The sum of an arena after its hooks. Hooks of parameters without a gradient in this micro-batch do not run.
    #[track_caller]
    pub fn run<'t, S>(&self, grads: &Grads<'t, S>, arena: StateId, sum: Tensor<'t>) -> Tensor<'t> {
        let tape = grads.tape;
        let mut sum = sum;
        // A loop, not a closure: errors name the caller's line.
        for (param, hook) in self.0.iter().filter(|(param, _)| grads.present.contains(*param)) {
            let decl = tape.layout.param(*param);
            if decl.arena != arena {
                continue;
            }
            let (start, len) = (decl.offset, decl.shape.numel());
            let own = sum.slice(0, start, len).reshape(&decl.shape);
            let replaced = tape.scoped("hook", || hook(own));
            tape.own(replaced, "hook");
            check_replacement(own, replaced);
            if replaced.id() != own.id() {
                let end = start + len;
                let rest = sum.slice(0, end, sum.numel() - end);
                sum = Tensor::concat(&[sum.slice(0, 0, start), replaced.reshape([len]), rest], 0);
            }
        }
        sum
    }
}

impl<S> Accumulator<S> {
    /// Registers a hook on the running sum of a parameter's gradients (PyTorch's `register_post_accumulate_grad_hook`):
    /// it runs after each addition, and its result replaces the sum. Several run in the order of registration. With
    /// weighting by tokens, the sum is that of gradients times tokens.
    ///
    /// It does not run for a micro-batch without a gradient of the parameter, and has no effect for one that is left
    /// out. A hook of the parameter itself, [`crate::Tape::on_param_grad`], sees each gradient before it is added.
    ///
    /// # Panics
    /// If the parameter is not among those accumulated; while it is recorded, if the hook changes shape or type.
    #[must_use]
    #[track_caller]
    pub fn on_accumulated(
        mut self,
        param: Param,
        hook: impl for<'a> Fn(Tensor<'a>) -> Tensor<'a> + Send + Sync + 'static,
    ) -> Self {
        assert!(self.params.contains(param), "on_accumulated: {param:?} is not among the parameters accumulated");
        self.hooks.0.push((param, Arc::new(hook)));
        self
    }
}
