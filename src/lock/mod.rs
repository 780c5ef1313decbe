//! The engine: locks by key, without HTTP and without any particular backend.
//!
//! # The life of a lock
//!
//! Per key and process there is one *lane* ([`lane`]), a state machine under the mutex of its shard
//! of the table ([`lanes`]). Everything else asks it: the acquire that wants the key, the guard that
//! gives it up, the task that talks to the backend. An event changes the state under the mutex and
//! answers what is to be done ([`order`]); that is done after the mutex is free ([`engine`]).
//!
//! | phase | event | next phase | to be done |
//! |---|---|---|---|
//! | idle | acquire | contending, driven by the acquire | first try |
//! | contending | acquire | | queue; with `no_wait` refuse, or hear the first answer |
//! | contending | the driver's try is granted | held | return the guard |
//! | contending | the driver's try fails; it may wait | contending, by a task | the driver queues in front |
//! | contending | the driver is dropped, its try on the wire | contending, by a task | finish the try |
//! | contending | the driver leaves | contending, by a task for those who queue, or idle | |
//! | contending | the task's try is granted | held by the first in the queue | wake it |
//! | contending | the same, nobody queues, or under other terms | surrendered | tell the releaser |
//! | contending | the task's try is refused | | refuse `no_wait`s; wait for hint, end of lease, backstop |
//! | contending | the task's try can never succeed | idle | refuse the queue |
//! | contending | the last waiter leaves | idle, when the task has woken | the task ends |
//! | contending | the task is dropped with its runtime | idle | refuse the queue |
//! | contending, held | forced open, and nobody knows whether before or after the grant | | renew at once: the backend knows |
//! | held | acquire by the owner | | count up; at 64 refuse; if the grant is lost, a stranger |
//! | held | acquire by another | | queue; with `no_wait` refuse |
//! | held | release, count above 1 | | count down |
//! | held | last release, somebody queues, budget left | held by the first in the queue | wake it |
//! | held | last release otherwise | surrendered | tell the releaser |
//! | held | handed on, the budget is about to end, somebody queues still | | extend: more, unless others wait |
//! | held | extended | | a fresh budget; the guard's deadline moves |
//! | held | not extended: others wait | | those who queue have one more turn at most |
//! | held | a third of the lease has passed | | renew |
//! | held | renewed | | the guard's deadline moves |
//! | held | the renewal says "not held", or it was forced open | contending, or idle | tell the guard; contend |
//! | held | the guard's deadline has passed | surrendered | tell the guard and the releaser |
//! | surrendered | acquire, nobody queues, budget left | held | take the lease back |
//! | surrendered, returning | acquire otherwise | | queue; with `no_wait` only as the first |
//! | surrendered | renewed or extended, somebody queues, budget left | held by the first in the queue | wake it |
//! | surrendered | the releaser comes, nobody queues | returning | release |
//! | surrendered | the releaser comes, somebody queues | returning | pass: keep unless others wait |
//! | surrendered, returning | the lease must have run out, nothing came of it | contending by a task, or idle | as after a runtime that went down |
//! | returning | kept | held by the first in the queue | wake it; if it left, release |
//! | returning | forced open | contending by a task, or idle | if it is kept, give it back |
//! | returning | released, not held, or failed | contending by a task, or idle | a failed release is tried again beside it |
//!
//! What holds between them:
//!
//! - A lane sends at most one acquire, release or pass at a time; renewals, and extensions as if they were
//!   renewals, go beside them, but none is sent after a release, and a release waits for the answer to one
//!   on the wire.
//! - Processes that all want a key have it in turn. A lease that another process had before is handed on
//!   to those who wait there by then, and to most of them once more; then the others are asked. Whoever
//!   gave it up for them comes again when it has heard so many releases as there are others.
//! - Each acquire command has a lease id of its own. If its fate is unknown, the id is released
//!   until the backend answers or the lease must have run out; the next try has another id.
//! - A guard is current if the lane holds the very grant it was made from. Anything a guard does
//!   that is not current, such as one that was lost, changes nothing.
//! - Whoever leaves the queue while it is being served gets a hold that nobody takes: dropping it
//!   releases it, to the next in the queue.
//!
//! # Dropped futures
//!
//! The only futures a caller can drop are the acquire and `release`. An acquire is at one of two
//! awaits: its own first try (a driver, which hands the try to a task) or its place in the queue
//! (which it leaves). `release` has handed over its duty before it awaits. Everything else runs in
//! tasks, which only the end of their runtime drops: then the leases run out.

mod acquire;
mod contender;
mod engine;
mod entry;
mod extension;
mod grant;
mod guard;
mod lane;
mod lanes;
mod lease;
mod manager;
mod moment;
mod observe;
mod options;
mod order;
mod releaser;
mod snapshot;
mod watchdog;

pub use acquire::{Acquire, AcquireFuture};
pub use grant::Lost;
pub use guard::{Held, LockGuard};
pub use manager::{LockManager, LockManagerBuilder};
pub use options::MAX_HOLD_COUNT;
pub(crate) use options::{valid_lease, valid_wait};
pub use snapshot::{LockInfo, Snapshot};
