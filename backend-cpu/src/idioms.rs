//! Idioms: short sequences of instructions, common in training, that run as one loop. What lies between them never leaves
//! the machine's registers; the bits are those of the instructions one by one.

use crate::{
    lanes::{self, Lanes, Number},
    schedule::{Action, Cell, Extent, Home, Step},
};
use std::ops::{Add, Div, Mul, Sub};
use wgrad::{
    DType,
    op::{Binary, Unary},
};

/// What is computed of vectors `x` and `y`, and of scalars `s`, `t` and `u`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Idiom {
    /// `x * s * t`.
    Scale,
    /// `x * s * t * u`.
    ScaleAgain,
    /// `x * s + y`.
    MulAdd,
    /// `x * s - y`.
    MulSub,
    /// `y - x * s`.
    SubMul,
    /// `x * s + y * t`: a running mean.
    Mix,
    /// `x * s + y * y * t`: a running mean of squares.
    MixSquares,
    /// `s * x / (sqrt(y) * t + u)`: a step in units of a root. Where `s` and `t` differ within a block they are vectors.
    Ratio,
    /// As `Ratio`, with 0 for the root of what equals 0.
    GuardedRatio,
}

/// An idiom, with the cells of its operands. Those that it does not have repeat others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    pub idiom: Idiom,
    pub vectors: [usize; 2],
    pub scalars: [usize; 3],
}

/// A float that idioms are of.
pub(crate) trait Float:
    Number + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn root(self) -> Self;
}

impl Float for f32 {
    #[inline(always)]
    fn root(self) -> Self {
        self.sqrt()
    }
}

impl Float for f64 {
    #[inline(always)]
    fn root(self) -> Self {
        self.sqrt()
    }
}

/// 0 for what equals 0, which of a root says its sign.
#[inline(always)]
fn guarded<T: Float>(y: T) -> T {
    if y == T::default() { T::default() } else { y.root() }
}

/// Computes an idiom.
pub(crate) fn run<T: Float>(idiom: Idiom, [x, y]: [Lanes<T>; 2], scalars: [Lanes<T>; 3], out: &mut [T]) {
    let [Lanes::Splat(s), Lanes::Splat(t), Lanes::Splat(u)] = scalars else {
        return apart(idiom, [x, y], scalars, out);
    };
    match idiom {
        Idiom::Scale => lanes::map1(x, out, |x| x * s * t),
        Idiom::ScaleAgain => lanes::map1(x, out, |x| x * s * t * u),
        Idiom::MulAdd => lanes::map2(x, y, out, |x, y| x * s + y),
        Idiom::MulSub => lanes::map2(x, y, out, |x, y| x * s - y),
        Idiom::SubMul => lanes::map2(x, y, out, |x, y| y - x * s),
        Idiom::Mix => lanes::map2(x, y, out, |x, y| x * s + y * t),
        Idiom::MixSquares => lanes::map2(x, y, out, |x, y| x * s + y * y * t),
        Idiom::Ratio => lanes::map2(x, y, out, |x, y| s * x / (y.root() * t + u)),
        Idiom::GuardedRatio => lanes::map2(x, y, out, |x, y| s * x / (guarded(y) * t + u)),
    }
}

/// How many elements are computed at a time, instruction by instruction.
const FEW: usize = 64;

/// A ratio whose scalars differ within the block.
fn apart<T: Float>(idiom: Idiom, [x, y]: [Lanes<T>; 2], scalars: [Lanes<T>; 3], out: &mut [T]) {
    for (i, out) in out.chunks_mut(FEW).enumerate() {
        let few = |lanes: Lanes<'_, T>| match lanes {
            Lanes::Slice(x) => std::array::from_fn(|j| x.get(i * FEW + j).copied().unwrap_or_default()),
            Lanes::Splat(x) => [x; FEW],
            Lanes::Lines(_) | Lanes::Tile(_) => unreachable!("idioms are of whole blocks"),
        };
        let ([x, y], [s, t, u]): ([[T; FEW]; 2], [[T; FEW]; 3]) = ([x, y].map(few), scalars.map(few));
        let root = match idiom {
            Idiom::Ratio => T::root,
            Idiom::GuardedRatio => guarded,
            _ => unreachable!("{idiom:?} has one value for each of its scalars"),
        };
        out.iter_mut().enumerate().for_each(|(j, out)| *out = s[j] * x[j] / (root(y[j]) * t[j] + u[j]));
    }
}

