//! The primary of a service, as its sentinels report it.

mod sentinels;
mod votes;

pub(crate) use sentinels::Sentinels;
