//! The queue of a lock's waiters in Redis: the scripts against a reference, and the rules of the order.

mod clock;
mod commands;
mod comparison;
mod denied;
mod drops;
mod expected;
mod grants;
mod implausible;
mod model;
mod permits;
mod pollers;
mod random;
mod rules;
mod scripts;
mod server;
mod shared;
mod single;
mod stored;

pub(crate) use pollers::pooled;
