//! Public proptest strategies (feature `testing`).
