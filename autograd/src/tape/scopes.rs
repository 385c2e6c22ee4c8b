//! Scopes of a tape: the names that nodes are recorded under, and the precision within.

use super::{Scope, ScopeId, Tape};
use crate::{DType, Tensor};
use std::fmt;

/// A scope that is being recorded in, until this is dropped: see [`Tape::enter`].
#[must_use = "the scope ends where this is dropped"]
pub struct Entered<'t> {
    tape: &'t Tape,
    before: Option<ScopeId>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.tape.inner.borrow_mut().here.scope = self.before;
    }
}

impl fmt::Debug for Entered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").field("before", &self.before).finish_non_exhaustive()
    }
}

impl Tape {
    /// Records what `f` does under a name.
    pub fn scoped<R>(&self, name: &str, f: impl FnOnce() -> R) -> R {
        let _scope = self.enter(name);
        f()
    }

    /// As [`Tape::scoped`], for everything recorded until the result is dropped. In a `#[track_caller]` function,
    /// errors still name the caller's line, which they do not within a closure.
    pub fn enter(&self, name: &str) -> Entered<'_> {
        self.entered(self.child_scope(self.current_scope(), name, None))
    }

    /// Records what `f` does as turn `turn` of a loop of this name; the printer folds turns that are alike.
    pub fn scoped_turn<R>(&self, name: &str, turn: usize, f: impl FnOnce() -> R) -> R {
        let _scope = self.enter_turn(name, turn);
        f()
    }

    /// As [`Tape::scoped_turn`], until the result is dropped: see [`Tape::enter`].
    pub fn enter_turn(&self, name: &str, turn: usize) -> Entered<'_> {
        self.entered(self.child_scope(self.current_scope(), name, Some(turn)))
    }

    pub(crate) fn current_scope(&self) -> ScopeId {
        self.inner.borrow().here.scope.unwrap_or(ScopeId(0))
    }

    pub(crate) fn child_scope(&self, parent: ScopeId, name: &str, turn: Option<usize>) -> ScopeId {
        let inner = &mut *self.inner.borrow_mut();
        let scope = Scope { parent, name: name.into(), turn };
        *inner.scope_ids.entry(scope).or_insert_with_key(|scope| {
            inner.scopes.push(scope.clone());
            ScopeId(inner.scopes.len() as u32 - 1)
        })
    }

    pub(crate) fn scope(&self, id: ScopeId) -> Scope {
        self.inner.borrow().scopes[id.0 as usize].clone()
    }

    pub(crate) fn in_scope<R>(&self, scope: ScopeId, f: impl FnOnce() -> R) -> R {
        let _scope = self.entered(scope);
        f()
    }

    fn entered(&self, scope: ScopeId) -> Entered<'_> {
        Entered { tape: self, before: self.inner.borrow_mut().here.scope.replace(scope) }
    }

    /// Records contractions of f32 tensors in half precision (Micikevicius et al. 2018, "Mixed precision training"):
    ///
    /// | operation | with `F16` |
    /// |---|---|
    /// | `matmul`, `matmul_t`, `conv1d`, `conv2d`; a recurrent layer's product with its inputs; `attention`'s product with values, if it has a mask or dropout | operands and result rounded to f16, products summed wider; the result is f32 again |
    /// | `attention` | queries, keys and values rounded to f16; scores, soft-max and sums in f32; the result rounded to f16, and f32 again |
    /// | their gradients, of activations and of weights | computed and rounded likewise, wherever the sweep is recorded |
    /// | several gradients of one value or weight | summed in f32, rounded once |
    /// | elementwise operations, `dot`, sums, means, norms, soft-max, losses, embeddings, a recurrent layer's steps | f32, and so are their gradients |
    /// | parameters, and their gradients in the arena | f32, but gradients that were rounded to f16 have its range |
    /// | contractions of f64, or of f16 | left as they are |
    ///
    /// So cotangents are rounded to f16 at each contraction: magnitudes below 2^-25 (3e-8) become 0, those from 65520
    /// on infinite. Scale the loss, and unscale the gradients; after an overflow the step is then skipped:
    ///
    /// ```
    /// # use wgrad::{DType, LossScaler, Optimizer, ParamSet, Tape, Tensor};
    /// # fn update<'t>(t: &'t Tape, model: &dyn Fn() -> Tensor<'t>, params: &ParamSet, scaler: &LossScaler, sgd: &dyn Optimizer) {
    /// let loss = t.autocast(DType::F16, || model());
    /// sgd.step(scaler.scale(loss).grad(params).unscale(scaler));
    /// scaler.update(t);
    /// # }
    /// ```
    ///
    /// Policies nest, and the innermost holds; `F32` switches autocast off.
    ///
    /// # Panics
    /// If the type is neither f16 nor f32.
    #[track_caller]
    pub fn autocast<R>(&self, dtype: DType, f: impl FnOnce() -> R) -> R {
        let half = match dtype {
            DType::F16 => Some(dtype),
            DType::F32 => None,
            _ => panic!("autocast to {dtype} is not supported: use f16, or f32 to switch it off{}", self.recorded_at()),
        };
        let before = std::mem::replace(&mut self.inner.borrow_mut().here.autocast, half);
        let result = f();
        self.inner.borrow_mut().here.autocast = before;
        result
    }

    /// The type that a contraction of these operands is computed in, if it is not their own.
    pub(crate) fn autocasts(&self, a: Tensor<'_>, b: Tensor<'_>) -> Option<DType> {
        let half = self.inner.borrow().here.autocast?;
        let casts = a.dtype() == DType::F32 && b.dtype() == DType::F32;
        self.inner.borrow_mut().here.half |= casts;
        casts.then_some(half)
    }
}
