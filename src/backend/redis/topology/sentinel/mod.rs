//! The primary of a service, as reported by its sentinels.

mod sentinels;
mod votes;

pub(crate) use sentinels::{Sentinels, require_primary};
