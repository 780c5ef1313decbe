//! Testing: for those that test a service with locks, write a backend, or change this crate.
//!
//! # A service under test
//!
//! [`LockManager::in_memory`](crate::LockManager::in_memory) needs no server. Hold the lock in the test, and the
//! route is busy. With paused time, a wait of 5 s takes no real time:
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, body::Body, http::{Request, StatusCode}, routing::put};
//! use tower::ServiceExt;
//! use tower_lock::{LockKey, LockLayer, LockManager};
//!
//! let locks = LockManager::in_memory();
//! let app: Router = Router::new()
//!     .route("/orders/{order}", put(async || "saved"))
//!     .route_layer(LockLayer::by_path_param(locks.clone(), "order"));
//! let put = || Request::put("/orders/42").body(Body::empty());
//!
//! let guard = locks.acquire(LockKey::from_parts(["order", "42"])).await?;
//! assert_eq!(app.clone().oneshot(put()?).await?.status(), StatusCode::CONFLICT);
//!
//! drop(guard);
//! assert_eq!(app.oneshot(put()?).await?.status(), StatusCode::OK);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "axum"))]
//! # fn main() {}
//! ```
//!
//! To test a lost lock, call [`force_release`](crate::LockManager::force_release) while the handler runs.
//! [`snapshot`](crate::LockManager::snapshot) shows whether a test left a lock or a waiter behind:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_lock::Error> {
//! use tower_lock::LockManager;
//!
//! let locks = LockManager::in_memory();
//! let guard = locks.acquire("order:42").await?;
//! assert!(locks.force_release("order:42").await?);
//! assert!(!guard.is_held());
//!
//! drop(guard);
//! assert!(locks.snapshot().is_idle());
//! # Ok(())
//! # }
//! ```
//!
//! # A backend of your own
//!
//! A store implements the six required methods of [`Backend`](crate::Backend), and `force_release_held_by`. The defaults
//! of the others are for a store without a queue of waiters. The feature `conformance` has the contract as test functions. They take two handles on one
//! store, as two processes would have them. This store is a table in memory:
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
//! use tower_lock::{Backend, LockKey};
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
//!     async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
//!         let mut rows = self.rows();
//!         if rows.holder(key).is_none() {
//!             return Ok(ForceReleased::NotHeld);
//!         }
//!         rows.free(key);
//!         Ok(ForceReleased::Released)
//!     }
//!
//!     async fn force_release_held_by(
//!         &self,
//!         key: &LockKey,
//!         holder: &str,
//!     ) -> Result<ForceReleased, BackendError> {
//!         let mut rows = self.rows();
//!         match rows.holder(key) {
//!             Some((lease, _)) if lease.to_string() == holder => {
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
//! A store outside of this process writes a key as [`LockKey::as_str`](crate::LockKey::as_str), and a lease as its
//! `to_string()`. A store that other processes share also needs a counter that survives a restart, or that begins at its clock, and
//! errors that state whether a command [may have taken effect](crate::backend::BackendError::unknown).
//! `LockManager::builder(store)` creates the manager.
//!
//! # The examples
//!
//! ```sh
//! cargo run --example bank    # transfers with and without locks, over HTTP; then serves
//! cargo run --example orders  # a lock, a database and its fence; the example to copy
//! cargo run --example tonic   # gRPC calls that lock by their metadata or message
//! cargo run --example jobs    # a job at intervals, in one process at a time
//! ```
//!
//! All keep their locks in memory, or in Redis with `-- --locks redis://127.0.0.1:6379`. Any number of `orders`
//! processes can share the locks and the file of `--database`. The test program `processes` starts four of them, kills
//! and stops them at random for longer than their leases, and finds every update in the database. With `--features
//! tracing`, `orders` also prints the events of its locks.
//!
//! `bank` keeps its accounts in its own memory. It prints a table such as this one, and then `curl` commands to
//! try. With `-- --once` it ends after the table:
//!
//! ```text
//! route                             requests   lost updates  busy        p50        p99
//! POST /unlocked/transfers               320     589 of 640     0     4.8 ms     5.7 ms
//! POST /accounts/{account}/deposit       320       0 of 320     0    17.9 ms   233.3 ms
//! POST /transfers                        320       0 of 640     0    89.7 ms   236.1 ms
//! ```
//!
//! # The tests of this crate
//!
//! | command | runs |
//! |---|---|
//! | `make test` | all tests except the long ones and those against Java, in several minutes; installs `redis-server` on Debian and Ubuntu |
//! | `make test-long` | Sentinel, Cluster and quorum, load, each fault once, and `processes` |
//! | `make test-servers` | the Redis tests against Redis 6.2, 7.0 and 8.2, and Valkey 8.1 and 9.1 |
//! | `make faults` | faults of servers, networks and processes, as one table |
//! | `make simulate` | the engine under simulated faults, in virtual time |
//! | `make queue` | random steps of the queue in Redis against a reference |
//! | `make interop` | locks shared with Redisson 3.16.8 and 4.7.0; needs a JDK 17, Maven and Redis 7 |
//! | `.ci/run` | everything that a change must pass |
