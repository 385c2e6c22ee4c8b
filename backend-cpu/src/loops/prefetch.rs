//! Prefetches operands: while chains compute, memory fetches those that the next tile reads and later walks write.
//!
//! A tile whose values are kept is walked over several times, and some walks compute much and read little. Such walks prefetch
//! what others need, so that memory is busy all the time.

use super::{
    chain::{Chain, PREFETCHES, Prefetch},
    program::{Action, Extent, Schedule, Step},
    view::View,
};
use crate::memory::elements::Source;
use wgrad::DType;

/// Memory that is worth a prefetch, and the walk before which it is needed.
struct Wish {
    prefetch: Prefetch,
    until: usize,
}

/// The weight of a chain that has time for one more prefetch; each has time for one.
const TIME: usize = 4;

/// Plans prefetches if a tile is kept from walk to walk, and notes the walks that are the first to read some memory.
pub(crate) fn plan_prefetches(schedule: &mut Schedule) {
    for phase in &mut schedule.phases {
        phase.fresh = true;
    }
    if !schedule.cut.resident {
        return;
    }
    let mut planned = vec![];
    for Wish { prefetch, until } in wishes(schedule) {
        let chains = schedule.phases[..until].iter_mut().flat_map(|phase| &mut phase.block).filter_map(chain);
        let free = chains.filter(|chain| chain.dtype == DType::F32 && chain.time() > chain.prefetches.len());
        if let Some(chain) = free.max_by_key(|chain| chain.time() - chain.prefetches.len()) {
            chain.prefetches.push(prefetch);
            planned.push(prefetch.view);
        }
    }
    for walk in 1..schedule.phases.len() {
        let met = |view: usize, before: &[usize]| before.iter().any(|&other| schedule.same(other, view));
        let before: Vec<usize> = schedule.reads(0..walk).map(|(view, _)| view).chain(planned.iter().copied()).collect();
        let fresh = schedule.reads(walk..walk + 1).any(|(view, _)| !met(view, &before));
        schedule.phases[walk].fresh = fresh;
    }
}

fn chain(step: &mut Step) -> Option<&mut Chain> {
    match &mut step.action {
        Action::Chain(chain) => Some(chain),
        _ => None,
    }
}

/// The writes of other walks than the first, those with the fewest walks left first, and then the reads of the next tile.
fn wishes(schedule: &Schedule) -> Vec<Wish> {
    let walks = schedule.phases.len();
    let reads: Vec<(usize, usize)> = schedule.reads(0..walks).collect();
    let mut wishes: Vec<Wish> = vec![];
    let mut wish = |prefetch: Prefetch, cell: usize, until: usize, met: &[(usize, usize)]| {
        let (view, what) = (&schedule.views[prefetch.view], &schedule.cells[cell]);
        let fits = what.dtype == DType::F32 && what.extent == Extent::Block && view.may_be_direct();
        let new = !met.iter().any(|&(other, _)| schedule.same(other, prefetch.view));
        if fits && new && view.source != Source::Product {
            wishes.push(Wish { prefetch, until });
        }
    };
    for (until, phase) in schedule.phases.iter().enumerate() {
        for step in &phase.block {
            if let Action::Store(view, cell) = step.action {
                wish(Prefetch { view, next: false }, cell, until, &reads);
            }
        }
    }
    // The next tile lies behind this one where registers hold rows as memory does.
    let rows = if schedule.cut.transposed { 0 } else { reads.len() };
    for (i, &(view, cell)) in reads[..rows].iter().enumerate() {
        wish(Prefetch { view, next: true }, cell, walks, &reads[..i]);
    }
    wishes
}

impl Schedule {
    /// The views that some walks read over blocks, and the cells.
    fn reads(&self, walks: std::ops::Range<usize>) -> impl Iterator<Item = (usize, usize)> {
        self.phases[walks].iter().flat_map(|phase| &phase.block).filter_map(|step| match step.action {
            Action::Load(view) => step.to.map(|to| (view, to)),
            _ => None,
        })
    }

    fn same(&self, a: usize, b: usize) -> bool {
        View::shows_the_same(&self.views[a], &self.views[b])
    }
}

