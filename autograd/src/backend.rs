//! The interface of a device.

use crate::{
    Data,
    collective::Collective,
    error::Result,
    op::{Op, Typed},
    plan::{Grouping, Plan},
};
use std::ops::Range;

/// Names a buffer of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BufferId(pub usize);

/// Names a compiled plan of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExecutableId(pub usize);

/// Names a snapshot that a backend keeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SnapshotId(pub usize);

/// The tapped values of one run, in the order of the plan's taps.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The executable that ran.
    pub executable: ExecutableId,
    /// The number that was given to the run.
    pub run: u64,
    /// The values.
    pub values: Vec<Data>,
}

/// A device that keeps buffers and runs compiled plans.
///
/// Runs take effect in the order in which they are enqueued. Only `read` and `wait` wait for the device.
pub trait Backend: Send {
    /// The device's name, such as `cpu (2 threads)`.
    fn name(&self) -> String;

    /// True if the device has a kernel for a fused op over inputs of these shapes and types, which fit it. An op that
    /// it does not claim is decomposed into primitives before a program is planned: see [`crate::Program::lowered`].
    fn claims(&self, op: &Op, inputs: &[Typed]) -> bool {
        let _ = (op, inputs);
        false
    }

    /// The planner's options for this device.
    fn grouping(&self) -> Grouping {
        Grouping::default()
    }

    /// Called with all values of a store before the first is allocated, so that a store that does not fit is refused as
    /// a whole.
    ///
    /// # Errors
    /// If the device has no room for them.
    fn reserve(&mut self, values: &[Data]) -> Result<()> {
        let _ = values;
        Ok(())
    }

    /// A new buffer with these contents.
    ///
    /// # Errors
    /// If the device has no room for it, or no such element type.
    fn alloc(&mut self, data: &Data) -> Result<BufferId>;

    /// Overwrites a buffer; the data has its type and length.
    ///
    /// # Errors
    /// If the device is lost.
    fn write(&mut self, buffer: BufferId, data: &Data) -> Result<()>;

    /// Copies a buffer's contents to the host, after all runs so far.
    ///
    /// # Errors
    /// If the device is lost, or a run so far has failed.
    fn read(&mut self, buffer: BufferId) -> Result<Data>;

    /// Overwrites the elements of a buffer from `start` on; the data has its type and ends within it. By default the
    /// whole buffer travels to the host and back: a device overrides this, so that the cost is that of the data.
    ///
    /// # Errors
    /// If the device is lost, or a run so far has failed.
    fn write_part(&mut self, buffer: BufferId, start: usize, data: &Data) -> Result<()> {
        let mut whole = self.read(buffer)?;
        whole.overwrite(start, data);
        self.write(buffer, &whole)
    }

    /// Copies some elements of a buffer to the host, after all runs so far. By default the whole buffer travels: a device
    /// overrides this, so that the cost is that of the elements.
    ///
    /// # Errors
    /// If the device is lost, or a run so far has failed.
    fn read_part(&mut self, buffer: BufferId, range: Range<usize>) -> Result<Data> {
        Ok(self.read(buffer)?.slice(range))
    }

    /// Copies buffers within the device's memory, as they are after all runs so far. It need not wait for the runs.
    ///
    /// # Errors
    /// If the device has no room for the copies, or is lost.
    fn keep(&mut self, buffers: &[BufferId]) -> Result<SnapshotId>;

    /// Overwrites buffers with their contents in a snapshot, after all runs so far; `buffers` are those that the
    /// snapshot was made of.
    ///
    /// # Errors
    /// If the device is lost.
    fn restore(&mut self, snapshot: SnapshotId, buffers: &[BufferId]) -> Result<()>;

    /// Frees the memory of a snapshot.
    fn forget(&mut self, snapshot: SnapshotId);

    /// Prepares a plan. State `i` of the store lives in `states[i]`.
    ///
    /// # Errors
    /// If the device cannot run one of the plan's kernels.
    fn compile(&mut self, plan: &Plan, states: &[BufferId]) -> Result<ExecutableId>;

    /// The bytes that a compiled plan occupies until it is released. 0 if the device cannot tell: sessions then limit
    /// the programs that they keep by number alone.
    fn bytes(&self, executable: ExecutableId) -> u64 {
        let _ = executable;
        0
    }

    /// Forgets a compiled plan.
    fn release(&mut self, executable: ExecutableId);

    /// Waits until all runs so far have finished, and their taps can be delivered.
    ///
    /// # Errors
    /// If a run so far has failed, or the device is lost.
    fn wait(&mut self) -> Result<()>;

    /// Enqueues a run. `inputs` are in the program's order, with the declared types and lengths. Values that the plan
    /// exchanges with other ranks ([`Plan::exchanges`]) go through `collective`, by [`crate::collective::exchange`].
    ///
    /// # Errors
    /// If the run fails at once (an index out of range, on the CPU; an exchange), in which case no state has changed.
    fn run(
        &mut self,
        executable: ExecutableId,
        inputs: &[&Data],
        run: u64,
        collective: &mut dyn Collective,
    ) -> Result<()>;

    /// Measures from now on the time of each kernel of an executable, whenever it runs. Results stay bitwise the same.
    /// True if the device can measure.
    ///
    /// # Errors
    /// If the device has no room for the measurements, or is lost.
    fn watch(&mut self, executable: ExecutableId) -> Result<bool> {
        let _ = executable;
        Ok(false)
    }

    /// The times of a watched executable's runs that have finished since the last call, oldest first: the seconds of
    /// each kernel, in the order of the plan. Runs that have failed are left out. Kernels that the device runs by one
    /// dispatch share its time equally.
    fn times(&mut self, executable: ExecutableId) -> Vec<Vec<f64>> {
        let _ = executable;
        vec![]
    }

    /// The tapped values that have arrived since the last call, oldest first.
    ///
    /// # Errors
    /// If a run has failed.
    fn deliveries(&mut self) -> Result<Vec<Delivery>>;
}