/// Joins the steps of a phase where they form idioms. Values that are found in other phases, or stored at once, stay.
pub(crate) fn join(steps: &mut Vec<Step>, cells: &[Cell]) {
    let mut uses = vec![0; cells.len()];
    let mut made = vec![None; cells.len()];
    for (i, step) in steps.iter().enumerate() {
        step.action.operands().for_each(|cell| uses[cell] += 1);
        step.to.iter().for_each(|&cell| made[cell] = Some(i));
    }
    let mut gone = vec![false; steps.len()];
    for i in 0..steps.len() {
        let found = Finder { steps, cells, uses: &uses, made: &made }.idiom(&steps[i]);
        if let Some((joined, absorbed)) = found {
            steps[i].action = Action::Joined(joined);
            absorbed.into_iter().for_each(|step| gone[step] = true);
        }
    }
    let mut gone = gone.into_iter();
    steps.retain(|_| !gone.next().expect("one for each"));
}

/// A look at the steps before one.
struct Finder<'a> {
    steps: &'a [Step],
    cells: &'a [Cell],
    uses: &'a [usize],
    made: &'a [Option<usize>],
}

/// A product of a vector and a scalar, and the steps that it takes.
struct Product {
    x: usize,
    s: usize,
    steps: Vec<usize>,
}

