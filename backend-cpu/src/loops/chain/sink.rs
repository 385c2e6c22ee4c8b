//! Reductions of values that chains compute, done by the chains themselves: a few elements at a time, while they are in the
//! cache. Values that nothing else needs are never written.

use super::{Chain, Code, Fold, Input, Instruction, Question};
use crate::{
    loops::{
        program::{Acc, Action, Cell, Extent, Step},
        reduce::{Accumulator, Monoid, WIDE, part, run},
    },
    memory::elements::Element,
    simd::{finite::any_non_finite_by, float::Real},
};
use pulp::Simd;
use wgrad::{DType, Data, op::Reduce};

/// The most reductions of a chain.
pub(crate) const FOLDS: usize = 4;

/// Moves the reductions of a walk into the chains that compute what is reduced.
pub(super) fn sink(mut steps: Vec<Step>, cells: &[Cell], accs: &[Acc]) -> Vec<Step> {
    let mut uses = vec![0; cells.len()];
    steps.iter().flat_map(|step| step.action.operands()).for_each(|cell| uses[cell] += 1);
    let mut i = 0;
    while let Some(step) = steps.get(i) {
        let asked = match step.action {
            Action::Fold(acc, from) => Some((Question::Reduce(accs[acc].kind), accs[acc].dtype, acc, from)),
            Action::FoldNonFinite(acc, from) => Some((Question::NonFinite, cells[from].dtype, acc, from)),
            _ => None,
        };
        match asked.filter(|&(.., from)| cells[from].extent == Extent::Block) {
            Some((question, dtype, acc, from)) => {
                let alone = uses[from] == 1 && cells[from].is_open();
                let fold = Fold { value: 0, question, made: None, acc };
                if steps.iter_mut().any(|step| takes(step, (from, alone), (fold, dtype))) {
                    steps.remove(i);
                    uses[from] -= 1;
                } else {
                    i += 1;
                }
            }
            None => i += 1,
        }
    }
    steps
}

/// Lets a chain that computes or reads a cell reduce it; `alone` tells that nothing else needs the cell. False if the step is no
/// such chain.
fn takes(step: &mut Step, (from, alone): (usize, bool), (fold, dtype): (Fold, DType)) -> bool {
    let Action::Chain(chain) = &mut step.action else { return false };
    if chain.folds.len() == FOLDS || chain.dtype != dtype {
        return false;
    }
    let mut fold = |value| chain.folds.push(Fold { value, ..fold });
    if let Some(value) = chain.inputs.iter().position(|&input| input == Input::Cell(from)) {
        fold(value);
        return true;
    }
    let Some(i) = chain.outputs.iter().position(|output| output.cell == from) else { return false };
    let value = chain.outputs[i].value;
    // A selected operand may lie where another result goes.
    let computed = value.checked_sub(chain.inputs.len()).is_some_and(|i| chain.code[i].code != Code::Choose);
    let fits = computed && chain.outputs[i].direct.is_none();
    if fits {
        fold(value);
        if alone {
            chain.outputs.remove(i);
        }
    }
    fits
}

/// Lets sums compute their own summands, where these are results of one short instruction that nothing else needs.
pub(super) fn make(chain: &mut Chain) {
    let inputs = chain.inputs.len();
    let mut uses = vec![0; chain.values()];
    chain.code.iter().flat_map(Instruction::operands).for_each(|value| uses[value] += 1);
    chain.outputs.iter().for_each(|output| uses[output.value] += 1);
    chain.folds.iter().for_each(|fold| uses[fold.value] += 1);
    for fold in &mut chain.folds {
        let Some(i) = fold.value.checked_sub(inputs) else { continue };
        let instruction = chain.code[i];
        let short = matches!(instruction.code, Code::Mul | Code::Neg) && fold.question == Question::Reduce(Reduce::Sum);
        if short && uses[fold.value] == 1 && chain.dtype == DType::F32 {
            fold.made = Some(instruction);
            chain.made |= 1 << i;
        }
    }
}

/// A finite norm proves its inputs finite, so skip their separate check: those of the norm's own value, and of values that
/// are non-finite only if it is.
pub(super) fn ask_norms(chain: &mut Chain) {
    // Norms come first.
    chain.folds.sort_by_key(|fold| fold.question == Question::NonFinite);
    for i in 0..chain.folds.len() {
        let Fold { value, question: Question::NonFinite, .. } = chain.folds[i] else { continue };
        let mut tells = vec![false; chain.values()];
        tells[value] = true;
        for (i, instruction) in chain.code.iter().enumerate() {
            if instruction.code.keeps_non_finite() && instruction.operands().any(|value| tells[value]) {
                tells[chain.inputs.len() + i] = true;
            }
        }
        let norm = |fold: &Fold| tells[fold.value] && fold.question == Question::Reduce(Reduce::Norm);
        if let Some(norm) = chain.folds.iter().position(norm).filter(|_| chain.dtype == DType::F32) {
            chain.folds[i].question = Question::NonFiniteNorm(norm);
        }
    }
}

/// The reductions of a chain on its way through a block, and their accumulators.
pub(crate) struct Folds<'a> {
    pub of: &'a [Fold],
    pub made: u32,
    pub accs: &'a mut [Data],
    pub lines: Lines,
}

/// The lines of a block.
#[derive(Clone, Copy)]
pub(crate) struct Lines {
    /// The number of elements that each has.
    pub width: usize,
    /// True if there is an accumulator for each place in a line, rather than for each line.
    pub transposed: bool,
}

/// The place of an element in its line.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub lines: Lines,
    pub line: usize,
    pub column: usize,
}

impl Lines {
    /// The first element.
    pub(super) fn start(self) -> Place {
        Place { lines: self, line: 0, column: 0 }
    }
}

impl Place {
    /// So many elements behind it.
    #[inline(always)]
    pub(super) fn behind(mut self, elements: usize) -> Self {
        self.column += elements;
        if self.column >= self.lines.width {
            self.line += self.column / self.lines.width;
            self.column %= self.lines.width;
        }
        self
    }
}

/// Combines neighbouring elements into the accumulators of their lines, of which there may be several.
#[inline(always)]
pub(super) fn fold<T: Element, M: Monoid<T>>(mut x: &[T], at: Place, acc: &mut Data) {
    let Place { lines: Lines { width, transposed }, mut line, mut column } = at;
    let acc = M::A::view_mut(Element::slice_mut(acc));
    while !x.is_empty() {
        let (piece, rest) = x.split_at(x.len().min(width - column));
        if transposed {
            acc[column..].iter_mut().zip(piece).for_each(|(a, &x)| *a = M::add(*a, x));
        } else if width.is_multiple_of(WIDE) {
            acc[line] = run::<T, M>(acc[line], piece);
        } else {
            acc[line] = part::<T, M>(acc[line], piece);
        }
        (x, line, column) = (rest, line + 1, 0);
    }
}

/// Notes for lines whether any of neighbouring elements is not finite; of lines with a finite norm, if there are norms, none is.
#[inline(always)]
pub(super) fn look<S: Simd, T: Real>(simd: S, mut x: &[T], at: Place, acc: &mut Data, norms: Option<&[f64]>) {
    let Place { lines: Lines { width, .. }, mut line, mut column } = at;
    let acc = bool::slice_mut(acc);
    while !x.is_empty() {
        let (piece, rest) = x.split_at(x.len().min(width - column));
        if norms.is_none_or(|norms| !norms[line].is_finite()) {
            acc[line] |= any_non_finite_by(simd, piece);
        }
        (x, line, column) = (rest, line + 1, 0);
    }
}
