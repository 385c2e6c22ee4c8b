//! Ranks of wgrad that are processes, connected by MPI.
//!
//! `mpirun -n 4 program` starts four processes, each of which connects to the others once:
//!
//! ```no_run
//! use std::time::Duration;
//! use wgrad::Collective;
//! let world = wgrad_mpi::World::connect(Duration::from_secs(60)).expect("all ranks have started");
//! println!("rank {} of {}", world.rank(), world.ranks());
//! // From here on: `session.with_collective(Box::new(world))`.
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `message.rs` | messages between ranks, as bytes |
//! | `wire.rs` | messages and bulk data through MPI: all that is `unsafe` |
//! | `pace.rs` | waiting: at first without sleep, and not for ever |
//! | `pieces.rs` | values that travel in pieces while the rest of them is computed |
//! | `world.rs` | the exchange of values, and the end of a world |

#![cfg(feature = "mpi")]

mod error;
mod message;
mod pace;
mod pieces;
mod wire;
mod world;

pub use error::Error;
pub use world::World;

// Values travel as they lie in memory, and lengths as 64 bits.
#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("wgrad-mpi connects 64-bit little-endian machines only");
