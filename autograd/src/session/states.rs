//! The values of states and parameters, from a session to the host and back.

use super::{Session, check};
use crate::{
    Array, Data, Error,
    collective::{Difference, Exchange, Stamp, Way},
    error::Result,
    op::Share,
    random::fnv1a,
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

    /// As [`Session::read`], but the whole of a state that ranks share out ([`crate::Store::shard`]): all ranks call this at
    /// the same time, for the same state. Other states are read here alone, and wait for nobody.
    ///
    /// # Errors
    /// As [`Session::read`]; [`Error::OtherShares`] if other than these ranks share it out; if a rank is lost or reads
    /// another state.
    ///
    /// # Panics
    /// If the state is another store's.
    #[track_caller]
    pub fn read_whole(&mut self, state: StateId) -> Result<Array> {
        let Some(share) = self.share(state)? else { return self.read(state) };
        let read = self.read(state);
        if read.is_err() {
            self.collective.abort();
        }
        let decl = self.layout.state(state);
        let mut stamp = Stamp::default();
        stamp.set(Difference::Program, fnv1a(&format!("{} {} {share:?}", decl.name, decl.dtype)));
        let mut part = [Exchange { way: Way::Gather(share.ranks), data: read?.into_data() }];
        self.collective.exchange(stamp, &mut part)?;
        Ok(Array::new([share.whole], part[0].data.slice(0..share.whole)))
    }

    /// As [`Session::write`], but the value is the whole of a state that ranks share out, of which this rank keeps its
    /// part. It waits for nobody.
    ///
    /// # Errors
    /// As [`Session::write`]; [`Error::OtherShares`] if other than these ranks share it out.
    ///
    /// # Panics
    /// If the state is another store's.
    #[track_caller]
    pub fn write_whole(&mut self, state: StateId, value: &Array) -> Result<()> {
        let Some(share) = self.share(state)? else { return self.write(state, value) };
        let decl = self.layout.state(state);
        let (shape, dtype) = ([share.whole].into(), decl.dtype);
        check(|| format!("state {:?}", decl.name), (&shape, dtype), value, None)?;
        let (start, len) = share.place(self.collective.rank());
        let rest = Data::zeros(dtype, share.part() - len);
        let part = Data::concat([value.data().slice(start..start + len), rest]).expect("both have one type");
        self.write(state, &Array::new([share.part()], part))
    }

    /// The way this session's ranks share a state out, if they do.
    #[track_caller]
    fn share(&self, state: StateId) -> Result<Option<Share>> {
        let (decl, ranks) = (self.layout.state(state), self.ranks());
        match decl.share {
            Some(Share { ranks: shared, .. }) if shared != ranks => {
                Err(Error::OtherShares { state: decl.name.clone(), shared, ranks })
            }
            share => Ok(share),
        }
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
