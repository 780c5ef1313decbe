//! What is sent to a server and what it replies: scripts, names, errors.

mod acquire_batch;
mod error;
mod names;
mod quarantine;
mod script;
mod slot;

pub use script::Publish;

pub(crate) use acquire_batch::{AcquireBatch, acquire};
pub(crate) use error::{
    Cause, CommandError, check, is_demoted, kind_of_connecting, no_end, refusal, unexpected,
};
pub(crate) use names::{Lease, Name, Names, millis};
pub(crate) use quarantine::{Quarantine, prepare, spread as spread_quarantine};
pub(crate) use script::{
    Answers, KeyRoute, MAX_BATCH, Script, Scripts, answered, granted, plain, remaining,
};
pub(crate) use slot::{SLOTS, fence_of, slot_of};
