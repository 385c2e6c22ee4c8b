//! The device that the command line names, and how it is opened.

use crate::{Result, cli::Common};
use std::{fmt, str::FromStr};
use wgrad::{Backend, Session, Store};
use wgrad_cpu::CpuBackend;
use wgrad_wgpu::{Choice, Error, Gpu, Options, WgpuBackend};

/// A device as the command line names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Device {
    /// The best real GPU, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU: the best one, or the GPU of this number.
    Gpu(Option<usize>),
}

impl FromStr for Device {
    type Err = String;
    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "gpu" => Ok(Device::Gpu(None)),
            _ => match name.strip_prefix("gpu:").map(str::parse) {
                Some(Ok(number)) => Ok(Device::Gpu(Some(number))),
                _ => Err("expected auto, cpu, gpu or gpu:N".into()),
            },
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => write!(f, "auto"),
            Device::Cpu => write!(f, "cpu"),
            Device::Gpu(None) => write!(f, "gpu"),
            Device::Gpu(Some(number)) => write!(f, "gpu:{number}"),
        }
    }
}

/// An open device. Each session on it has its own backend; all sessions share the pipelines that are compiled for a
/// GPU.
#[derive(Clone)]
pub enum Place {
    /// The CPU.
    Cpu {
        /// The number of threads; 0 takes all cores.
        threads: usize,
    },
    /// A GPU.
    Gpu(Gpu),
}

impl Place {
    /// Opens the device that the command line asks for. The CPU is opened without a search for adapters. A note on
    /// standard error says if `auto` falls back to the CPU because its GPU fails, and if `gpu` takes a software
    /// renderer.
    ///
    /// # Errors
    /// If the command line asks for a GPU that is not there or cannot be opened.
    pub fn open(common: &Common) -> Result<Self> {
        let cpu = Place::Cpu { threads: common.threads.into() };
        let open = |choice| Gpu::open(choice, Options::default());
        let note = |text: String| {
            if !common.quiet && common.rank.is_first() {
                eprintln!("wgrad: {text}");
            }
        };
        match common.device {
            Device::Cpu => Ok(cpu),
            Device::Auto => Ok(match open(Choice::Hardware) {
                Ok(gpu) => Place::Gpu(gpu),
                Err(Error::NoAdapter) => cpu,
                Err(error) => {
                    note(format!("{error}; running on the CPU"));
                    cpu
                }
            }),
            Device::Gpu(Some(number)) => Ok(Place::Gpu(open(Choice::Index(number))?)),
            Device::Gpu(None) => {
                let gpu = open(Choice::Best)?;
                if gpu.summary().is_software() {
                    let name = &gpu.summary().name;
                    note(format!("there is no GPU but {name}, a software renderer, which is slower than --device cpu"));
                }
                Ok(Place::Gpu(gpu))
            }
        }
    }

    /// A backend on the device.
    ///
    /// # Errors
    /// If threads cannot be started, or a GPU is lost.
    pub fn backend(&self) -> Result<Box<dyn Backend>> {
        Ok(match self {
            Place::Cpu { threads } => Box::new(CpuBackend::new(*threads)?),
            Place::Gpu(gpu) => Box::new(WgpuBackend::on(gpu)?),
        })
    }

    /// A session on the device.
    ///
    /// # Errors
    /// As [`Place::backend`]; or if the device has too little memory for the store.
    pub fn session(&self, store: Store) -> Result<Session> {
        Ok(Session::new(self.backend()?, store)?)
    }

    /// The name of the device, with details such as its driver or its threads.
    ///
    /// # Errors
    /// As [`Place::backend`].
    pub fn name(&self) -> Result<String> {
        Ok(self.backend()?.name())
    }

    /// True if the device computes in f64.
    pub fn has_f64(&self) -> bool {
        matches!(self, Place::Cpu { .. })
    }
}
