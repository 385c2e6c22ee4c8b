//! `wgrad rnn`: recurrent networks on tasks that need a long memory, after Pascanu, Mikolov & Bengio 2013.

mod command;
mod config;
mod example;
mod model;

pub use command::train;
pub use config::{CURES, Case, CellName, Config, Fix, TaskName};
pub use example::step;
pub use model::Model;
