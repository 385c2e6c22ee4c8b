//! Derivatives of a recorded function: products with its Jacobian, the Jacobian, and the same for second derivatives.
//!
//! A function is a closure from tensors to a tensor of the same tape, which is recorded once. It gets its arguments
//! behind barriers, so each of them is a variable of its own. Tensors that it captures are constants to it, even if
//! they are computed from the same leaves; two arguments stay apart, even if they are the same tensor or one is
//! computed from the other.

use crate::{
    Tensor,
    grad::sweep,
    tape::{Tape, versions::Paths},
};

/// The arguments of a function to differentiate: a tensor, an array of tensors, or a vector of them. Types of your own
/// can implement it, too.
pub trait Arguments<'t>: Sized {
    /// One value for each pair of arguments: `Tensor`, `[[Tensor; N]; N]` or `Vec<Vec<Tensor>>`.
    type Pairs;

    /// The arguments, in order.
    fn tensors(&self) -> Vec<Tensor<'t>>;

    /// One tensor for each argument, in the same order.
    ///
    /// # Panics
    /// If there are more or fewer than arguments.
    fn collect(tensors: Vec<Tensor<'t>>) -> Self;

    /// One row for each argument, in the same order.
    ///
    /// # Panics
    /// If there are more or fewer than arguments.
    fn pair(rows: Vec<Self>) -> Self::Pairs;
}

impl<'t> Arguments<'t> for Tensor<'t> {
    type Pairs = Self;

    fn tensors(&self) -> Vec<Tensor<'t>> {
        vec![*self]
    }

    fn collect(tensors: Vec<Tensor<'t>>) -> Self {
        let [x]: [Tensor<'t>; 1] = tensors.try_into().expect("one tensor for one argument");
        x
    }

    fn pair(rows: Vec<Self>) -> Self {
        Self::collect(rows)
    }
}

impl<'t, const N: usize> Arguments<'t> for [Tensor<'t>; N] {
    type Pairs = [Self; N];

    fn tensors(&self) -> Vec<Tensor<'t>> {
        self.to_vec()
    }

    fn collect(tensors: Vec<Tensor<'t>>) -> Self {
        tensors.try_into().expect("one tensor for each argument")
    }

    fn pair(rows: Vec<Self>) -> [Self; N] {
        rows.try_into().expect("one row for each argument")
    }
}

impl<'t> Arguments<'t> for Vec<Tensor<'t>> {
    type Pairs = Vec<Self>;

    fn tensors(&self) -> Vec<Tensor<'t>> {
        self.clone()
    }

    fn collect(tensors: Vec<Tensor<'t>>) -> Self {
        tensors
    }

    fn pair(rows: Vec<Self>) -> Vec<Self> {
        rows
    }
}

/// The value `f(at)`, and the Jacobian-vector product: the derivative of `f` at `at` along `tangent`, in the value's
/// shape and type. Zeros if the value does not depend on `at`.
///
/// It records 2 backward passes, whatever the sizes: the product with the Jacobian's transpose is linear in its
/// cotangent, and its own transpose is the product with the Jacobian. A run computes only those values of the first pass
/// that the second reads. A hook ([`Tensor::on_grad`]) in `f` that is not linear acts as its derivative at 0.
///
/// Gradients flow on through both results, to `at`, to `tangent` and to what `f` captures. The second derivative of a
/// network by its input, in a physics-informed loss (a closure that has a name of its own names the lifetime, too):
///
/// ```
/// # use wgrad::{Tensor, jvp};
/// fn residual<'t>(w: Tensor<'t>, x: Tensor<'t>) -> Tensor<'t> {
///     let u = |x: Tensor<'t>| (w * x).sin();
///     let u_x = |x: Tensor<'t>| jvp(u, x, x.ones_like()).1;
///     let u_xx = jvp(u_x, x, x.ones_like()).1;
///     (u_xx + u(x)).square().mean()
/// }
/// # let t = wgrad::Tape::default();
/// # let [w, x] = ["w", "x"].map(|name| t.input(name, [3], wgrad::DType::F64));
/// # assert!(residual(w, x).grad_wrt(&[w])[0].is_some());
/// ```
///
/// # Panics
/// If there are no arguments, or one is not of floats; if a tangent has not its argument's shape and type; if `f` gives
/// no floats; if a tensor is another tape's.
#[track_caller]
pub fn jvp<'t, A: Arguments<'t>>(f: impl FnOnce(A) -> Tensor<'t>, at: A, tangent: A) -> (Tensor<'t>, Tensor<'t>) {
    let (point, v) = (Point::new("jvp", &at), tangent.tensors());
    point.check("tangent", &v);
    let f = point.record(f);
    let (probe, transposed) = f.transposed();
    (f.y, f.along(probe, transposed.into_iter().zip(v)))
}

