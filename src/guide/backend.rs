//! A backend: for authors of backends, which keep locks in another store, such as a database or a file.
//!
//! A store implements [`Backend`](crate::backend::Backend), whose documentation is the contract. The engine does the rest:
//! reentrancy, the queue in the process, renewals, retries and hand-offs.
//!
//! 1. Implement the six methods of the first table.
//! 2. [Run the contract](#run-the-contract) against two handles on one store, until it passes.
//! 3. Create the manager: `LockManager::builder(store).build()?`.
//!
//! # Methods
//!
//! Six methods are required. The suite requires that `force_release` compares the `holder`.
//!
//! | method | must | default |
//! |---|---|---|
//! | [`try_acquire`](crate::backend::Backend::try_acquire) | grant a key that is free, whose lease has expired, or that the same lease holds; return the holder's remaining TTL otherwise | none |
//! | [`renew`](crate::backend::Backend::renew) | extend each lease that holds its key to the TTL from now on; never shorten or create one | none |
//! | [`release`](crate::backend::Backend::release) | free each key that its lease holds, and hint to its subscribers | none |
//! | [`watch`](crate::backend::Backend::watch) | [subscribe](#hints) a manager to the hints of a key, at once | none |
//! | [`inspect`](crate::backend::Backend::inspect) | return the lease that holds the key, its remaining TTL, and a hold count of 1 | none |
//! | [`force_release`](crate::backend::Backend::force_release) | free the key from any lease, or only from the holder with this [`Holder::id`](crate::backend::Holder::id), and hint to its subscribers | none |
//!
//! The defaults of these methods fit a store without a queue of its own. Leave them out to begin with:
//!
//! | method | default | implement it if the store |
//! |---|---|---|
//! | [`contend`](crate::backend::Backend::contend), [`leave`](crate::backend::Backend::leave) | `try_acquire`, `release` | has a queue of the waiters of all processes |
//! | [`release_or_keep`](crate::backend::Backend::release_or_keep) | `release` | can count the subscribers of a key: busy keys without waiters elsewhere then need fewer commands. Each lease takes as many counters as its request asks for |
//! | [`capabilities`](crate::backend::Backend::capabilities) | exclusive leases only; 256 tokens per counter; 500 ms per command | has shared leases or permits: it then obeys the `mode` and the `limit` of an [`AcquireRequest`](crate::backend::AcquireRequest), and the `mode` of a [`Renewal`](crate::backend::Renewal). Has another bound for one command: `no_wait` ends within it. Has counters that other clients also use: one token per counter |
//! | [`downgrade`](crate::backend::Backend::downgrade) | an error: the store has no shared leases | has shared leases |
//! | [`recoveries`](crate::backend::Backend::recoveries) | no hints | detects that it is available again after an outage |
//! | [`group`](crate::backend::Backend::group) | one group | has parts that can hang separately |
//!
//! # Rules
//!
//! - *One step.* Each command compares and writes in one step, also between processes: a transaction, a script, or a
//!   mutex around reading and writing. The suite runs 16 attempts at once, from both handles, for 20 keys. That finds most
//!   mistakes, but proves nothing: also count under the lock in two processes.
//! - *Expiry.* A lease holds its key for its TTL. From then on, every method treats the key as free. Nothing needs to
//!   remove the row. An expiry needs no hint, because waiters attempt when the TTL of the holder has passed.
//! - *Repeats.* A `try_acquire` under the lease that holds the key is granted again, and a later `release` frees the
//!   key. A repeated `release` returns [`Released::NotHeld`](crate::backend::Released::NotHeld).
//! - *Counter.* Each grant of a key has a larger counter than the grants before, also after an expiry, a forced release
//!   and a restart. It stays below 2^53. One counter for the whole store is enough. A counter that can be lost begins
//!   at the clock: `max(stored + 1, milliseconds since 1970)`.
//! - *Batches.* `renew` and `release` return one result per item, in order, for any number of items and also for none.
//!   The failure of one item does not fail the others. If the store fails as a whole, each item returns a clone of the
//!   error.
//! - *Text forms.* A store outside of the process writes a key as [`LockKey::as_str`](crate::LockKey::as_str), and a
//!   lease as its `to_string()`. It compares these texts and never parses them. `Holder::id` is the text of the lease.
//! - *Order.* A `release` that starts after a `try_acquire` has returned, with an outcome or an error, does not take
//!   effect before it.
//! - *Time.* Each command completes within a bounded time. No method panics.
//!
//! # Hints
//!
//! [`watch`](crate::backend::Backend::watch) returns [`Hints`](crate::backend::Hints) at once: it does not block, and has no
//! error. The store keeps the [`HintSender`](crate::backend::HintSender) of
//! [`Hints::channel`](crate::backend::Hints::channel) until
//! [`is_closed`](crate::backend::HintSender::is_closed), and calls [`hint`](crate::backend::HintSender::hint)
//!
//! - once when the subscription is in effect, and after each interruption of it. For a store in the process, that is
//!   inside `watch`;
//! - at each release and forced release of the key, by any process.
//!
//! Register the subscriber before the first hint: an attempt that follows a hint then misses no release. A hint without
//! a reason costs one attempt. A lost hint costs the waiter about a second. The suite waits up to 3 s for a hint.
//!
//! A [`release_or_keep`](crate::backend::Backend::release_or_keep) can enter the next lease of a process in the queue. If that
//! lease listens there, the store also sends its transfer to a subscription that begins later.
//!
//! The engine calls `watch` in the runtime of its background work, so the method may spawn a task. A store without
//! notifications spawns one that reads the holder of the key at intervals, such as 50 ms. It hints after the first
//! reading, and when the key is free or its holder is another one than in the last reading. A release and a grant between
//! two readings thus cause a hint as well. The task ends when `is_closed` returns `true`.
//!
//! # Errors
//!
//! A command without an outcome returns a [`BackendError`](crate::backend::BackendError). It must not claim more than
//! the store knows:
//!
//! | situation | error | the engine then |
//! |---|---|---|
//! | the command was not executed, and will not be | [`refused`](crate::backend::BackendError::refused)`(kind, cause)` | attempts again with `Unavailable`, ends the acquire with `Misconfigured` or `Conflict` |
//! | the command may have been executed: no reply, a failed write | [`unknown`](crate::backend::BackendError::unknown)`(cause)` | releases that lease until it has an outcome, and attempts again under another lease |
//!
//! In doubt, use `unknown`. The `cause` is a text or any error, and becomes the source of the
//! [`Error`](crate::Error) of the acquire.
//!
//! # Stores that block
//!
//! A method must not block the runtime. A store with blocking calls, such as files or SQLite, runs each command in
//! `tokio::task::spawn_blocking`, under one mutex per store:
//!
//! ```
//! use std::fs;
//! use std::path::Path;
//! use std::sync::{Arc, Mutex};
//!
//! use tower_lock::backend::BackendError;
//!
//! /// A store of rows, and a mutex that orders the commands of this process.
//! #[derive(Clone)]
//! struct Blocking<S>(Arc<Mutex<S>>);
//!
//! impl<S: Send + 'static> Blocking<S> {
//!     /// Runs a command. Its error states whether it may have taken effect.
//!     async fn run<T: Send + 'static>(
//!         &self,
//!         command: impl FnOnce(&mut S) -> Result<T, BackendError> + Send + 'static,
//!     ) -> Result<T, BackendError> {
//!         let store = Arc::clone(&self.0);
//!         let task = tokio::task::spawn_blocking(move || {
//!             let mut store = store.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
//!             command(&mut store)
//!         });
//!         // The task fails if the command panicked, or the runtime is stopping.
//!         task.await.unwrap_or_else(|error| Err(BackendError::unknown(error)))
//!     }
//! }
//!
//! /// Replaces the data. If this fails, the new data may be on disk.
//! fn save(path: &Path, data: &str) -> Result<(), BackendError> {
//!     let new = path.with_extension("new");
//!     fs::write(&new, data).and_then(|()| fs::rename(&new, path)).map_err(BackendError::unknown)
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! # let store = Blocking(Arc::new(Mutex::new(6)));
//! # assert_eq!(store.run(|store| Ok(*store + 1)).await.unwrap(), 7);
//! # let store = Blocking(Arc::new(Mutex::new(Path::new("/no/such/directory/locks"))));
//! # let failed = store.run(|path| save(path, "row")).await;
//! # assert!(failed.unwrap_err().may_have_taken_effect());
//! # }
//! ```
//!
//! - The error of a command is a [`BackendError`](crate::backend::BackendError), because only the command distinguishes
//!   the kinds of failure. A failed write is [`unknown`](crate::backend::BackendError::unknown). A file lock that was
//!   not free in time is [`refused`](crate::backend::BackendError::refused) as `Unavailable`.
//! - The blocking command continues if its future is dropped. Do not put a `timeout` around it: a `release` could then
//!   overtake the `try_acquire`. Bound the blocking call instead.
//! - Commands borrow their requests, and the closure must be `'static`: clone the request or the slice first.
//! - Several processes also exclude each other, by a file lock on a file beside the data. Hold it from the read to the
//!   write. Acquire it with `File::try_lock`, until a deadline below the response timeout. Write the data to another
//!   file and rename it, so that a crash leaves the old or the new one. `create_new` alone is not enough: a crash
//!   leaves an empty file, and an expired lease must be replaced in one step.
//! - A key is no file name. It can contain `/`, `\`, `..`, spaces and letters of any script, has up to 512 bytes, and
//!   may differ from another key in case only. [`LockKey`](crate::LockKey) encodes none of these. If each key has
//!   a file, name the file by the SHA-256 of [`as_str`](crate::LockKey::as_str) in hexadecimal, and write the key into it.
//! - The times of a shared store are those of one clock, as milliseconds since 1970 (`SystemTime`). tokio's `Instant`
//!   has no meaning in another process.
//!
//! # Example
//!
//! A table in memory. Its clock is tokio's, so the suite can run in paused time:
//!
//! ```
//! # #[cfg(not(feature = "conformance"))]
//! # fn main() {}
//! # #[cfg(feature = "conformance")]
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! use std::collections::HashMap;
//! use std::sync::{Arc, Mutex, MutexGuard};
//! use std::time::Duration;
//!
//! use tokio::time::Instant;
//! use tower_lock::backend::{
//!     AcquireRequest, Acquired, BackendError, ForceReleased, HintSender, Hints, Holder, LeaseId,
//!     Release, Released, Renewal, Renewed, conformance,
//! };
//! use tower_lock::LockKey;
//! use tower_lock::backend::Backend;
//! use uuid::Uuid;
//!
//! /// Clones share one store.
//! #[derive(Clone, Default)]
//! struct Table(Arc<Mutex<Rows>>);
//!
//! #[derive(Default)]
//! struct Rows {
//!     counter: u64,
//!     leases: HashMap<LockKey, (LeaseId, Instant)>,
//!     subscribers: Vec<(LockKey, HintSender)>,
//! }
//!
//! impl Rows {
//!     /// Returns the lease that holds the key, and its remaining TTL.
//!     fn holder(&self, key: &LockKey) -> Option<(LeaseId, Duration)> {
//!         let (lease, end) = self.leases.get(key)?;
//!         let ttl = end.saturating_duration_since(Instant::now());
//!         (!ttl.is_zero()).then_some((*lease, ttl))
//!     }
//!
//!     fn is_held(&self, key: &LockKey, lease: LeaseId) -> bool {
//!         self.holder(key).is_some_and(|(holder, _)| holder == lease)
//!     }
//!
//!     /// Frees the key, and notifies its subscribers.
//!     fn free(&mut self, key: &LockKey) {
//!         self.leases.remove(key);
//!         self.subscribers.retain(|(watched, sender)| {
//!             if watched == key {
//!                 sender.hint();
//!             }
//!             !sender.is_closed()
//!         });
//!     }
//! }
//!
//! impl Table {
//!     fn rows(&self) -> MutexGuard<'_, Rows> {
//!         self.0.lock().expect("no method panics")
//!     }
//! }
//!
//! impl Backend for Table {
//!     async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
//!         let mut rows = self.rows();
//!         match rows.holder(&request.key) {
//!             Some((lease, ttl)) if lease != request.lease => Ok(Acquired::busy(ttl)),
//!             // Free, or a repeat of the attempt that was granted.
//!             _ => {
//!                 rows.counter += 1;
//!                 let end = Instant::now() + request.ttl;
//!                 rows.leases.insert(request.key.clone(), (request.lease, end));
//!                 Ok(Acquired::granted(rows.counter))
//!             }
//!         }
//!     }
//!
//!     async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
//!         let mut rows = self.rows();
//!         let renew = |renewal: &Renewal| {
//!             if !rows.is_held(&renewal.key, renewal.lease) {
//!                 return Ok(Renewed::NotHeld);
//!             }
//!             let (_, end) = rows.leases.get_mut(&renewal.key).expect("it is held");
//!             // A renewal does not shorten a lease.
//!             *end = (*end).max(Instant::now() + renewal.ttl);
//!             Ok(Renewed::Renewed)
//!         };
//!         renewals.iter().map(renew).collect()
//!     }
//!
//!     async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
//!         let mut rows = self.rows();
//!         let release = |release: &Release| {
//!             if !rows.is_held(&release.key, release.lease) {
//!                 return Ok(Released::NotHeld);
//!             }
//!             rows.free(&release.key);
//!             Ok(Released::Released)
//!         };
//!         leases.iter().map(release).collect()
//!     }
//!
//!     fn watch(&self, key: &LockKey, _manager: Uuid) -> Hints {
//!         let (sender, hints) = Hints::channel();
//!         // The subscription is in effect.
//!         sender.hint();
//!         self.rows().subscribers.push((key.clone(), sender));
//!         hints
//!     }
//!
//!     async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
//!         let holder = self.rows().holder(key);
//!         Ok(holder.map(|(lease, ttl)| Holder::new(lease.to_string(), ttl, 1)))
//!     }
//!
//!     async fn force_release(
//!         &self,
//!         key: &LockKey,
//!         holder: Option<&str>,
//!     ) -> Result<ForceReleased, BackendError> {
//!         let mut rows = self.rows();
//!         match rows.holder(key) {
//!             Some((lease, _)) if holder.is_none_or(|holder| lease.to_string() == holder) => {
//!                 rows.free(key);
//!                 Ok(ForceReleased::Released)
//!             }
//!             _ => Ok(ForceReleased::NotHeld),
//!         }
//!     }
//! }
//!
//! let store = Table::default();
//! conformance::all(&store, &store.clone()).await;
//! # }
//! ```
//!
//! # Run the contract
//!
//! The feature `conformance` has the contract as test functions. The test of a store with another clock uses real time,
//! and takes some seconds. This is the manifest of a store in files. It needs `uuid` because
//! [`watch`](crate::backend::Backend::watch) receives a `Uuid`:
//!
//! ```toml
//! [dependencies]
//! tower-lock = "0.1"
//! tokio = { version = "1", features = ["rt", "time"] }
//! uuid = "1"
//!
//! [dev-dependencies]
//! tower-lock = { version = "0.1", features = ["conformance"] }
//! tokio = { version = "1", features = ["full", "test-util"] }
//! ```
//!
//! ```test_harness
//! # #[cfg(feature = "conformance")]
//! #[tokio::test]
//! async fn store_passes_conformance() {
//!     use tower_lock::Memory;
//!     use tower_lock::backend::conformance;
//!
//!     // Two handles on one store, as two processes have them. Clones of `Memory` share their leases.
//!     let store = Memory::new();
//!     conformance::all(&store, &store.clone()).await;
//! }
//! ```
//!
//! The handles of a file are two values that opened the same file. Clones that share a mutex do not test whether two
//! processes exclude each other. Each function uses fresh keys, so the file need not be empty. `cargo test` with
//! `RUST_BACKTRACE=1` shows the function that failed. Run it alone by `conformance::run` until it passes.
//! [`conformance::all_of_node`](https://docs.rs/tower-lock/latest/tower_lock/backend/conformance/fn.all_of_node.html) is for the stores of a
//! [`Quorum`](crate::Quorum) only.
//!
//! # What a failure means
//!
//! A panic names the broken promise, and its backtrace the function. They run in about this order:
//!
//! | function | usual cause of a failure |
//! |---|---|
//! | any, with `… has no outcome` | the command returned an error, and the message has its cause |
//! | `free_key_is_granted_…` | the two handles do not share one store; the TTL that is left has another unit, such as seconds for milliseconds |
//! | `repeated_acquire_under_one_lease_…` | the lease that holds the key is busy for itself |
//! | `release_frees_key_…`, `other_lease_cannot_…` | `release` or `renew` does not compare the lease |
//! | `renewal_without_lease_…` | `renew` inserts a row |
//! | `renewal_extends_…` | `renew` sets the TTL without a comparison, or adds it to the old one |
//! | `batch_returns_…`, `empty_batch_…` | the results are not in the order of the items, or stop at the first `NotHeld` |
//! | `counter_of_each_grant_…`, `counter_after_expiry_…` | the counter is a time without `+ 1`, or is removed with the row |
//! | `tokens_per_counter_…` | the number is 0 or above 256 |
//! | `expired_lease_frees_key`, `expired_lease_is_not_renewed` | a method reads a row without a look at its end |
//! | `concurrent_acquires_…` | the comparison and the write are not one step |
//! | `release_or_keep_…`, `kept_lease_…` | with the default: `release`, or the first hint of `watch`; otherwise, with `belongs to the lease kept under`: the kept lease has fewer counters than requested; with `only the second lease`: the results are not in the order of the leases |
//! | `watch_in_effect_…`, with `the … subscription takes effect` | no hint when the subscription began |
//! | `release_sends_hint_…`, `forced_release_sends_hint_…` | no hint to the other handle: the subscribers are those of one process |
//! | `inspect_returns_…` | the id is not the text of the lease; a free key has a holder |
//! | `forced_release_spares_…` | `force_release` ignores the `holder`, or returns an error for it |
//! | the queue: from `contend_…` to `every_kind_of_…` | with the defaults: one of the above |
//! | `transferred_key_is_reserved_…` | a transferred key is free until it is confirmed; the hint goes to all managers |
//! | `polling_waiter_…` | a waiter without a subscription loses its place, or is passed over after its attempt |
//! | `expiry_serves_first_waiter` | `contend` grants an expired key to the lease that asks |
//! | `leave_returns_…` | as `batch_returns_…`; a lease that holds its key, or is in the queue, does not leave |
//! | `shared_and_exclusive_…`, `permits_exclude_…` | `mode` is ignored; one of several leases ends, and the key is free |
//! | `repeated_acquire_under_shared_…` | a repeat is counted twice, so one release does not end the lease |
//! | `shared_lease_expires_…`, `expired_permit_…`, `remaining_ttl_…` | the leases of a key have one end in common; a renewal extends all of them |
//! | `counters_of_both_modes_…`, `counters_of_permits_…` | each mode has a counter of its own; a shared lease or a permit has no fresh counter |
//! | `waiting_exclusive_…`, `waiting_lease_of_other_mode_…` | a lease joins the holders without a look at the queue; `renew` does not return `Wanted`; a `leave` does not serve the next waiters |
//! | `waiting_shared_…` | a release serves one waiter only, or also those behind the first exclusive one |
//! | `forced_release_ends_…` | `force_release` ends one of several leases, or with a `holder` all of them |
//! | `permits_up_to_…`, `each_permit_…` | the limit is stored with the key, or is that of another permit; a repeat is counted twice |
//! | `concurrent_permits_…` | the count and the write are not one step |
//! | `waiting_permits_…` | a permit overtakes those that wait; a release serves waiters behind one whose limit is reached |
//! | `downgraded_lease_…`, `downgrade_admits_…` | the mode stays exclusive; the key is free in between; the waiting shared leases are not served |
//! | `counter_of_downgraded_…` | the shared lease, or a repeat, has no fresh counter |
//! | `downgrade_without_…` | `downgrade` inserts a row, or does not compare the lease |
//! | `downgrade_extends_…` | as `renewal_extends_…` |
//!
//! A store without shared leases, permits or downgrades passes the functions of these.
//!
//! A message `no hint within 3s: …` names the hint that was not sent.
