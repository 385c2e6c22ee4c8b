//! Strategies for the options of the planner.

use crate::plan::Grouping;
use proptest::prelude::*;

/// Options of the planner: half of the time the defaults, else each decision on or off by itself, with various limits
/// of rows and groups. It shrinks towards one kernel per node.
pub fn grouping() -> impl Strategy<Value = Grouping> {
    let limits =
        (prop_oneof![Just(0usize), Just(3), Just(16 * 1024)], prop_oneof![Just(1usize), Just(3), Just(48)], 4..16usize);
    let some = (any::<[bool; 10]>(), limits).prop_map(|(decisions, (row_limit, values, buffers))| {
        let [simplify, maps, rows, segments, epilogues, recompute, in_place, direct, heads, reuse] = decisions;
        Grouping {
            simplify,
            maps,
            rows,
            segments,
            epilogues,
            recompute,
            in_place,
            direct,
            heads,
            reuse,
            row_limit,
            values,
            buffers,
        }
    });
    prop_oneof![some, Just(Grouping::default())]
}