/// The value `f(at)`, and the vector-Jacobian product: for each argument the gradient of `<cotangent, f>`, in the
/// argument's shape and type. Zeros for an argument that the value does not depend on.
///
/// It records 1 backward pass. Gradients flow on through the results. See [`Tensor::vjp`] for a value that is recorded
/// already.
///
/// ```
/// # use wgrad::{DType, Tape, vjp};
/// let t = Tape::default();
/// let (x, w) = (t.input("x", [3], DType::F64), t.input("w", [2, 3], DType::F64));
/// let (y, [dx, dw]) = vjp(|[x, w]| w.matmul(x).tanh(), [x, w], t.input("dy", [2], DType::F64));
/// # assert_eq!((y.shape(), dx.shape(), dw.shape()), ([2].into(), [3].into(), [2, 3].into()));
/// ```
///
/// # Panics
/// If there are no arguments, or one is not of floats; if `f` gives no floats, or the cotangent has not its shape and
/// type; if a tensor is another tape's.
#[track_caller]
pub fn vjp<'t, A: Arguments<'t>>(f: impl FnOnce(A) -> Tensor<'t>, at: A, cotangent: Tensor<'t>) -> (Tensor<'t>, A) {
    let f = Point::new("vjp", &at).record(f);
    f.point.tape.own(cotangent, f.point.name);
    f.point.fits("the cotangent", cotangent, "the value", f.y);
    (f.y, A::collect(f.zeros_where_none(f.sweep(&[(f.y, cotangent)]))))
}

/// The Jacobian of `f` at `at`: for each argument a tensor of the value's shape followed by the argument's, in the
/// argument's type. Element `[i, j]` is the derivative of the value's element `i` by the argument's element `j`; zeros
/// where there is no dependence.
///
/// It records `min(m, n + 1)` backward passes for `m` elements of the value and `n` elements of all arguments: row by
/// row, or column by column if those are fewer. Programs grow with that number, so for long vectors use [`vjp`] and
/// [`jvp`]. Gradients flow on through the result.
///
/// ```
/// # use wgrad::{DType, Tape, jacobian};
/// let t = Tape::default();
/// let x = t.input("x", [4], DType::F64);
/// let j = jacobian(|x| x.softmax(0), x);
/// # assert_eq!(j.shape(), [4, 4].into());
/// ```
///
/// # Panics
/// If there are no arguments, or one is not of floats; if `f` gives no floats; if a tensor is another tape's.
#[track_caller]
pub fn jacobian<'t, A: Arguments<'t>>(f: impl FnOnce(A) -> Tensor<'t>, at: A) -> A {
    let f = Point::new("jacobian", &at).record(f);
    A::collect(f.jacobian())
}

/// The Hessian of a scalar `f` at `at`: for each pair of arguments a tensor of the first one's shape followed by the
/// second one's, in the second one's type. Element `[i, j]` is the second derivative by the elements `i` and `j`; zeros
/// where there is no dependence.
///
/// It records `1 + n` backward passes for `n` elements of all arguments. Programs grow with that number, so for many
/// parameters use [`hvp`]. Gradients flow on through the result.
///
/// ```
/// # use wgrad::{DType, Tape, hessian};
/// let t = Tape::default();
/// let (x, y) = (t.input("x", [], DType::F64), t.input("y", [], DType::F64));
/// let [[xx, xy], [yx, yy]] = hessian(|[x, y]| (1 - x).square() + 100 * (y - x.square()).square(), [x, y]);
/// # for block in [xx, xy, yx, yy] { assert_eq!(block.rank(), 0); }
/// ```
///
/// # Panics
/// If there are no arguments, or one is not of floats; if `f` gives no float scalar; if a tensor is another tape's.
#[track_caller]
pub fn hessian<'t, A: Arguments<'t>>(f: impl FnOnce(A) -> Tensor<'t>, at: A) -> A::Pairs {
    let f = Point::new("hessian", &at).record(f);
    let gradients = f.gradients();
    let mut rows = Vec::with_capacity(gradients.len());
    for g in gradients {
        rows.push(A::collect(f.by_rows(g)));
    }
    A::pair(rows)
}

