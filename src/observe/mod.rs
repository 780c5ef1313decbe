//! Reports to `tracing` and `metrics`, if those features are enabled.
//!
//! It is part of the ground floor, so the engine, the backends and the layer can all report.
//! A report never contains a key or an owner: requests choose the keys, and each value would
//! create a series of its own.

mod acquired;
mod lost;

pub(crate) use acquired::acquired;
pub(crate) use lost::lost;
