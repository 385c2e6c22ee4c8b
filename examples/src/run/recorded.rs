//! The recorded step of a report, with its measurements.

use crate::{Result, device::Place};
use wgrad::{Array, Program, Session};
use wgrad_cpu::CpuBackend;
use wgrad_nn::{Capsule, track::Recorded};

/// A step with the times of its kernels, and the ranges of its values for the current states.
///
/// For a GPU, the ranges are computed on the CPU, from the same states. Each operation alone would be a kernel to
/// compile, which takes some software renderers minutes. The recorded `moment` then says so. A rank among others
/// measures a copy of its session, which needs no other rank; the program must be one for a single rank.
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
    if session.ranks() > 1 {
        let (mut alone, step) = Capsule::of(session, program, inputs)?.open(place.backend()?)?;
        return measured(&mut alone, &step, inputs, moment, place);
    }
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