impl Chain {
    /// The number of operands that memory can fetch while it computes.
    fn time(&self) -> usize {
        let slow = if self.is_slow() { 8 } else { 0 };
        ((self.code.len() + 2 * self.folds.len() + slow) / TIME).clamp(1, PREFETCHES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::{
        chain::{Code, Instruction},
        program::{Cell, Home, Phase},
        tiling::Cut,
    };

    const X: usize = 0;
    const DY: usize = 1;
    const Y: usize = 2;
    /// Cells of elements of f32 and of f64, and one of rows.
    const F32: usize = 0;
    const F64: usize = 1;
    const ROWS: usize = 2;

    fn load(view: usize, cell: usize) -> Step {
        Step { action: Action::Load(view), to: Some(cell), direct: None }
    }

    fn store(view: usize, cell: usize) -> Step {
        Step { action: Action::Store(view, cell), to: None, direct: None }
    }

    fn computing(instructions: usize) -> Step {
        let code = vec![Instruction { code: Code::Add, of: [0; 5] }; instructions];
        let (inputs, outputs, folds, prefetches) = (vec![], vec![], vec![], vec![]);
        let chain = Chain { dtype: DType::F32, inputs, code, outputs, folds, made: 0, file: 0, prefetches };
        Step { action: Action::Chain(Box::new(chain)), to: None, direct: None }
    }

    /// Two inputs and a result, 64 rows of 16, in tiles of 4 that are kept.
    fn schedule(walks: [Vec<Step>; 3]) -> Schedule {
        let cut = Cut {
            split: 1,
            kept: 64,
            reduced: 16,
            transposed: false,
            rows: 4,
            lines: 4,
            parts: 1,
            block: 16,
            stretch: 16,
            chunk: 16,
            resident: true,
        };
        let home = Home::Register { index: 0, resident: false };
        let cell = |dtype, extent| Cell { home, dtype, extent };
        Schedule {
            cut,
            tiling: None,
            cells: vec![
                cell(DType::F32, Extent::Block),
                cell(DType::F64, Extent::Block),
                cell(DType::F32, Extent::Rows),
            ],
            views: [Source::Buffer(0), Source::Buffer(1), Source::Target(0)]
                .map(|source| View::rows(source, 64, 16, 16))
                .into(),
            accs: vec![],
            prelude: vec![],
            phases: walks.map(|block| Phase { block, ..Phase::default() }).into(),
            finale: vec![],
            cost: 1,
        }
    }

    /// The prefetches of each walk's chains, and the fresh walks.
    fn planned(mut schedule: Schedule) -> (Vec<Vec<(usize, bool)>>, Vec<bool>) {
        plan_prefetches(&mut schedule);
        let of = |phase: &mut Phase| {
            let prefetches = phase.block.iter_mut().filter_map(chain).flat_map(|chain| chain.prefetches.clone());
            prefetches.map(|prefetch| (prefetch.view, prefetch.next)).collect()
        };
        (schedule.phases.iter_mut().map(of).collect(), schedule.phases.iter().map(|phase| phase.fresh).collect())
    }

    #[test]
    fn each_operand_is_asked_for_once_in_walks_that_have_time() {
        let walks = || {
            [
                vec![load(X, F32)],
                vec![load(X, F32), load(DY, F32), computing(8)],
                vec![load(DY, F32), computing(4), store(Y, F32)],
            ]
        };
        // Results of the last walk in the one before it, and what the next tile reads where there is time left.
        let all = vec![vec![], vec![(Y, false), (DY, true)], vec![(X, true)]];
        assert_eq!(planned(schedule(walks())), (all, vec![true, false, false]));

        let mut transposed = schedule(walks());
        transposed.cut.transposed = true;
        assert_eq!(planned(transposed), (vec![vec![], vec![(Y, false)], vec![]], vec![true, true, false]));

        let mut long = schedule(walks());
        long.cut.resident = false;
        assert_eq!(planned(long), (vec![vec![]; 3], vec![true; 3]));
    }

    #[test]
    fn a_walk_that_computes_little_asks_for_one_operand_only() {
        let walks = [vec![load(X, F32), load(DY, F32)], vec![load(X, F32), computing(1)], vec![]];
        assert_eq!(planned(schedule(walks)), (vec![vec![], vec![(X, true)], vec![]], vec![true, false, false]));
    }

    #[test]
    fn what_no_chain_has_time_for_is_fresh_where_it_is_met() {
        let walks = [vec![load(X, F32)], vec![computing(1)], vec![load(DY, F32)]];
        assert_eq!(planned(schedule(walks)), (vec![vec![], vec![(X, true)], vec![]], vec![true, false, true]));
    }

    #[test]
    fn nothing_is_asked_for_but_elements_of_the_type_that_chains_count_in() {
        let walks = [vec![load(X, F64), load(DY, ROWS)], vec![computing(8)], vec![store(Y, F64)]];
        assert_eq!(planned(schedule(walks)).0, vec![vec![]; 3]);
    }
}