/// The product of a scalar `f`'s Hessian at `at` with a vector: for each argument a tensor of its shape and type. Zeros
/// for an argument on which the gradient along the vector does not depend.
///
/// It records 2 backward passes, whatever the sizes: the second is that of the gradient's inner product with `v`.
/// Gradients flow on through the result. For all parameters of a model at once:
///
/// ```
/// # use wgrad::{Flat, ParamSet, Tape, Tensor, hvp};
/// fn curvature<'t>(t: &'t Tape, params: &ParamSet, loss: impl Fn() -> Tensor<'t>, v: Vec<Tensor<'t>>) -> Vec<Tensor<'t>> {
///     let (arenas, values): (Vec<_>, Vec<_>) = t.arenas(params).parts().iter().copied().unzip();
///     let f = |x: Vec<_>| t.with_params(&Flat::new(arenas.into_iter().zip(x).collect()), loss);
///     hvp(f, values, v)
/// }
/// ```
///
/// # Panics
/// If there are no arguments, or one is not of floats; if a part of `v` has not its argument's shape and type; if `f`
/// gives no float scalar; if a tensor is another tape's.
#[track_caller]
pub fn hvp<'t, A: Arguments<'t>>(f: impl FnOnce(A) -> Tensor<'t>, at: A, v: A) -> A {
    let (point, v) = (Point::new("hvp", &at), v.tensors());
    point.check("vector", &v);
    let f = point.record(f);
    let seeds: Vec<_> = f.gradients().into_iter().zip(v).collect();
    A::collect(f.zeros_where_none(f.sweep(&seeds)))
}

/// The arguments that a function is differentiated at.
struct Point<'t> {
    name: &'static str,
    tape: &'t Tape,
    at: Vec<Tensor<'t>>,
}

impl<'t> Point<'t> {
    #[track_caller]
    fn new(name: &'static str, at: &impl Arguments<'t>) -> Self {
        let at = at.tensors();
        let Some(first) = at.first() else { panic!("{name}: a function of no arguments has no derivative") };
        let tape = first.tape;
        for (i, x) in at.iter().enumerate() {
            tape.own(*x, name);
            tape.require(x.dtype().is_float(), name, &at, || format!("argument {i} is not of floats"));
        }
        Self { name, tape, at }
    }

    /// Requires one vector of each argument's shape and type.
    #[track_caller]
    fn check(&self, what: &str, vectors: &[Tensor<'t>]) {
        let (have, want) = (vectors.len(), self.at.len());
        self.tape.require(have == want, self.name, &self.at, || format!("{have} {what}s for {want} arguments"));
        for (i, (v, x)) in vectors.iter().zip(&self.at).enumerate() {
            self.tape.own(*v, self.name);
            self.fits(&format!("the {what} of argument {i}"), *v, "the argument", *x);
        }
    }

    #[track_caller]
    fn fits(&self, what: &str, v: Tensor<'t>, of: &str, x: Tensor<'t>) {
        let fits = (v.dtype(), v.shape()) == (x.dtype(), x.shape());
        self.tape.require(fits, self.name, &self.at, || {
            format!("{what} is {}{}, and {of} is {}{}", v.dtype(), v.shape(), x.dtype(), x.shape())
        });
    }

    #[track_caller]
    fn record<A: Arguments<'t>>(self, f: impl FnOnce(A) -> Tensor<'t>) -> Recorded<'t> {
        let mut x = Vec::with_capacity(self.at.len());
        for argument in &self.at {
            x.push(argument.barrier());
        }
        let y = f(A::collect(x.clone()));
        self.tape.own(y, self.name);
        self.tape.require(y.dtype().is_float(), self.name, &self.at, || {
            format!("the function gives {}{}, which has no derivative", y.dtype(), y.shape())
        });
        let paths = self.tape.paths(y, &x);
        Recorded { point: self, x, y, paths }
    }
}

/// A function on its tape.
struct Recorded<'t> {
    point: Point<'t>,
    /// The arguments that it was given.
    x: Vec<Tensor<'t>>,
    y: Tensor<'t>,
    paths: Paths,
}

