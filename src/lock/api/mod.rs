//! What a program calls.

pub(super) mod builder;
pub(super) mod forced;
pub(super) mod manager;
pub(super) mod snapshot;
