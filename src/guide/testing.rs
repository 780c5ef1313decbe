//! Testing: for developers testing a service with locks, or changing this crate.
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
//! # A handler alone
//!
//! The feature `test-util` creates the values that a layer would insert or return. It is for `[dev-dependencies]`, and
//! exempt from semantic versioning:
//!
//! ```
//! # #[cfg(feature = "test-util")] {
//! use tower_lock::{Error, ErrorKind, Held};
//!
//! fn update(held: &Held) -> String {
//!     format!("written with token {}", held.fencing_token())
//! }
//!
//! assert_eq!(update(&Held::for_tests("order:42", 7)), "written with token 7");
//! assert!(Error::for_tests(ErrorKind::Busy).is_busy());
//! # }
//! ```
//!
//! # Lints
//!
//! [`Acquire`](crate::manager::Acquire) and [`LockGuard`](crate::LockGuard) are `#[must_use]`, and an assignment hides that. Two
//! lints of clippy find `let _`:
//!
//! ```toml
//! [lints.clippy]
//! let_underscore_must_use = "deny" # `let _ = locks.acquire(key).await?` releases the lock at once
//! let_underscore_future = "deny"   # `let _ = locks.acquire(key).run(work)` does nothing
//! ```
//!
//! No lint finds `let _guard = locks.acquire(key);`, which acquires nothing. The first `Acquire` of a process that is
//! dropped without an await logs a warning, with the feature `tracing`.
//!
//! # The examples
//!
//! ```sh
//! cargo run --example bank     # transfers with and without locks, over HTTP; then serves
//! cargo run -p example-orders  # a lock, a database and its fence; the example to copy
//! cargo run -p example-tonic   # gRPC calls that lock by their metadata or message
//! cargo run --example jobs     # a job at intervals, in one process at a time: `run_every`
//! cargo run --example limits   # at most ten requests of each tenant at a time
//! cargo run --features postgres --example ledger # transfers under the fence of PostgreSQL, by processes that are killed
//! ```
//!
//! All but `ledger` keep their locks in memory, or in Redis with `-- --locks redis://127.0.0.1:6379`. Any number of `orders`
//! processes can share the locks and the file of `--database`. The test program `processes` starts four of them, kills
//! and stops them at random for longer than their leases, and finds every update in the database. With `--features
//! tracing`, `orders` also prints the events of its locks.
//!
//! `bank` keeps its accounts in its own memory. A statement reads all of them under shared locks, and is torn if
//! they do not add up. The program prints a table such as this one, and then `curl` commands to
//! try. With `-- --once` it ends after the table:
//!
//! ```text
//! route                             requests   lost or torn  busy        p50        p99
//! POST /unlocked/transfers               320     595 of 640     0     5.5 ms     9.3 ms
//! POST /accounts/{account}/deposit       320       0 of 320     0     8.0 ms   485.5 ms
//! POST /transfers                        320       0 of 640     0   238.9 ms   489.4 ms
//! GET /statement                         320       0 of 320     0   295.7 ms   478.8 ms
//! GET /unlocked/statement                320      82 of 320     0    16.7 ms    45.0 ms
//! ```
//!
//! # The tests of this crate
//!
//! | command | runs |
//! |---|---|
//! | `make test` | the tests except the long ones and those against Java, in several minutes; installs `redis-server`, `postgresql` and `curl` on Debian and Ubuntu |
//! | `make test-long` | Sentinel, Cluster and quorum, load, each fault once, and `processes` |
//! | `make test-servers` | the Redis tests against Redis 6.2, 7.0 and 8.2, and Valkey 8.1 and 9.1 |
//! | `make test-postgres` | the PostgreSQL tests against 13, 14, 16, 17 and 18; needs Python and Maven |
//! | `make faults` | faults of servers, networks and processes, as one table |
//! | `make simulate` | the engine under simulated faults, in virtual time |
//! | `make queue` | random steps of the queue in Redis against a reference |
//! | `make interop` | locks shared with Redisson 3.16.8 and 4.7.0; needs a JDK 17, Maven and Redis 7 |
//! | `.ci/run` | everything that a change must pass |