impl<'t> Recorded<'t> {
    /// The cotangents of the arguments.
    #[track_caller]
    fn sweep(&self, seeds: &[(Tensor<'t>, Tensor<'t>)]) -> Vec<Option<Tensor<'t>>> {
        sweep(self.point.tape, seeds, &self.x, &self.paths)
    }

    #[track_caller]
    fn zeros_where_none(&self, found: Vec<Option<Tensor<'t>>>) -> Vec<Tensor<'t>> {
        let mut all = Vec::with_capacity(found.len());
        for (x, found) in self.x.iter().zip(found) {
            all.push(match found {
                Some(found) => found,
                None => x.zeros_like(),
            });
        }
        all
    }

    /// The gradient of a scalar function.
    #[track_caller]
    fn gradients(&self) -> Vec<Tensor<'t>> {
        let Point { name, tape, at } = &self.point;
        tape.require(self.y.rank() == 0, name, at, || {
            format!("the function gives {}{}, and must give a scalar", self.y.dtype(), self.y.shape())
        });
        self.zeros_where_none(self.sweep(&[(self.y, self.y.ones_like())]))
    }

    /// The product of the Jacobian's transpose with a probe, and the probe.
    #[track_caller]
    fn transposed(&self) -> (Tensor<'t>, Vec<Option<Tensor<'t>>>) {
        let probe = self.y.zeros_like().barrier();
        (probe, self.sweep(&[(self.y, probe)]))
    }

    /// The derivative along vectors, each given with the part of the transposed product that belongs to its argument.
    #[track_caller]
    fn along(
        &self,
        probe: Tensor<'t>,
        parts: impl IntoIterator<Item = (Option<Tensor<'t>>, Tensor<'t>)>,
    ) -> Tensor<'t> {
        let seeds: Vec<_> = parts.into_iter().filter_map(|(part, v)| Some((part?, v))).collect();
        match sweep(self.point.tape, &seeds, &[probe], &self.paths)[0] {
            Some(found) => found,
            None => self.y.zeros_like(),
        }
    }

    /// The function's Jacobian, by fewer passes.
    #[track_caller]
    fn jacobian(&self) -> Vec<Tensor<'t>> {
        let elements: usize = self.x.iter().map(|x| x.numel()).sum();
        if self.y.numel() <= elements { self.by_rows(self.y) } else { self.by_columns() }
    }

    /// The Jacobian of a value that depends on the arguments: the function's, or a gradient of it.
    #[track_caller]
    fn by_rows(&self, y: Tensor<'t>) -> Vec<Tensor<'t>> {
        let mut rows = vec![vec![]; self.x.len()];
        for i in 0..y.numel() {
            let row = self.zeros_where_none(self.sweep(&[(y, one_at(y, i))]));
            rows.iter_mut().zip(row).for_each(|(rows, part)| rows.push(part));
        }
        let mut all = Vec::with_capacity(self.x.len());
        for (x, rows) in self.x.iter().zip(rows) {
            let shape = [&y.shape()[..], &x.shape()[..]].concat();
            all.push(match y.numel() * x.numel() {
                0 => self.point.tape.full(shape, 0.0, x.dtype()),
                _ => Tensor::stack(&rows).reshape(shape),
            });
        }
        all
    }

    /// The function's own Jacobian.
    #[track_caller]
    fn by_columns(&self) -> Vec<Tensor<'t>> {
        let (probe, transposed) = self.transposed();
        let mut all = Vec::with_capacity(self.x.len());
        for (x, part) in self.x.iter().zip(transposed) {
            let shape = [&self.y.shape()[..], &x.shape()[..]].concat();
            let mut columns = Vec::with_capacity(x.numel());
            for j in 0..x.numel() {
                columns.push(self.along(probe, [(part, one_at(*x, j))]).reshape([self.y.numel()]));
            }
            all.push(match self.y.numel() * x.numel() {
                0 => self.point.tape.full(shape, 0.0, x.dtype()),
                _ => Tensor::stack(&columns).transpose().reshape(shape).cast(x.dtype()),
            });
        }
        all
    }
}

/// Zeros with a one at a row-major position, of some shape and type.
#[track_caller]
fn one_at<'t>(like: Tensor<'t>, position: usize) -> Tensor<'t> {
    like.tape.iota(like.numel()).equals(position as f64).cast(like.dtype()).reshape(like.shape())
}
