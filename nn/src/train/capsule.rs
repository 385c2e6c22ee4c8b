//! Capsules: a step of a run in one file, to be run again anywhere.

use super::{
    SaveFile,
    checkpoint::{Metadata, read_file, write_file},
};
use crate::error::{Error, Result};
use std::{borrow::Cow, path::Path};
use wgrad::{Array, Backend, Program, Session, Step, StoredProgram};

/// The version of the format.
const FORMAT: &str = "1";
/// The keys of the format's own metadata.
const FORMAT_KEY: &str = "wgrad.capsule";
const PROGRAM_KEY: &str = "wgrad.program";
const DEVICE_KEY: &str = "wgrad.device";
const VERSION_KEY: &str = "wgrad.version";
const RESERVED: &str = "wgrad.";
/// The prefixes of tensors' names.
const STATE: &str = "state:";
const INPUT: &str = "input:";

/// A recorded program with the values of all its inputs and states before a run: parameters, states of optimizers,
/// running statistics, generators of random numbers. It is stored as one safetensors file.
#[derive(Clone, PartialEq, Debug)]
pub struct Capsule {
    program: StoredProgram,
    states: Vec<Array>,
    inputs: Vec<(String, Array)>,
    /// The device that the run was on.
    pub device: String,
    /// The version of wgrad that made the capsule.
    pub version: String,
    /// The caller's notes. No key begins with `wgrad.`.
    pub notes: Metadata,
}

impl Capsule {
    /// The capsule of a program, with the present states of a session.
    ///
    /// # Errors
    /// If the device is lost, or a run has failed.
    pub fn of(session: &mut Session, program: &Program, inputs: &[(&str, &Array)]) -> wgrad::Result<Self> {
        let layout = session.layout().clone();
        let states = layout.states().map(|(state, _)| session.read(state)).collect::<wgrad::Result<_>>()?;
        Ok(Self {
            program: program.stored(),
            states,
            inputs: inputs.iter().map(|(name, array)| (name.to_string(), (*array).clone())).collect(),
            device: session.device(),
            version: env!("CARGO_PKG_VERSION").into(),
            notes: Metadata::new(),
        })
    }

    /// The values of the states, in the order of declaration.
    pub fn states(&self) -> &[Array] {
        &self.states
    }

    /// The inputs of the run.
    pub fn inputs(&self) -> Vec<(&str, &Array)> {
        self.inputs.iter().map(|(name, array)| (name.as_str(), array)).collect()
    }

    /// Opens a session on a device, with the program and the states before the run.
    ///
    /// # Errors
    /// [`wgrad::Error::NoProgram`] if the capsule holds none; as [`Session::new`] and [`Session::compile`].
    pub fn open(&self, backend: Box<dyn Backend>) -> wgrad::Result<(Session, Step)> {
        let (program, store) = self.program.clone().open(self.states.clone())?;
        let mut session = Session::new(backend, store)?;
        let step = session.compile(program)?;
        Ok((session, step))
    }

    /// Saves the capsule. The file is replaced in one step, when the new one is complete and on disk.
    ///
    /// # Errors
    /// As [`SaveFile::open`] and [`SaveFile::write`]; [`Error::Header`] if the program is too long for a file's header.
    ///
    /// # Panics
    /// If the key of a note begins with `wgrad.`.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let reserved = self.notes.keys().find(|key| key.starts_with(RESERVED));
        assert!(reserved.is_none(), "capsule: the key {reserved:?} is reserved for the format");
        let mut metadata = self.notes.clone();
        let program = serde_json::to_string(&self.program).expect("a program serializes");
        for (key, text) in
            [(FORMAT_KEY, FORMAT), (PROGRAM_KEY, &program), (DEVICE_KEY, &self.device), (VERSION_KEY, &self.version)]
        {
            metadata.insert(key.into(), text.into());
        }
        let states = self.program.states().zip(&self.states);
        let states = states.map(|((name, ..), array)| (format!("{STATE}{name}"), Cow::Borrowed(array)));
        let inputs = self.inputs.iter().map(|(name, array)| (format!("{INPUT}{name}"), Cow::Borrowed(array)));
        write_file(&SaveFile::open(path)?, states.chain(inputs).collect(), &metadata)
    }

    /// Reads a capsule.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Malformed`] if the file cannot be read; [`Error::Capsule`] if it is no capsule, has
    /// another version of the format, or is incomplete.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (mut tensors, mut metadata) = read_file(path)?;
        let fails = |why: String| Error::Capsule { path: path.into(), why };
        match metadata.get(FORMAT_KEY).map(String::as_str) {
            Some(FORMAT) => {}
            Some(found) => return Err(fails(format!("its format is {found:?}, and this version reads {FORMAT:?}"))),
            None => return Err(fails("it is another safetensors file".into())),
        }
        let program: StoredProgram = serde_json::from_str(metadata.get(PROGRAM_KEY).map_or("", String::as_str))
            .map_err(|error| fails(format!("its program does not read ({error})")))?;
        let mut take = |name: String| {
            tensors.remove(&name).ok_or_else(|| fails(format!("it has no tensor {name:?}, which its program needs")))
        };
        let states: Result<Vec<Array>> = program.states().map(|(name, ..)| take(format!("{STATE}{name}"))).collect();
        let inputs: Result<Vec<(String, Array)>> =
            program.inputs().map(|(name, ..)| Ok((name.to_string(), take(format!("{INPUT}{name}"))?))).collect();
        let (states, inputs) = (states?, inputs?);
        for ((name, shape, dtype), (_, array)) in program.inputs().zip(&inputs) {
            if (array.shape(), array.dtype()) != (shape, dtype) {
                let have = format!("{}{}", array.dtype(), array.shape());
                return Err(fails(format!("its input {name:?} is {have}, and its program reads {dtype}{shape}")));
            }
        }
        // Opening the program checks that a tape could have recorded it.
        program.clone().open(states.clone()).map_err(|error| fails(error.to_string()))?;
        let own = |key: &str| metadata.get(key).cloned().unwrap_or_default();
        let (device, version) = (own(DEVICE_KEY), own(VERSION_KEY));
        metadata.retain(|key, _| !key.starts_with(RESERVED));
        Ok(Self { program, states, inputs, device, version, notes: metadata })
    }
}
