//! Programs as a user writes them, each short enough to be read as an example, with the same program in PyTorch beside it.
//! Tests run them with few steps, and the bench `research` times them and their peers.

pub mod ddpm;
pub mod own_cell;
pub mod pinn;
pub mod sam;
pub mod wgan_gp;
pub mod zclip;
