//! Where the locks may live: what each place guarantees, what a failover can do to it, and what to
//! set. A page for each that is not in the memory of one process.
//!
//! | | survives | asks of you | URL, or builder |
//! |---|---|---|---|
//! | memory | nothing: it is one process | one process | `memory://`, [`Memory`](crate::Memory) |
//! | [`one_server`] | a crash, as far as the server remembers | persistence | `redis://` |
//! | [`sentinel`] | the loss of a server, not always of its last writes | three sentinels, replicas | `redis+sentinel://` |
//! | [`cluster`] | the same, for each part of the keys | three nodes with replicas | `redis+cluster://` |
//! | [`quorum`] | the loss of any minority of servers, last writes included | three or five servers that know nothing of each other | [`Quorum`](crate::backend::Quorum) |
//!
//! Nothing else in a program changes with it: the same [`LockManager`](crate::LockManager), the same
//! layers.
//!
//! # Which one
//!
//! Take the Redis that you have. A lock on one server, checked by a fencing token at the storage, is
//! right even where the server is not: the token refuses the write of a holder that was overtaken.
//! Replicas and failover make it *available*, not more correct, since Redis replicates after it has
//! answered. A quorum of independent servers keeps a lock when one of them forgets it, and goes on
//! without waiting for a failover. It rests on clocks, as every lease does: no place makes the token
//! needless.
//!
//! # What they have in common
//!
//! - Until when a guard can be trusted is counted by the clock of the process, from before the
//!   command was sent. A server that hangs, or a network that is cut, ends a guard on time without
//!   being asked.
//! - A renewal never makes a lock. What a server forgot is lost at the next renewal; where a connection
//!   had to be opened anew, all leases are renewed at once (not in a quorum).
//! - No command that failed is taken for done or for not done. An acquire without an answer is given
//!   back by itself.
//! - Nothing runs unlocked: what cannot be reached is 503.
//!
//! Where the background work of a manager runs is on the page [`runtimes`]. The page [`order`] states which
//! waiter is next, and what a failed process costs the others.

#[cfg(feature = "redis")]
pub mod cluster;
#[cfg(feature = "redis")]
pub mod one_server;
#[cfg(feature = "redis")]
pub mod order;
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redisson;
pub mod runtimes;
#[cfg(feature = "redis")]
pub mod sentinel;
