//! Shared locks and permits: for services whose reads may overlap each other, and for limits per key.
//!
//! A key has one exclusive holder, or many shared ones, or as many as a limit permits. Requests that only read ask
//! for a shared lock by [`shared`](crate::manager::Acquire::shared), and those that write acquire the same key as usual.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_lock::Error> {
//! use tower_lock::{ErrorKind, LockManager};
//! use tower_lock::backend::Mode;
//!
//! let locks = LockManager::in_memory();
//! let statement = locks.acquire("account:7").shared().await?;
//! let balance = locks.acquire("account:7").shared().await?;
//! assert_eq!(balance.mode(), Mode::Shared);
//! assert!(locks.acquire("account:7").no_wait().await.is_err());
//! drop((statement, balance));
//! let transfer = locks.acquire("account:7").no_wait().await?;
//! assert_eq!(transfer.mode(), Mode::Exclusive);
//!
//! let first = locks.acquire("tenant:7").permits(2).await?;
//! let second = locks.acquire("tenant:7").permits(2).await?;
//! let third = locks.acquire("tenant:7").permits(2).no_wait().await;
//! assert_eq!(third.unwrap_err().kind(), ErrorKind::PermitsExhausted);
//! # drop((first, second));
//! # Ok(())
//! # }
//! ```
//!
//! For routes, [`LockLayer::shared_reads`](crate::LockLayer::shared_reads) lets GET and HEAD share their locks. Without
//! it, they pass without a lock. [`LockLayer::permits`](crate::LockLayer::permits) limits the requests of one key. The
//! examples `bank` (statements beside transfers) and `limits` (ten requests per tenant) are whole programs.
//!
//! # Which mode to use
//!
//! | the work | mode |
//! |---|---|
//! | changes the resource | exclusive, the default |
//! | reads several parts of the resource that must belong together | shared |
//! | reads one row, or a snapshot of the database | no lock |
//! | may read now and write later | exclusive from the start |
//! | writes, and then reads for a long time | exclusive, then [downgraded](#downgrade) |
//! | needs one of several equal slots: requests per tenant, calls to a slow service | a permit |
//!
//! A shared lock costs a little more of the server than an exclusive one. Owners of one process that join a shared lock
//! cost no command. Each permit is acquired and released in the backend, also between owners of one process. Releases
//! share commands.
//!
//! One acquire of several keys can have shared and exclusive ones. A key in both modes is exclusive.
//!
//! Shared locks and permits of different owners exclude each other, as an exclusive lock excludes both: the later one
//! waits. One owner cannot have both of one key: its acquire of the second one is rejected with
//! [`KeyConflict`](crate::ErrorKind::KeyConflict).
//!
//! # Tokens
//!
//! The fencing token of an exclusive lock exceeds those of all earlier locks of its key, of any mode. A shared token
//! exceeds those of all earlier exclusive locks. Holders of one process share a token, and the tokens of two
//! processes have no order. So storage compares a shared token only with the largest exclusive one, which it does not
//! replace:
//!
//! ```sql
//! SELECT balance FROM account WHERE id = $1 AND fence <= $2                   -- a reader
//! UPDATE account SET balance = $3, fence = $2 WHERE id = $1 AND fence <= $2   -- a writer
//! ```
//!
//! A reader whose lock was lost thus finds no row after the next write. The tokens of permits do not fence their
//! holders from each other.
//!
//! # Upgrade
//!
//! An owner that holds a lock shared and asks for it exclusively is rejected with
//! [`ErrorKind::Upgrade`](crate::ErrorKind::Upgrade): two such owners would wait for each other without end. Release the
//! shared lock first, and read again after the exclusive acquire: another owner may have written in between. A permit
//! cannot be upgraded either. An owner that holds a lock exclusively and asks for it shared, or for a permit, has one
//! more exclusive hold.
//!
//! # Downgrade
//!
//! [`guard.downgrade()`](crate::LockGuard::downgrade) turns an exclusive lock into a shared one in one step. No writer
//! acquires the key in between, so what the owner has written is what it reads. Waiting readers that are next join it,
//! and a writer waits for all of them. The guard must be the only hold of its owner. A backend of your own implements
//! [`Backend::downgrade`](crate::backend::Backend::downgrade).
//!
//! If the backend does not reply, the state of the lock is unknown. Both locks are then released, and the guard is
//! lost.
//!
//! # Order
//!
//! Waiters of all modes are in one [queue](super::order). Readers that wait next to each other acquire the lock
//! together. While a writer waits, no further reader joins:
//!
//! - in the same process, from the moment at which the writer waits,
//! - in other processes, after the next renewal of their lease. A reader that joins makes one due if the last reply
//!   is older than 50 ms. So a writer waits for about 50 ms until readers no longer join, and then for the longest
//!   read. If the backend does not reply to the renewal, no further owner joins after 500 ms.
//!
//! A writer does not keep readers out forever either: those that wait behind it are next. The place of a writer whose
//! process has ended expires after 3 s, and a waiting reader attempts within 1.1 s after that. An owner that holds the
//! lock shared may acquire it again although a writer waits.
//!
//! A quorum has no queue. A writer that waits keeps the readers of other processes out for 1.3 s after each of its
//! attempts, which come at least every 1.1 s. Readers and writers that wait compete after each writer.
//!
//! # Permits
//!
//! [`permits(limit)`](crate::manager::Acquire::permits) grants while fewer than `limit` owners hold a permit of the key, over
//! all processes. Permits are granted in the order of the queue. Of the waiters of a process, four are in it at a time.
//! The others follow in turn, or enter it after a second. An exclusive acquire waits for all permits,
//! and later permits wait behind it: this stops the work on a key for maintenance. The permit of a process that has
//! ended is free when its lease expires, after 30 s by default.
//!
//! The limit is a part of the acquire, and the backend stores none. During a deployment from `permits(10)` to
//! `permits(20)`, new processes are granted up to 20 permits, and old ones wait until fewer than 10 are held. After
//! one from 20 to 10, the new processes wait until the old ones hold fewer than 10. Neither needs a migration. While
//! the two limits compete, the first waiter of the queue is next. So a waiter with the smaller limit delays those
//! behind it.
//!
//! A limit for each tenant comes from [`permits_with`](crate::LockLayer::permits_with). Permits are no rate limit:
//! they bound the requests at a time, and not those per second.
//!
//! # Responses
//!
//! | rejected | status | type |
//! |---|---|---|
//! | a shared or exclusive lock, after the wait | 409, or the one of [`status`](crate::LockLayer::status) | `resource-busy` |
//! | a permit, after the wait | 429, or the one of `status` | [`permits-exhausted`](super::problems) |
//! | an upgrade | 500 | [`lock-upgrade`](super::problems#lock-upgrade) |
//! | a shared lock and a permit of one key, for one owner | 500 | [`lock-key-conflict`](super::problems#lock-key-conflict) |
//! | a mode that the backend does not have | 500 | `lock-option-invalid` |
//!
//! [`Error::is_busy`](crate::Error::is_busy) is `true` for the first two. `Retry-After` of 429 is the time until a
//! permit may be free: when the first lease expires, or when those that wait have had their turn, a second each. A
//! request that holds the key in another mode is expected to hold it as long again as it has.
//!
//! # Loss and expiry
//!
//! All shared holders of a process have one lease in the backend, which is renewed until the last one releases. If it
//! is lost, all of them are. Each has its own [`max_hold`](crate::manager::Acquire::max_hold) and its own
//! [`lease`](crate::manager::Acquire::lease): its end affects no other holder. The lease of a process that has ended expires
//! without a command, and is not renewed by other processes. Each permit has a lease of its own.
//!
//! # Where
//!
//! | backend | shared locks | permits |
//! |---|---|---|
//! | [`Memory`](crate::Memory), PostgreSQL, Redis in every topology | yes | yes |
//! | [`Quorum`](crate::Quorum) | yes, if all nodes have them. A [majority](super::quorum#shared-locks) holds each one | no: three owners with a limit of two could have two nodes of three each |
//! | one that has none | [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) | the same |
//!
//! A Redis user needs more [permissions](super::redis#permissions). Every process that uses a key must have a version
//! of this crate with these modes: an older one treats a waiting reader as a process that has ended.
//!
//! # Java beside it
//!
//! Redisson's `RLock` is an exclusive lock beside them: a Java thread waits while the key is held in another mode,
//! and readers and permits wait while Java holds it. A waiting Java thread has its turn after the readers that hold
//! the key, in a Cluster with [`Publish::Both`](crate::backend::redis::Publish::Both) or plain messages at most every
//! 500 ms. The server must [count the thread](super::redisson#what-is-different): readers that overlap without end keep
//! out a thread that listens at a replica.
//!
//! `RReadWriteLock`, `RSemaphore` and `RPermitExpirableSemaphore` have other formats. Use other names for them. Their
//! behavior differs, too: readers of an `RReadWriteLock` keep its writers out for as long as they overlap, and a
//! permit of an `RSemaphore` does not return when its process ends.
