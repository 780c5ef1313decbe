//! The guide: where locks live, and how to use, operate and test them.
//!
//! # Where locks live
//!
//! Each page states what the place guarantees, what a failover can do to it, and what to set.
//!
//! | place | survives | needs | URL or builder |
//! |---|---|---|---|
//! | memory | nothing beyond its process | one process | `memory://`, [`Memory`](crate::Memory) |
//! | [`one_server`] | a crash, as far as the server keeps its data | persistence | `redis://` |
//! | [`sentinel`] | the loss of a server, not always of its last writes | three sentinels, replicas | `redis+sentinel://` |
//! | [`cluster`] | the same, for each part of the keys | three nodes with replicas | `redis+cluster://` |
//! | [`postgres`] | a crash, and stale holders that begin their transactions with the fence | the database of the service | `postgres://`, feature `postgres` |
//! | [`quorum`] | the loss of any minority of servers, last writes included | three or five independent servers | [`Quorum`](crate::Quorum) |
//!
//! The rest of the program stays the same: the same [`LockManager`](crate::LockManager), the same layers.
//!
//! # Topics
//!
//! | page | for readers with this task |
//! |---|---|
//! | [`keys`] | choose the keys of a service |
//! | [`http`] | lock routes, and handle the responses in a client |
//! | [`problems`] | understand the problem types of rejected requests |
//! | [`fencing`] | make the storage reject stale holders |
//! | [`redis`] | configure the Redis backend |
//! | [`redisson`] | share locks with Java services |
//! | [`incidents`] | find the cause of an incident, and what each alert means |
//! | [`operations`] | monitor, shut down and repair a service in production |
//! | [`dashboard`] | show operators the locks of a process, and protect the page |
//! | [`order`] | find out which waiter is next, and what a failed process costs |
//! | [`shared`] | let reads overlap each other but no write, or limit the requests of a key |
//! | [`runtimes`] | use several runtimes, blocking handlers or synchronous code |
//! | [`backend`] | keep locks in a store of your own |
//! | [`testing`] | test a service that locks, or run the tests of this crate |
//! | [`benchmarks`] | estimate the cost, and compare with other locks |
//! | [`porting`] | replace a mutex, `SELECT … FOR UPDATE` or Redisson |
//!
//! # Which place to choose
//!
//! Use the Redis that the service already has. A fencing token that the storage checks keeps the data right even if
//! the server loses a lock: the storage rejects the write of the stale holder. Replicas and failover improve the
//! availability of locks, but not their correctness, because Redis replicates after it has replied.
//!
//! A quorum of independent servers keeps a lock when one server loses it, and continues without a failover. It
//! relies on clocks, as every lease does, so the token remains useful in every place.
//!
//! # What all places have in common
//!
//! - A guard is trusted until its deadline. The process computes the deadline with its own clock, from before it
//!   sent the command. A server that hangs or a network that is cut thus ends a guard in time, without a command.
//! - A renewal never creates a lock. A lock that a server lost is detected at its next renewal. After a reconnect, all
//!   leases are renewed at once.
//! - A command that failed counts neither as done nor as not done. An acquire without a reply is released
//!   automatically.
//! - A request that has a key never runs without its lock. If the backend is unavailable, the response is 503. Only
//!   [`on_unavailable`](crate::LockLayer::on_unavailable) and [`observe_only`](crate::LockLayer::observe_only) change
//!   that. Safe methods, requests that [`skip`](crate::LockLayer::skip) names, and a key source that returns `None` have no
//!   key.

pub mod backend;
pub mod benchmarks;
#[cfg(feature = "redis")]
pub mod cluster;
pub mod dashboard;
// `tests/lib.rs` runs its program, which needs SQLite.
#[cfg(not(doctest))]
pub mod fencing;
pub mod http;
pub mod incidents;
pub mod keys;
#[cfg(feature = "redis")]
pub mod one_server;
pub mod operations;
pub mod order;
pub mod porting;
pub mod postgres;
pub mod problems;
pub mod quorum;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redisson;
pub mod runtimes;
#[cfg(feature = "redis")]
pub mod sentinel;
pub mod shared;
pub mod testing;
