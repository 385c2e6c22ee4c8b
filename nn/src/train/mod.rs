//! Training: the trainer, its recorder, edits of a run, files of runs, and the curvature of a loss.

pub mod checkpoint;

mod capsule;
mod edit;
mod elements;
pub(crate) mod flight;
mod landscape;
mod save_file;
mod trainer;

pub use capsule::Capsule;
pub use edit::{Edit, Spot, Transform, write_edits};
pub use flight::{Failure, FlightConfig, FlightMemory, FlightRecorder, Part, Replay, Spike};
pub use landscape::{Eigenvalue, Estimate, Landscape, NoiseScale, Stability, cosine};
pub use save_file::SaveFile;
pub use trainer::{Inputs, Loss, LossScale, Precision, Trainer, TrainerConfig};
