//! Choosing a device by name.

use crate::{Error, Result};
use std::{fmt, str::FromStr};
use wgrad::Backend;
use wgrad_cpu::CpuBackend;

/// A device as the command line names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Device {
    /// The best real GPU, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU: the best one, or the one of this number.
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

/// Opens a device. `threads` is for the CPU; 0 takes all cores.
///
/// # Errors
/// [`Error::NoDevice`] if there is no such device; [`Error::Session`] if it cannot be opened.
pub fn open(device: Device, threads: usize) -> Result<Box<dyn Backend>> {
    match device {
        Device::Auto | Device::Cpu => Ok(Box::new(CpuBackend::new(threads)?)),
        Device::Gpu(_) => Err(Error::NoDevice(device)),
    }
}
