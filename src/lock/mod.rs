//! The engine: locks by key, without HTTP and without any particular backend.
//!
//! # Life of a lock
//!
//! Each key has one *lane* per process ([`lane`]): a state machine under the mutex of its shard of the
//! table ([`table`]). Acquires, guards and background tasks send it events. An event changes the state
//! under the mutex and fills one [`effect::Effects`] value; [`dispatch`] carries it out after the mutex is
//! free. No other file resolves a waiter, reports a release, wakes the listeners of a loss or starts a task
//! for a lane.
//!
//! The column *task* names the background task that the next phase needs in order to progress: `loop` is an
//! acquire loop ([`contender`]), `releaser` a task of [`releaser`], `watchdog` the task of [`watchdog`].
//!
//! | phase | event | next phase | effect | task |
//! |---|---|---|---|---|
//! | idle | acquire | contending, inline | send the first attempt | |
//! | contending | acquire | | queue; with `no_wait` wait for the reply, or reject behind others | |
//! | contending, inline | the attempt is granted | held | return the guard | watchdog |
//! | contending, inline | the attempt is refused | contending | queue in front, start a loop | loop |
//! | contending, inline | dropped with the attempt in flight | contending | a loop finishes the attempt | loop |
//! | contending, inline | not polled for 10 ms while others wait, or past its deadline | contending | queue in front, a loop finishes the attempt | loop |
//! | contending, inline | leaves after its attempt | contending, or idle | start a loop for the queue | loop |
//! | contending | the loop's attempt is granted | held by the first in the queue | resolve it | watchdog |
//! | contending | the same, the queue is empty or asks for other terms | surrendered | release | releaser |
//! | contending | the loop's attempt is refused | | reject `no_wait`s that came before it | loop |
//! | contending | the loop's attempt can never succeed | idle | reject the queue | |
//! | contending | the last waiter leaves | idle, when the loop has woken | the loop ends | loop |
//! | contending | the loop is dropped with its runtime | contending, or idle | a loop in another runtime; reject waiters of the ended one | loop |
//! | contending | the loop does not run, a waiter in another runtime | contending | a loop there; release what the old one gets | loop |
//! | contending, held | released by force, before or after the grant | | renew at once: the backend knows | watchdog |
//! | held | acquire by the owner, or queued acquires of the owner | | count up; at 64 reject | watchdog |
//! | held | acquire by another owner | | queue; with `no_wait` reject | watchdog |
//! | held | release, count above 1 | | count down; the terms of the remaining holds apply | watchdog |
//! | held | last release, a waiter, budget left | held by the first in the queue | resolve it | watchdog |
//! | held | last release otherwise | surrendered | release | releaser |
//! | held | handed on, the budget is about to end, waiters | | extend: more, unless others wait | a task of its own |
//! | held | extended | | a fresh budget; the guard's deadline moves | watchdog |
//! | held | not extended: others wait | | the queue has one more turn at most | watchdog |
//! | held | a renewal is due, see [`lease`] | | renew | watchdog |
//! | held | renewed | | the guard's deadline moves | watchdog |
//! | held | not picked up by the deadline of its waiter | surrendered | release | releaser |
//! | held | the renewal says "not held", or released by force | contending, or idle | mark the guard lost; contend | loop |
//! | held | the guard's deadline has passed | surrendered | mark the guard lost; release | releaser |
//! | held | its runtime ends | | not renewed any more | watchdog of another runtime |
//! | surrendered | acquire, the queue is empty, budget left | held | take the lease back | watchdog |
//! | surrendered, returning | acquire otherwise | | queue; with `no_wait` only as the first | releaser |
//! | surrendered | renewed or extended, a waiter, budget left | held by the first in the queue | resolve it | watchdog |
//! | surrendered | the releaser comes, the queue is empty | returning | release | releaser |
//! | surrendered | the releaser comes, a waiter | returning | keep unless others wait | releaser |
//! | surrendered, returning | the task does not run, a waiter in another runtime | | release from there, too | releaser there |
//! | surrendered, returning | the lease must have expired | contending, or idle | report `Unavailable` | loop |
//! | returning | kept | held by the first in the queue | resolve it; if it left, release | watchdog |
//! | returning | released by force | contending, or idle | if it is kept, release it | loop |
//! | returning | released, not held, or failed | contending, or idle | a failed release is tried again beside it | loop |
//!
//! # Invariants
//!
//! - A lane sends at most one acquire or release at a time; renewals, and extensions as if they were
//!   renewals, go beside them, but none is sent after a release, and a release waits for the reply to one
//!   in flight. The exception is a command whose task does not run: another runtime does not wait for it.
//! - Processes that all want a key have it in turn. A lease that another process had before is handed on
//!   to those who wait there by then, and to most of them once more; then the others are asked. A process
//!   that released it for them comes again when it has heard as many releases as there are others.
//! - Each acquire command has a lease id of its own. If its fate is unknown, the id is released
//!   until the backend replies or the lease must have expired; the next attempt has another id.
//! - A guard is current if the lane holds the very grant it was made from. Anything that a guard does
//!   that is not current, such as one that was lost, changes nothing.
//! - A waiter that is dropped while it is being resolved gets a hold that nobody takes: it is
//!   released, to the next in the queue.
//!
//! # Runtimes
//!
//! Background work runs in the *home* of a lane: the runtime in which its last event happened, or the one
//! set by [`LockManagerBuilder::runtime`]. Each home has a watchdog, a releaser and a resolver of its own.
//! A held lock is renewed by the watchdog of the runtime that acquired it, and by no other. What a home does
//! not do in time is done by the home of a waiter, and what a home that has ended leaves behind by any
//! other.
//!
//! # Dropped futures
//!
//! A caller can drop two futures: the acquire and `release`. An acquire is at one of two awaits: its own
//! first attempt, which it hands to a task, or its place in the queue, which it leaves. The lane owns the
//! progress of both, so a future that is not polled holds up no other. `release` has handed over its duty
//! before it awaits. Everything else runs in tasks, which only the end of their runtime drops.

mod acquire;
mod attempt;
mod claim;
mod clock;
mod contender;
mod deadlines;
mod dispatch;
mod effect;
mod engine;
mod extend_ahead;
mod grant;
mod guard;
mod home;
mod lane;
mod lease;
mod lost;
mod manager;
mod options;
mod pending;
mod release_queue;
mod releaser;
mod resolver;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;
mod timeout;
mod unresolved;
mod wake;
mod watchdog;

pub use acquire::{Acquire, AcquireFuture};
pub use guard::{Held, LockGuard};
pub use lost::Lost;
pub use manager::{LockManager, LockManagerBuilder};
pub use options::MAX_HOLD_COUNT;
pub(crate) use options::{valid_lease, valid_wait};
pub use snapshot::{LockInfo, Snapshot};
