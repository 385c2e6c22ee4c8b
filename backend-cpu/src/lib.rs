//! tmp
#![allow(missing_docs, unused)]
pub mod reference;
pub mod reference_plan;
