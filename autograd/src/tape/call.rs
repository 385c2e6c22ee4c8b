//! Functions over tensors, by name: an error within one names the function, its arguments and its caller's line.

use crate::{Site, Tensor, node::NodeId, tape::Tape};
use std::fmt;

/// More tensors than any function of this crate takes.
const MOST: usize = 6;

/// The name of a function, and the tensors that it was given.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    name: &'static str,
    of: [Option<NodeId>; MOST],
}

/// A function that is being recorded, until this is dropped: see [`Tape::call`].
#[must_use = "the function ends where this is dropped"]
pub struct Call<'t> {
    tape: &'t Tape,
    /// The line and the function that nodes were attributed to before. `None` within the call of another function: then
    /// this call changes nothing.
    before: Option<(Option<Site>, Option<Named>)>,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("outermost", &self.before.is_some()).finish_non_exhaustive()
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let inner = &mut *self.tape.inner.borrow_mut();
            (inner.here.site, inner.here.named) = before;
        }
    }
}

impl Tape {
    /// Begins a function over these tensors (the first six count), which lasts until the result is dropped. Until then
    /// nodes are attributed to the caller's line, and errors name the function (the outermost one, if functions nest).
    /// Use it in your own functions over tensors: mark them `#[track_caller]`, and record nothing that may panic in a
    /// closure.
    ///
    /// ```should_panic
    /// # use wgrad::{DType, Tape, Tensor};
    /// #[track_caller]
    /// fn huber<'t>(x: Tensor<'t>, y: Tensor<'t>) -> Tensor<'t> {
    ///     let _call = x.tape().call("huber", &[x, y]);
    ///     let d = (x - y).abs();
    ///     d.less(1.0).select(d * d * 0.5, d - 0.5).mean()
    /// }
    /// let t = Tape::default();
    /// // huber of f32[3] and f32[4]: sub of f32[3] and f32[4]: the shapes do not broadcast
    /// huber(t.input("x", [3], DType::F32), t.input("y", [4], DType::F32));
    /// ```
    ///
    /// # Panics
    /// If a tensor is another tape's.
    #[track_caller]
    pub fn call<'t>(&'t self, name: &'static str, of: &[Tensor<'t>]) -> Call<'t> {
        if self.inner.borrow().here.named.is_some() {
            return Call { tape: self, before: None };
        }
        let mut ids = [None; MOST];
        for (id, x) in ids.iter_mut().zip(of) {
            *id = Some(self.own(*x, name));
        }
        let inner = &mut *self.inner.borrow_mut();
        let before = (inner.here.site, inner.here.named);
        inner.here.site = Some(inner.here.site.unwrap_or(Site::caller()));
        inner.here.named = Some(Named { name, of: ids });
        Call { tape: self, before: Some(before) }
    }

    /// Attributes what `f` records to another source line, for code that records on behalf of its caller.
    pub fn at_site<R>(&self, site: Site, f: impl FnOnce() -> R) -> R {
        let _call = self.at(site);
        f()
    }

    /// As [`Tape::at_site`], for everything recorded until the result is dropped.
    pub fn at(&self, site: Site) -> Call<'_> {
        let inner = &mut *self.inner.borrow_mut();
        Call { tape: self, before: Some((inner.here.site.replace(site), inner.here.named)) }
    }

    /// Attributes what `f` records to the caller's line, unless another line is set already.
    #[track_caller]
    pub(crate) fn at_caller<R>(&self, f: impl FnOnce() -> R) -> R {
        self.at_site(self.site(), f)
    }

    /// Panics unless `holds`, in the name of `op` of these tensors and of the function that it is a part of.
    #[track_caller]
    pub(crate) fn require(&self, holds: bool, op: &str, of: &[Tensor<'_>], why: impl FnOnce() -> String) {
        if !holds {
            let why = why();
            panic!("{}", self.refusal(op, of, &why));
        }
    }

    /// The message: `<op> of <tensors>: <why>`.
    #[track_caller]
    pub(crate) fn refusal(&self, op: &str, of: &[Tensor<'_>], why: &str) -> String {
        let text = |op: &str, of: &[Tensor<'_>]| {
            let of: Vec<String> = of.iter().map(|x| format!("{}{}", x.dtype(), x.shape())).collect();
            if of.is_empty() { op.to_string() } else { format!("{op} of {}", of.join(" and ")) }
        };
        let named = self.inner.borrow().here.named;
        let at = self.recorded_at();
        let Some(Named { name, of: ids }) = named else { return format!("{}: {why}{at}", text(op, of)) };
        let own: Vec<Tensor<'_>> = ids.into_iter().flatten().map(|id| Tensor { tape: self, id }).collect();
        let same = own.iter().map(|x| x.id).eq(of.iter().map(|x| x.id));
        if op == name || same {
            return format!("{}: {why}{at}", text(name, if op == name { of } else { &own }));
        }
        format!("{}: {}: {why}{at}", text(name, &own), text(op, of))
    }
}
