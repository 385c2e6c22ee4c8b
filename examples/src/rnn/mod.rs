//! `wgrad rnn`: recurrent networks on tasks that need a long memory, after Pascanu, Mikolov & Bengio 2013.

mod command;
mod config;
mod model;
mod table;
mod train;

pub use command::train;
pub use config::{Case, CellName, Config, Fix, TaskName};
pub use model::Model;
pub use table::{FlowColumn, flow_table};
pub use train::{Files, Finished, Watch, program, run};
