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
//! Elements take words of 32 bits, f16 values 16: `memory.rs` says how each type is kept. Numbers below the smallest normal one may
//! be taken for 0: WGSL leaves that to the driver. What the gradient of a sequence hands from step to step is 0 from 2^-110 on.
//!
//! Compiled kernels stay when a program is dropped, for the next program that has the same: 256 MiB of them at
//! most, or what [`Options::kernels`] says, beyond what living programs use. Its buffers are freed. So memory stays flat
//! whatever number of shapes is computed, one after the other.
//!
//! Products of f16 are made by the adapter's matrix units where wgpu offers some that multiply squares of f16 and add in
//! f32 (Vulkan with `VK_KHR_cooperative_matrix`, Metal), and a self-test at opening finds them exact: subnormal f16 values
//! count, and sums are in f32. How the sums of a few products are rounded is the hardware's own affair, so results differ from
//! other kernels' by as much as another order of summands does. Other products do not use them: of f32 they would drop
//! digits. [`Gpu::matrix_units`] tells if they are used. **They have not been run on hardware yet**: their kernels are
//! held to naga and spirv-val, and run in tests with loops in place of the units.

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
mod units;
mod wait;
mod wgsl;

pub use backend::{Counters, WgpuBackend};
#[doc(hidden)]
pub use device::StandIn;
pub use device::{AdapterKind, AdapterSummary, Choice, Compiler, Gpu, Options, adapters};
pub use error::{Error, Result};
#[doc(hidden)]
pub use schedule::{Imagined, kernels};
pub use units::MatrixUnits;
