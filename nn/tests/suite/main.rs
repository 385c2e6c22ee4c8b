//! Tests of `wgrad-nn` on the CPU backend.

mod bf16;
mod checkpoint;
mod data;
mod diagnosis;
mod dropout;
mod failing_data;
mod golden;
mod groups;
mod landscape;
mod load_where;
mod lr_finder;
mod monitor;
mod muon;
mod omega;
mod optim;
mod rates;
mod recurrent;
mod sam;
mod save_file;
mod schedule;
mod track;
mod training;

use wgrad::{Array, DType, Param, Session, Store};

/// A session over a store, on the CPU backend with poisoned memory.
fn open(store: Store) -> Session {
    let backend = wgrad_cpu::CpuBackend::poisoned(2).expect("two threads start");
    Session::new(Box::new(backend), store).expect("the store fits into memory")
}

/// Every state of a session, by name.
fn snapshot(session: &mut Session) -> Vec<(String, Array)> {
    let layout = session.layout().clone();
    layout.states().map(|(id, decl)| (decl.name.clone(), session.read(id).expect("readable"))).collect()
}

/// The value of a state, by name.
fn state(session: &mut Session, name: &str) -> Array {
    snapshot(session).into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no state {name}")).1
}

/// The parameter of a path.
fn param(session: &Session, path: &str) -> Param {
    session.layout().params().find(|(_, decl)| decl.path == path).unwrap_or_else(|| panic!("no parameter {path}")).0
}

/// Asserts that all elements between the segments of all arenas, and of states of their length, are 0.
#[track_caller]
fn assert_padding_is_zero(session: &mut Session) {
    let layout = session.layout().clone();
    for (arena, decl) in layout.states().filter(|(id, _)| layout.is_arena(*id)) {
        let segments = layout.segments(arena);
        let padding = |i: &usize| !segments.ranges.iter().any(|(start, len)| (*start..start + len).contains(i));
        for (name, value) in
            snapshot(session).iter().filter(|(_, v)| (v.shape(), v.dtype()) == (&decl.shape, decl.dtype))
        {
            let dirty = (0..value.shape().numel()).filter(padding).find(|&i| value.item(i) != 0.0);
            assert!(dirty.is_none(), "{name}: padding at {dirty:?}");
        }
    }
}

/// The dtype of a case.
fn dtype(name: &str) -> DType {
    [DType::F32, DType::F64].into_iter().find(|dtype| dtype.name() == name).expect("f32 or f64")
}
