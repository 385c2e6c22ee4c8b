//! What is asked for ahead of time: while chains compute, memory fetches what the next tile reads and later walks write.
//!
//! A tile whose values are kept is walked over several times, and some walks compute much and read little. What they have
//! time for is fetched then, rather than all at once when it is needed.

use crate::{
    chain::Chain,
    memory::Source,
    schedule::{Action, Extent, Schedule, Step},
    view::View,
};
use wgrad::DType;

/// Memory that a chain asks for, in step with its elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub view: usize,
    /// Whether the next tile's is meant.
    pub next: bool,
}

/// Memory that had better be near, and the walk before which it must be asked for.
struct Wish {
    ask: Ask,
    until: usize,
}

/// The most that a chain asks for.
pub(crate) const ASKS: usize = 8;
/// The weight of a chain that has time to ask for one more operand; each has time for one.
const TIME: usize = 4;

/// Has chains ask for memory, if a tile is kept from walk to walk, and notes which walks are the first to meet some.
pub(crate) fn ask_ahead(schedule: &mut Schedule) {
    for phase in &mut schedule.phases {
        phase.fresh = true;
    }
    if !schedule.cut.resident {
        return;
    }
    let mut asked = vec![];
    for Wish { ask, until } in wishes(schedule) {
        let chains = schedule.phases[..until].iter_mut().flat_map(|phase| &mut phase.block).filter_map(chain);
        let free = chains.filter(|chain| chain.dtype == DType::F32 && chain.time() > chain.asks.len());
        if let Some(chain) = free.max_by_key(|chain| chain.time() - chain.asks.len()) {
            chain.asks.push(ask);
            asked.push(ask.view);
        }
    }
    for walk in 1..schedule.phases.len() {
        let met = |view: usize, before: &[usize]| before.iter().any(|&other| schedule.same(other, view));
        let before: Vec<usize> = schedule.reads(0..walk).map(|(view, _)| view).chain(asked.iter().copied()).collect();
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

/// What is written by other walks than the first, for which the fewest walks are left, and then what the next tile reads.
fn wishes(schedule: &Schedule) -> Vec<Wish> {
    let walks = schedule.phases.len();
    let reads: Vec<(usize, usize)> = schedule.reads(0..walks).collect();
    let mut wishes: Vec<Wish> = vec![];
    let mut wish = |ask: Ask, cell: usize, until: usize, met: &[(usize, usize)]| {
        let (view, what) = (&schedule.views[ask.view], &schedule.cells[cell]);
        let fits = what.dtype == DType::F32 && what.extent == Extent::Block && view.may_be_direct();
        let new = !met.iter().any(|&(other, _)| schedule.same(other, ask.view));
        if fits && new && view.source != Source::Product {
            wishes.push(Wish { ask, until });
        }
    };
    for (until, phase) in schedule.phases.iter().enumerate() {
        for step in &phase.block {
            if let Action::Store(view, cell) = step.action {
                wish(Ask { view, next: false }, cell, until, &reads);
            }
        }
    }
    // The next tile lies behind this one where registers hold rows as memory does.
    let rows = if schedule.cut.turned { 0 } else { reads.len() };
    for (i, &(view, cell)) in reads[..rows].iter().enumerate() {
        wish(Ask { view, next: true }, cell, walks, &reads[..i]);
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
    /// How many operands memory can fetch while it computes.
    fn time(&self) -> usize {
        let slow = if self.is_slow() { 8 } else { 0 };
        ((self.code.len() + 2 * self.folds.len() + slow) / TIME).clamp(1, ASKS)
    }
}
