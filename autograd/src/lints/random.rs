//! Random numbers that repeat: from run to run, from program to program, from rank to rank.

use super::{
    Lint, Walk,
    facts::{Drawing, Drawn},
};
use crate::{
    Site,
    pitfall::Pitfall,
    program::Program,
    random::KEY,
    recorded::PassKind,
    store::{Layout, StateId},
};
use std::collections::{BTreeMap, BTreeSet};

impl Drawing {
    /// The draws of a program, without those that no commit or tap depends on: no run draws them.
    pub fn of(program: &Program, mut drawn: Vec<Drawn>) -> Self {
        if !drawn.is_empty() {
            let live = program.live();
            drawn.retain(|drawn| live[drawn.node.index()]);
        }
        let moved = program.commits().iter().map(|(state, _)| *state).collect();
        Self { drawn, moved, trains: trains(program) }
    }

    /// The generators that it draws from, each by its key, with its counter, the streams, and the first line.
    pub fn generators(&self) -> BTreeMap<StateId, (StateId, Vec<u64>, Site)> {
        let mut generators = BTreeMap::new();
        for drawn in &self.drawn {
            let (_, streams, _) = generators.entry(drawn.key).or_insert((drawn.counter, vec![], drawn.site));
            streams.push(drawn.stream);
        }
        generators
    }
}

/// True if a program changes parameters, or accumulates gradients for one that does.
fn trains(program: &Program) -> bool {
    program.passes().iter().any(|pass| matches!(pass.kind, PassKind::Step | PassKind::Accumulate))
        || program.commits().iter().any(|(state, _)| program.layout().is_arena(*state))
}

/// The name of a generator, by its key.
fn name(layout: &Layout, key: StateId) -> &str {
    let declared = &layout.state(key).name;
    declared.strip_suffix(KEY).unwrap_or(declared)
}

/// P53: generators that a training program draws from and does not advance.
pub(super) fn still_generators(walk: &mut Walk<'_>) {
    let program = walk.program;
    if !trains(program) {
        return;
    }
    let drawing = Drawing::of(program, walk.facts.drawn.clone());
    for (key, (counter, _, site)) in drawing.generators() {
        if !drawing.moved.contains(&counter) {
            let text = format!(
                "{:?} is drawn from but never advanced, so each run draws the same numbers; call `advance` once per \
                 run, or `repeating` if that is intended",
                name(program.layout(), key)
            );
            walk.report(Pitfall::RepeatedDraws, site, text);
        }
    }
}

/// The lint of a generator from which all ranks draw the same numbers.
pub(crate) fn same_on_all_ranks(layout: &Layout, key: StateId, site: Site) -> Lint {
    let message = format!(
        "{:?} gives all ranks the same numbers, for different data; seed it by the rank too, or call `repeating` if \
         that is intended",
        name(layout, key)
    );
    Lint {
        pitfall: Pitfall::SameDrawsOnRanks,
        severity: Pitfall::SameDrawsOnRanks.severity(),
        message,
        site: Some(site),
    }
}

/// The way a program uses a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Use {
    trains: bool,
    moves: bool,
    site: Site,
}

impl Use {
    /// True if both may draw at the same count, and one of them trains.
    fn repeats(self, other: Use) -> bool {
        // A generator that training programs never advance has a lint of its own, P53.
        let told = self.trains && other.trains && !self.moves && !other.moves;
        (self.trains || other.trains) && !(self.moves && other.moves) && !told
    }
}

/// The random numbers of a session's programs.
#[derive(Default, Debug)]
pub(crate) struct Draws {
    uses: BTreeMap<(StateId, u64), Vec<Use>>,
    moved: BTreeSet<StateId>,
}

impl Draws {
    /// Takes in a program: reports P54, and withdraws P53 for generators that another program advances.
    pub fn meet(&mut self, program: &mut Program) -> Vec<Lint> {
        let mut found: Vec<Lint> = vec![];
        let drawing = program.drawing.clone();
        for (_, (counter, _, site)) in drawing.generators() {
            if self.moved.contains(&counter) {
                program.lints.retain(|lint| (lint.pitfall, lint.site) != (Pitfall::RepeatedDraws, Some(site)));
            }
        }
        for drawn in &drawing.drawn {
            let moves = drawing.moved.contains(&drawn.counter);
            let new = Use { trains: drawing.trains, moves, site: drawn.site };
            let uses = self.uses.entry((drawn.counter, drawn.stream)).or_default();
            if let Some(other) = uses.iter().find(|other| new.repeats(**other)) {
                let message = format!(
                    "{:?} gives the numbers that another program draws at {}; `advance` it in both, or give each a \
                     generator of its own",
                    name(program.layout(), drawn.key),
                    other.site
                );
                let (pitfall, site) = (Pitfall::SharedDraws, Some(drawn.site));
                found.push(Lint { pitfall, severity: pitfall.severity(), message, site });
            }
            if !uses.contains(&new) {
                uses.push(new);
            }
        }
        self.moved.extend(&drawing.moved);
        program.note_lints(found.clone());
        found
    }
}
