//! The finite check of a loss scaler, as one step.
//!
//! The recorded check tests each number, compares each answer, and takes the maximum of these: three passes. One sum over a
//! block gives the same answer.

use super::program::{Acc, Action, Cell, Extent, Home, Step};
use wgrad::{
    DType,
    op::{Binary, Reduce, Unary},
};

/// Lets reductions look for non-finite numbers themselves, where nothing else needs the answer for each element.
pub(crate) fn at_a_glance(steps: &[Step], cells: &[Cell], accs: &[Acc]) -> Vec<Step> {
    let mut uses = vec![0; cells.len()];
    steps.iter().flat_map(|step| step.action.operands()).for_each(|cell| uses[cell] += 1);
    // The step that computes a cell that only one other step reads.
    let made = |cell: usize| {
        let once = uses[cell] == 1 && cells[cell].is_open() && cells[cell].extent == Extent::Block;
        steps.iter().position(|step| step.to == Some(cell) && step.direct.is_none()).filter(|_| once)
    };
    let no = |cell: usize| matches!(cells[cell].home, Home::Const(0.0));
    let seen_through = |step: &Step| {
        let Action::Fold(acc, cell) = step.action else { return None };
        let compared = made(cell)?;
        let answer = match steps[compared].action {
            Action::Binary(Binary::Eq, answer, other) if no(other) => answer,
            Action::Binary(Binary::Eq, other, answer) if no(other) => answer,
            _ => return None,
        };
        let asked = made(answer)?;
        let Action::Unary(Unary::IsFinite, x) = steps[asked].action else { return None };
        let fits = accs[acc].kind == Reduce::Max && cells[x].dtype == DType::F32;
        fits.then_some(([compared, asked], Action::FoldNonFinite(acc, x)))
    };
    let seen: Vec<_> = steps.iter().map(seen_through).collect();
    let done = |i: usize| seen.iter().flatten().any(|(steps, _)| steps.contains(&i));
    let left = steps.iter().zip(&seen).enumerate().filter(|(i, _)| !done(*i));
    left.map(|(_, (step, seen))| match seen {
        Some((_, action)) => Step { action: action.clone(), ..step.clone() },
        None => step.clone(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: usize = 0;
    const ANSWER: usize = 1;
    const COMPARED: usize = 2;
    const NO: usize = 3;
    const YES: usize = 4;

    /// The steps that replace a test, a comparison and a reduction of this kind.
    fn left(comparison: Action, kind: Reduce, more: Option<Step>) -> Vec<Action> {
        let open = Home::Register { index: usize::MAX, resident: false };
        let cell = |home, dtype, extent| Cell { home, dtype, extent };
        let constant = |value| cell(Home::Const(value), DType::Bool, Extent::One);
        let answers = cell(open, DType::Bool, Extent::Block);
        let cells = [cell(open, DType::F32, Extent::Block), answers, answers, constant(0.0), constant(1.0)];
        let accs = [Acc { kind, dtype: DType::Bool, width: 1, chunk: 0, tile: 0, to: 0 }];
        let step = |action, to| Step { action, to, direct: None };
        let mut steps = vec![
            step(Action::Load(0), Some(X)),
            step(Action::Unary(Unary::IsFinite, X), Some(ANSWER)),
            step(comparison, Some(COMPARED)),
            step(Action::Fold(0, COMPARED), None),
        ];
        steps.extend(more);
        at_a_glance(&steps, &cells, &accs).into_iter().map(|step| step.action).collect()
    }

    #[test]
    fn a_reduction_looks_by_itself_where_nothing_else_needs_the_answers() {
        for compared in [Action::Binary(Binary::Eq, ANSWER, NO), Action::Binary(Binary::Eq, NO, ANSWER)] {
            let seen = left(compared.clone(), Reduce::Max, None);
            assert!(matches!(seen[..], [Action::Load(0), Action::FoldNonFinite(0, X)]), "{seen:?}");
            let also = Step { action: Action::Store(0, ANSWER), to: None, direct: None };
            assert_eq!(left(compared, Reduce::Max, Some(also)).len(), 5, "who else needs the answers has them");
        }
        let all = Action::Binary(Binary::Eq, ANSWER, YES);
        assert_eq!(left(all, Reduce::Max, None).len(), 4, "whether any is finite is another question");
        assert_eq!(left(Action::Binary(Binary::Eq, ANSWER, NO), Reduce::Sum, None).len(), 4, "so is how many are");
    }
}
