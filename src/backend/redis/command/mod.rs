//! Commands and their replies.
//!
//! | file | responsibility |
//! |---|---|
//! | `script`, `lua` | the scripts |
//! | `names`, `slot` | the names of keys and channels, and their slots |
//! | `call`, `share`, `send` | typed calls of the scripts |
//! | `queue` | the calls that end a lease or wait for a lock, in the order of its queue |
//! | `scattered` | calls whose keys may be at several nodes |
//! | `reply`, `error` | the meaning of replies and of errors |
//! | `acquire_batch` | concurrent acquires in one call |
//! | `quarantine` | the pause of grants after a loss of data |
//!
//! A new script is a file in `lua` and a field of `Scripts`. The self-test calls it, and the permissions
//! of [`RedisBackend`](crate::RedisBackend) list its commands. Its class says what a resend does.

mod acquire_batch;
mod call;
mod error;
mod names;
mod quarantine;
mod queue;
mod reply;
mod scattered;
mod script;
mod send;
mod share;
mod slot;

pub(crate) use acquire_batch::AcquireBatch;
pub(crate) use call::{Calls, KeyRoute};
pub(crate) use error::{
    Cause, CommandError, check, is_demoted, is_reply, not_connected, not_dialed, unavailable,
    unexpected,
};
pub(crate) use names::{Names, OURS, millis};
pub(crate) use quarantine::{prepare, spread_quarantine};
pub(crate) use reply::{Outcomes, entry, granted, is_granted_again, not_primary, spread, text};
pub(crate) use script::{MAX_BATCH, SPAN, Scripts};
pub(crate) use slot::{SLOTS, slot_of};
