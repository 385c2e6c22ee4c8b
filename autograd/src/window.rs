//! Windows over runs: the effects of programs on accumulators, and a session's record of them.
//!
//! An accumulator is filled by the runs of one program and emptied by those of another, so the runs before it decide if
//! a run is valid. A program carries its effects on accumulators, in order; a session keeps one [`PassState`] for each
//! accumulator, and checks it before each run.

use crate::{
    error::Error,
    pass_state::PassState,
    pitfall::Pitfall,
    recorded::{Event, Events, Window},
    store::StateId,
    tape::Tape,
};
use std::{collections::BTreeMap, sync::Arc};

impl Tape {
    /// Notes an effect that each run of the program has on a window.
    #[track_caller]
    pub(crate) fn event(&self, event: Event) {
        let site = self.site();
        self.inner.borrow_mut().training.events.push((event, site));
    }

    /// Refuses the recording: panics with the pitfall, at the caller's line.
    #[track_caller]
    pub(crate) fn refuse(&self, pitfall: Pitfall) -> ! {
        panic!("{pitfall}{}", self.recorded_at())
    }
}

/// A session's record of one accumulator.
#[derive(Clone, Debug)]
struct Known {
    window: Arc<Window>,
    /// `None` while only the device knows how many micro-batches are in.
    state: Option<PassState>,
}

/// The windows of a session, by the states that count in them.
#[derive(Clone, Default, Debug)]
pub(crate) struct Windows(BTreeMap<StateId, Known>);

impl Windows {
    /// Registers the accumulators of a program.
    pub fn meet(&mut self, events: &Events) {
        for (event, _) in events {
            if let Event::Window(window, _) = event {
                let known = self.0.entry(window.counter);
                known.or_insert_with(|| Known { window: window.clone(), state: None });
            }
        }
    }

    /// Drops the record of the window that a state counts, if any, because the state has been written.
    pub fn forget(&mut self, state: StateId) {
        if let Some(known) = self.0.get_mut(&state) {
            known.state = None;
        }
    }

    /// The counters that have to be read before these events can be judged.
    pub fn unknown(&self, events: &Events) -> Vec<StateId> {
        let concerned = |known: &Known| events.iter().any(|(event, _)| event.concerns(&known.window));
        let unknown = self.0.iter().filter(|(_, known)| known.state.is_none() && concerned(known));
        unknown.map(|(counter, _)| *counter).collect()
    }

    /// Records the value of a counter.
    pub fn learn(&mut self, counter: StateId, value: usize, ranks: usize) {
        if let Some(known) = self.0.get_mut(&counter) {
            let window = if known.window.micro_batches.is_some() { value } else { value.min(1) };
            known.state = Some(PassState::new(known.window.config(ranks)).resumed(window));
        }
    }

    /// The windows after a run with these events.
    ///
    /// # Errors
    /// [`Error::Pitfall`] if the rules forbid it.
    pub fn after(&self, events: &Events) -> Result<Self, Error> {
        let mut after = self.clone();
        for (event, site) in events {
            for known in after.0.values_mut().filter(|known| event.concerns(&known.window)) {
                let state = known.state.as_mut().expect("what is unknown has been read");
                state.apply(event.action()).map_err(|pitfall| {
                    let subject = format!("accumulator {:?}", known.window.name);
                    Error::Pitfall { pitfall, subject, site: Some(*site) }
                })?;
            }
        }
        Ok(after)
    }
}
