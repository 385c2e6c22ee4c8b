//! Fewer dispatches: launches of one workgroup each become one launch, whose workgroup runs them one after the other. The
//! arithmetic of each stays as it is.

use crate::wgsl::launch::{Launch, Most};

/// Launches with the same effect as these, in this order. A launch of one workgroup is deferred to the next such launch, as long as
/// no launch in between reads or writes what it writes, or writes what it reads.
pub(crate) fn merged(launches: Vec<Launch>, most: Most) -> Vec<Launch> {
    let (mut all, mut waiting): (Vec<Launch>, Option<Launch>) = (vec![], None);
    for launch in launches {
        match waiting.take() {
            None if launch.is_single() => waiting = Some(launch),
            None => all.push(launch),
            Some(before) if launch.is_single() => match before.then(&launch, most) {
                Some(both) => waiting = Some(both),
                None => {
                    all.push(before);
                    waiting = Some(launch);
                }
            },
            Some(before) if before.conflicts(&launch) => all.extend([before, launch]),
            Some(before) => {
                all.push(launch);
                waiting = Some(before);
            }
        }
    }
    all.extend(waiting);
    all
}
