//! The wgpu backend of wgrad: not built yet. This crate holds its place in the workspace, and exports nothing.
