//! Porting: for services that already lock in another way.
//!
//! # From a mutex
//!
//! A `tokio::sync::Mutex` per resource usually lives in a map that needs its own cleanup. A manager has one lane per
//! key, and forgets the key after the last release.
//!
//! | `Mutex<HashMap<Id, Arc<Mutex<()>>>>` | here |
//! |---|---|
//! | look up or insert, then `lock().await` | [`acquire(key)`](crate::LockManager::acquire)`.await?` |
//! | `try_lock()` | [`no_wait()`](crate::manager::Acquire::no_wait) |
//! | `timeout(d, lock())` | [`wait(d)`](crate::manager::Acquire::wait); the default is 5 s |
//! | waits without a limit | [`wait_forever()`](crate::manager::Acquire::wait_forever) |
//! | the guard protects the data | the data is elsewhere; the guard has a [fencing token](super::fencing) for its storage |
//! | a second `lock()` in the same task deadlocks | [`owner(guard.owner())`](crate::manager::Acquire::owner) enters again |
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tower_lock::{ErrorKind, LockKey, LockManager};
//!
//! let locks = LockManager::in_memory();
//! let account = LockKey::from_parts(["account", "alice"]);
//!
//! let guard = locks.acquire(&account).await?;
//! let error = locks.acquire(&account).no_wait().await.unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Busy);
//!
//! let nested = locks.acquire(&account).owner(guard.owner()).await?;
//! assert_eq!(nested.hold_count(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! Keep the mutex if there is one process and a fixed set of resources. It is faster, and it cannot be lost.
//!
//! # From `SELECT … FOR UPDATE`
//!
//! A row lock ends with its transaction and cannot outlive the write. Keep it if one transaction covers all of the
//! work. A lock of this crate is for work that one transaction does not cover. Examples are a call to another service,
//! several databases, and a handler that is too long for an open transaction.
//!
//! | in the transaction | here |
//! |---|---|
//! | `SELECT … FOR UPDATE` | [`LockLayer`](crate::LockLayer) or [`Locked`](crate::Locked) in front of the handler, before the connection is taken from its pool |
//! | `NOWAIT`, `lock_timeout` | [`no_wait`](crate::LockLayer::no_wait), [`wait`](crate::LockLayer::wait) |
//! | two rows in one order, against deadlocks | one acquire with both keys, in any order |
//! | the rollback of a lost connection | the storage rejects the write of a stale holder: `AND fence <= $1` |
//! | `pg_advisory_lock(id)` | [`acquire(key)`](crate::LockManager::acquire); no connection is occupied |
//!
//! During a migration, the statements can stay. Take the lock of this crate first, then the rows. Requests that are
//! still on the old code wait for the rows only, and the `fence` condition is added last. The page
//! [`fencing`](super::fencing) has the statements.
//!
//! # From Redisson
//!
//! Rust and Java services can share locks, so services can move one at a time. The page
//! [`redisson`](super::redisson) lists names, messages and differences.
//!
//! | Redisson | here |
//! |---|---|
//! | `getLock("order:42")` | `LockKey::new("order:42")`, with the prefix `""` |
//! | `lock()` | [`acquire(key)`](crate::LockManager::acquire)`.`[`wait_forever()`](crate::manager::Acquire::wait_forever) |
//! | `tryLock()` | [`no_wait()`](crate::manager::Acquire::no_wait) |
//! | `tryLock(wait, lease, unit)` | [`wait(wait)`](crate::manager::Acquire::wait)`.`[`lease(lease)`](crate::manager::Acquire::lease) |
//! | `unlock()` | drop the guard, or [`release().await`](crate::LockGuard::release) |
//! | `forceUnlock()` | [`force_release`](crate::LockManager::force_release) |
//! | `lockWatchdogTimeout` | [`watchdog_timeout`](crate::LockManagerBuilder::watchdog_timeout); 30 s in both |
//! | the thread is the owner | the request, or an [`Owner`](crate::Owner) that the program passes on |
//! | `getMultiLock(a, b)` | one acquire with both keys |
//! | `getFencedLock(name)` | the default; shared tokens need `redisson_fencing_tokens` |
//! | `getFairLock(name)` | the default [order](super::order) |
//! | no signal of a loss | [`Held::lost`](crate::Held::lost), and 500 `lock-lost` |
//! | `getReadWriteLock(name)` | [`shared`](crate::manager::Acquire::shared), in another format |
//! | `getSemaphore`, `getPermitExpirableSemaphore` | [`permits`](crate::manager::Acquire::permits), in another format |
