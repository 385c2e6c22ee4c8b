//! Snapshots: the values of all states of a session at some time, kept on its device.

use super::Session;
use crate::{backend::SnapshotId, error::Result, window::Windows};
use std::{
    fmt, mem,
    sync::{Arc, Mutex, PoisonError},
};

/// Snapshots that have been dropped.
pub(super) type Dropped = Arc<Mutex<Vec<SnapshotId>>>;

/// The values that all parameters and states of a session had: see [`Session::snapshot`]. Its memory is free again once it is
/// dropped.
pub struct Snapshot {
    id: SnapshotId,
    session: u64,
    bytes: u64,
    windows: Windows,
    dropped: Dropped,
}

impl Snapshot {
    /// The bytes of memory that its values take on the device.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
    }
}

impl Session {
    /// Keeps the values that all parameters and states have after the runs so far. They stay on the device; nothing waits.
    ///
    /// ```
    /// # use wgrad::{Array, Session, StateId};
    /// # fn look(session: &mut Session, state: StateId, other: &Array) -> Result<(), wgrad::Error> {
    /// let (before, snapshot) = (session.read(state)?, session.snapshot()?);
    /// session.write(state, other)?;
    /// session.restore(&snapshot)?;
    /// assert_eq!(session.read(state)?, before);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the device has no room for them, or is lost.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        let dropped = mem::take(&mut *self.snapshots.lock().unwrap_or_else(PoisonError::into_inner));
        dropped.into_iter().for_each(|id| self.backend.forget(id));
        let id = self.backend.keep(&self.buffers)?;
        let bytes = self.layout.states().map(|(_, decl)| (decl.shape.numel() * decl.dtype.size()) as u64).sum();
        let (session, windows, dropped) = (self.id, self.windows.clone(), self.snapshots.clone());
        Ok(Snapshot { id, session, bytes, windows, dropped })
    }

    /// Gives all parameters and states the values of a snapshot. Runs before it have the taps and errors that they have;
    /// numbers of runs go on.
    ///
    /// # Errors
    /// If the device is lost.
    ///
    /// # Panics
    /// If the snapshot is another session's.
    #[track_caller]
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        assert!(snapshot.session == self.id, "restore: the snapshot is another session's");
        self.backend.restore(snapshot.id, &self.buffers)?;
        self.windows = snapshot.windows.clone();
        Ok(())
    }

    /// Goes back to a snapshot, does something there, and returns to the present: states, taps and errors of runs before are
    /// what they were.
    ///
    /// # Errors
    /// The error of `f`; if the device has no room for a snapshot of the present, or is lost.
    ///
    /// # Panics
    /// If the snapshot is another session's.
    #[track_caller]
    pub fn rewound<R, E: From<crate::Error>>(
        &mut self,
        to: &Snapshot,
        f: impl FnOnce(&mut Session) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        self.backend.wait()?;
        self.collect_taps()?;
        let present = self.snapshot()?;
        let (late, taps) = (mem::take(&mut self.late), mem::take(&mut self.taps));
        let result = self.restore(to).map_err(E::from).and_then(|()| f(self));
        // Runs that have not finished belong to the past that is left.
        let settled = self.backend.wait().and_then(|()| self.collect_taps());
        (self.late, self.taps) = (late, taps);
        let returned = self.restore(&present);
        let result = result?;
        settled?;
        returned?;
        Ok(result)
    }
}
