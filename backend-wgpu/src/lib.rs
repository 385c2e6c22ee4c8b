//! The wgpu backend of wgrad: plans as WGSL compute shaders on any Vulkan, Metal or DX12 adapter.
//!
//! ```no_run
//! use wgrad_wgpu::{Choice, Options, WgpuBackend, adapters};
//! for (i, adapter) in adapters().iter().enumerate() {
//!     println!("gpu:{i}  {} ({}, {})", adapter.name, adapter.kind, adapter.backend);
//! }
//! let backend = WgpuBackend::new(Choice::Best, Options::default())?;
//! # let _ = wgrad::Session::new(Box::new(backend), wgrad::Store::new());
//! # Ok::<(), wgrad_wgpu::Error>(())
//! ```
//!
//! Elements take words of 32 bits, halves 16: `memory.rs` says how each type is kept. Numbers below the smallest normal one may
//! be taken for 0: WGSL leaves that to the driver. What the gradient of a sequence hands from step to step is 0 from 2^-110 on.

mod backend;
mod clock;
mod device;
mod error;
mod executor;
mod lower;
mod memory;
mod merge;
mod pipelines;
mod schedule;
mod wgsl;

pub use backend::{Counters, WgpuBackend};
pub use device::{AdapterKind, AdapterSummary, Choice, Gpu, Options, adapters};
pub use error::{Error, Result};
#[doc(hidden)]
pub use schedule::{Imagined, kernels};
