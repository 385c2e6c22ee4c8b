//! The values of states and parameters, from a session to the host and back.

use super::{Session, check};
use crate::{
    Array,
    error::Result,
    store::{Param, StateId},
};

impl Session {
    /// Waits for the device and copies a state to the host.
    ///
    /// # Errors
    /// If the device is lost, or a run has failed.
    ///
    /// # Panics
    /// If the state is another store's.
    #[track_caller]
    pub fn read(&mut self, state: StateId) -> Result<Array> {
        let decl = self.layout.state(state);
        Ok(Array::new(&decl.shape, self.backend.read(self.buffers[state.index()])?))
    }

    /// Waits for the device and copies a parameter to the host, and nothing else of its arena.
    ///
    /// # Errors
    /// If the device is lost, or a run has failed.
    ///
    /// # Panics
    /// If the parameter is another store's.
    #[track_caller]
    pub fn read_param(&mut self, param: Param) -> Result<Array> {
        let decl = self.layout.param(param);
        let range = decl.offset..decl.offset + decl.shape.numel();
        Ok(Array::new(&decl.shape, self.backend.read_part(self.buffers[decl.arena.index()], range)?))
    }

    /// Replaces a state's value.
    ///
    /// # Errors
    /// If the shape or type differs, which leaves the state as it was; if the device is lost.
    ///
    /// # Panics
    /// If the state is another store's.
    #[track_caller]
    pub fn write(&mut self, state: StateId, value: &Array) -> Result<()> {
        let decl = self.layout.state(state);
        check(|| format!("state {:?}", decl.name), (&decl.shape, decl.dtype), value, None)?;
        self.windows.forget(state);
        self.backend.write(self.buffers[state.index()], value.data())
    }

    /// Replaces a parameter's value, and moves nothing else of its arena. It waits for no run: those before it keep the
    /// old value.
    ///
    /// # Errors
    /// If the shape or type differs, which leaves the parameter as it was; if the device is lost.
    ///
    /// # Panics
    /// If the parameter is another store's.
    #[track_caller]
    pub fn write_param(&mut self, param: Param, value: &Array) -> Result<()> {
        let decl = self.layout.param(param);
        let dtype = self.layout.state(decl.arena).dtype;
        check(|| format!("parameter {:?}", decl.path), (&decl.shape, dtype), value, None)?;
        self.backend.write_part(self.buffers[decl.arena.index()], decl.offset, value.data())
    }
}
