//! A recorded step as a report shows it.

use crate::{Result, device::Place};
use wgrad::{Array, Program, Session};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{Capsule, track::Recorded};

/// A step with the time of its kernels, and with the ranges of its values from the states as they are.
///
/// On a GPU the ranges are computed on the CPU, from the same states: each operation by itself would be a kernel to compile, which
/// takes some renderers minutes. `moment` then says so.
///
/// # Errors
/// If a device fails.
pub fn measured(
    session: &mut Session,
    program: &Program,
    inputs: &[(&str, &Array)],
    moment: &str,
    place: &Place,
) -> Result<Recorded> {
    let recorded = Recorded::new(program);
    let recorded = match place {
        Place::Cpu { .. } => recorded.with_ranges(session, inputs, moment)?,
        Place::Gpu(_) => {
            let capsule = Capsule::of(session, program, inputs)?;
            let (mut cpu, _) = capsule.open(Box::new(CpuBackend::new(0)?))?;
            recorded.with_ranges(&mut cpu, inputs, &format!("{moment}, computed on the CPU"))?
        }
    };
    Ok(recorded.with_times(session, inputs)?)
}
