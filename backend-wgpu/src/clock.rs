//! The times of dispatches, by the device's clock: a timestamp before each, and one after it.

use crate::{
    device::Inner,
    error::Result,
    memory::{Buffer, WORD},
};
use std::sync::Arc;

/// Words of the two timestamps of a dispatch.
pub(crate) const STAMPS: usize = 4;

/// Dispatches whose timestamps a query set holds: as many as every device can have.
const PER_SET: usize = wgpu::QUERY_SET_MAX_QUERIES as usize / 2;

/// Room for the timestamps of some dispatches.
pub(crate) struct Clock {
    sets: Vec<wgpu::QuerySet>,
    /// Their contents, one after another.
    resolved: Buffer,
    dispatches: usize,
}

impl Clock {
    /// `None` if the device has no timestamps, or was opened without.
    pub fn new(gpu: &Arc<Inner>, dispatches: usize) -> Result<Option<Self>> {
        if !gpu.device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return Ok(None);
        }
        let set = |first: usize| {
            let count = 2 * (dispatches - first).min(PER_SET) as u32;
            let description = wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count };
            gpu.device.create_query_set(&description)
        };
        let sets = gpu.scoped(|| (0..dispatches).step_by(PER_SET).map(set).collect())?;
        Ok(Some(Self { sets, resolved: Buffer::resolved(gpu, STAMPS * dispatches)?, dispatches }))
    }

    /// The timestamps of a dispatch's pass.
    pub fn around(&self, dispatch: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        let first = 2 * (dispatch % PER_SET) as u32;
        wgpu::ComputePassTimestampWrites {
            query_set: &self.sets[dispatch / PER_SET],
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        }
    }

    /// Copies all timestamps to a buffer, from a byte on.
    pub fn copy(&self, encoder: &mut wgpu::CommandEncoder, to: &wgpu::Buffer, at: u64) {
        for (i, set) in self.sets.iter().enumerate() {
            let first = i * PER_SET;
            let count = (self.dispatches - first).min(PER_SET);
            let start = (STAMPS * first) as u64 * WORD;
            encoder.resolve_query_set(set, 0..2 * count as u32, &self.resolved.raw, start);
            let bytes = (STAMPS * count) as u64 * WORD;
            encoder.copy_buffer_to_buffer(&self.resolved.raw, start, to, at + start, bytes);
        }
    }
}

/// The seconds of each of so many kernels, of the timestamps of dispatches and the kernels that each runs. A tick takes
/// `period` nanoseconds. Kernels of one dispatch share its time in equal parts: nothing tells more.
pub(crate) fn seconds<'a>(
    stamps: &[u32],
    dispatches: impl Iterator<Item = &'a [Option<usize>]>,
    kernels: usize,
    period: f32,
) -> Vec<f64> {
    let mut seconds = vec![0.0; kernels];
    for (stamp, parts) in stamps.chunks_exact(STAMPS).zip(dispatches) {
        let ticks = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let ticks = ticks(stamp[2], stamp[3]).saturating_sub(ticks(stamp[0], stamp[1]));
        let part = ticks as f64 * f64::from(period) * 1e-9 / parts.len() as f64;
        parts.iter().flatten().for_each(|kernel| seconds[*kernel] += part);
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_abs_diff_eq;

    #[test]
    fn dispatches_of_a_kernel_are_added_up_and_kernels_of_a_dispatch_share_it() {
        // From 2^32 - 1 to 2^32 + 3; then 10 and 6 ticks.
        let stamps = [u32::MAX, 0, 3, 1, 0, 0, 10, 0, 4, 0, 10, 0];
        let dispatches: [&[Option<usize>]; 3] = [&[Some(0)], &[Some(0)], &[Some(2), None]];
        let have = seconds(&stamps, dispatches.into_iter(), 3, 2.0);
        let want = [28e-9, 0.0, 6e-9];
        assert_abs_diff_eq!(have[..], want[..], epsilon = 1e-15);
    }
}
