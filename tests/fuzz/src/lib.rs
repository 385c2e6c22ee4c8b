//! What the targets share: a model whose checkpoint they read, and a file that holds the bytes at hand.

use std::io::{Seek, SeekFrom, Write};
use wgrad::{Array, DType, Session, Store, f16};
use wgrad_cpu::CpuBackend;

/// Parameters of two types, one of them in two pieces, and states of every type.
pub fn session() -> Session {
    let mut store = Store::new();
    store.param("a", &Array::new([2], vec![1.0f32, 2.0]));
    store.param("b", &Array::new([1, 2], vec![3.0f32, 4.0]));
    store.param("wide", &Array::new([2], vec![5.0f64, 6.0]));
    store.state("half", &Array::new([2], vec![f16::from_f64(0.5), f16::from_f64(7.0)]));
    store.state("best", &Array::new([], vec![8.0f64]));
    store.state("counter", &Array::new([1], vec![9u32]));
    store.state("offset", &Array::new([1], vec![-1i32]));
    store.state("flags", &Array::new([2], vec![true, false]));
    Session::new(Box::new(CpuBackend::new(1).expect("a thread starts")), store).expect("there is room")
}

/// All states of a session, with their types: compared by their text, NaN equals itself.
pub fn states(session: &mut Session) -> Vec<(DType, String)> {
    let ids: Vec<_> = session.layout().states().map(|(id, decl)| (id, decl.dtype)).collect();
    ids.into_iter().map(|(id, dtype)| (dtype, format!("{:?}", session.read(id).expect("it can be read")))).collect()
}

/// A file that holds one input after another.
pub struct Bytes(tempfile::NamedTempFile);

impl Default for Bytes {
    fn default() -> Self {
        Self(tempfile::NamedTempFile::new().expect("a temporary file"))
    }
}

impl Bytes {
    /// Makes the file hold these bytes alone.
    pub fn hold(&mut self, bytes: &[u8]) -> &std::path::Path {
        let file = self.0.as_file_mut();
        let written = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).and_then(|_| file.write_all(bytes));
        written.expect("a temporary file can be written");
        self.0.path()
    }
}