impl Finder<'_> {
    /// The idiom that a step ends, and the steps before it that it takes the place of.
    fn idiom(&self, step: &Step) -> Option<(Joined, Vec<usize>)> {
        let to = &self.cells[step.to?];
        if !matches!(to.dtype, DType::F32 | DType::F64) || to.extent != Extent::Block {
            return None;
        }
        let Action::Binary(op, a, b) = step.action else { return None };
        match op {
            Binary::Mul => {
                let (x, last) = self.vector_and_scalar(a, b)?;
                let before = self.private(x)?;
                let (idiom, x, [s, t, u]) = match self.steps[before].action {
                    Action::Binary(Binary::Mul, a, b) => {
                        let (x, s) = self.vector_and_scalar(a, b)?;
                        (Idiom::Scale, x, [s, last, last])
                    }
                    Action::Joined(Joined { idiom: Idiom::Scale, vectors: [x, _], scalars: [s, t, _] }) => {
                        (Idiom::ScaleAgain, x, [s, t, last])
                    }
                    _ => return None,
                };
                Some((Joined { idiom, vectors: [x, x], scalars: [s, t, u] }, vec![before]))
            }
            Binary::Add => match (self.product(a), self.product(b)) {
                (Some(p), Some(q)) => Some(self.mix(p, q)),
                (Some(p), None) if self.is_vector(b) => Some(with(Idiom::MulAdd, p, b)),
                (None, Some(q)) if self.is_vector(a) => Some(with(Idiom::MulAdd, q, a)),
                _ => None,
            },
            Binary::Sub => match (self.product(a), self.product(b)) {
                (Some(p), _) if self.is_vector(b) => Some(with(Idiom::MulSub, p, b)),
                (_, Some(q)) if self.is_vector(a) => Some(with(Idiom::SubMul, q, a)),
                _ => None,
            },
            Binary::Div => self.ratio(a, b),
            _ => None,
        }
    }

    /// The sum of two products.
    fn mix(&self, p: Product, q: Product) -> (Joined, Vec<usize>) {
        let square = |p: &Product| {
            let step = self.private(p.x)?;
            match self.steps[step].action {
                Action::Binary(Binary::Mul, a, b) if a == b && self.is_vector(a) => Some((a, step)),
                _ => None,
            }
        };
        let (idiom, x, s, y, t, more) = match (square(&p), square(&q)) {
            (_, Some((y, step))) => (Idiom::MixSquares, p.x, p.s, y, q.s, Some(step)),
            (Some((y, step)), None) => (Idiom::MixSquares, q.x, q.s, y, p.s, Some(step)),
            (None, None) => (Idiom::Mix, p.x, p.s, q.x, q.s, None),
        };
        let steps = p.steps.into_iter().chain(q.steps).chain(more).collect();
        (Joined { idiom, vectors: [x, y], scalars: [s, t, t] }, steps)
    }

    /// `s * x / (sqrt(y) * t + u)`.
    fn ratio(&self, above: usize, below: usize) -> Option<(Joined, Vec<usize>)> {
        let [n, d] = [self.private(above)?, self.private(below)?];
        let Action::Binary(Binary::Mul, s, x) = self.steps[n].action else { return None };
        let Action::Binary(Binary::Add, h, u) = self.steps[d].action else { return None };
        let (h, u) = if self.is_scalar(u) { (h, u) } else { (u, h) };
        let h = self.private(h).filter(|_| self.is_scalar(u))?;
        let Action::Binary(Binary::Mul, r, t) = self.steps[h].action else { return None };
        let root = self.private(r)?;
        let (idiom, y, roots) = match self.steps[root].action {
            Action::Unary(Unary::Sqrt, y) => (Idiom::Ratio, y, vec![root]),
            Action::Select(zero, nothing, inner) => {
                let (inner_step, zero_step) = (self.private(inner)?, self.made_for(zero, 2)?);
                let Action::Unary(Unary::Sqrt, safe) = self.steps[inner_step].action else { return None };
                let safe_step = self.private(safe)?;
                let Action::Select(same, one, y) = self.steps[safe_step].action else { return None };
                let Action::Binary(Binary::Eq, a, b) = self.steps[zero_step].action else { return None };
                let compared = (a == y && self.is(b, 0.0)) || (b == y && self.is(a, 0.0));
                if same != zero || !compared || !self.is(nothing, 0.0) || !self.is(one, 1.0) {
                    return None;
                }
                (Idiom::GuardedRatio, y, vec![root, inner_step, safe_step, zero_step])
            }
            _ => return None,
        };
        let fits = |cell: usize| self.is_vector(cell) || self.is_scalar(cell);
        if !self.is_vector(x) || !self.is_vector(y) || !fits(s) || !fits(t) {
            return None;
        }
        let steps = roots.into_iter().chain([n, d, h]).collect();
        Some((Joined { idiom, vectors: [x, y], scalars: [s, t, u] }, steps))
    }

    fn is_scalar(&self, cell: usize) -> bool {
        self.cells[cell].extent == Extent::One
    }

    fn is_vector(&self, cell: usize) -> bool {
        self.cells[cell].extent == Extent::Block
    }

    fn is(&self, cell: usize, value: f64) -> bool {
        matches!(self.cells[cell].home, Home::Const(c) if c.to_bits() == value.to_bits())
    }

    fn vector_and_scalar(&self, a: usize, b: usize) -> Option<(usize, usize)> {
        match (self.is_vector(a) && self.is_scalar(b), self.is_scalar(a) && self.is_vector(b)) {
            (true, _) => Some((a, b)),
            (_, true) => Some((b, a)),
            _ => None,
        }
    }

    /// The step that makes a value which nothing else needs than the one reader.
    fn private(&self, cell: usize) -> Option<usize> {
        self.made_for(cell, 1)
    }

    /// The step that makes a value which is read so often, and not stored at once.
    fn made_for(&self, cell: usize, uses: usize) -> Option<usize> {
        let open = matches!(self.cells[cell].home, Home::Register { index: usize::MAX, .. });
        let step = self.made[cell].filter(|_| open && self.uses[cell] == uses)?;
        self.steps[step].direct.is_none().then_some(step)
    }

    fn product(&self, cell: usize) -> Option<Product> {
        let step = self.private(cell)?;
        let Action::Binary(Binary::Mul, a, b) = self.steps[step].action else { return None };
        let (x, s) = self.vector_and_scalar(a, b)?;
        Some(Product { x, s, steps: vec![step] })
    }
}

/// An idiom of a product and another vector.
fn with(idiom: Idiom, p: Product, y: usize) -> (Joined, Vec<usize>) {
    (Joined { idiom, vectors: [p.x, y], scalars: [p.s; 3] }, p.steps)
}
