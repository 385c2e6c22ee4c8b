//! Threads, how kernels share them, and the time.

pub(crate) mod clock;
pub(crate) mod pool;
pub(crate) mod team;
