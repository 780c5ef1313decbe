//! Fencing tokens: for services whose handlers write to a database or to another service.
//!
//! A process can pause for longer than its lease, and write after another owner has acquired the lock. No lock
//! can prevent that write, because the process does not know that it paused. The storage can reject it.
//!
//! ```text
//!   process A   acquires, token 33   ┄┄ paused ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄  writes with 33 ─► rejected
//!   process B                        acquires, token 34   writes with 34 ─► accepted
//! ```
//!
//! Each fresh grant of an exclusive lock has a larger [`FencingToken`](crate::FencingToken) than all grants of its key
//! before. The storage keeps the largest token beside the data, and rejects a write with a smaller one. Permits are not
//! fenced from [each other](super::shared#tokens).
//!
//! # In SQL
//!
//! ```sql
//! ALTER TABLE account ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
//!
//! -- $1 is guard.fencing_token().get(). With the read:
//! UPDATE account SET fence = $1 WHERE id = $2 AND fence <= $1 RETURNING balance;
//! -- With the write:
//! UPDATE account SET balance = $3, fence = $1 WHERE id = $2 AND fence <= $1;
//! -- 0 rows: a holder with a later token has written. Stop.
//! ```
//!
//! The read must store the token as well. Otherwise a late write of the previous holder can land between the read
//! and the write, and the new holder overwrites it. Holders of a shared lock may have one token in common, and only
//! [compare](super::shared#tokens) it.
//!
//! This program does it with SQLite:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rusqlite::{Connection, OptionalExtension, params};
//! use tower_lock::{FencingToken, LockManager};
//!
//! /// Stores the token and returns the balance, or `None` for a stale holder.
//! fn claim(db: &Connection, id: &str, token: FencingToken) -> rusqlite::Result<Option<i64>> {
//!     let sql = "UPDATE account SET fence = ?1 WHERE id = ?2 AND fence <= ?1 RETURNING balance";
//!     db.query_row(sql, params![token.get(), id], |row| row.get(0)).optional()
//! }
//!
//! /// Returns `false` for a stale holder.
//! fn write(db: &Connection, id: &str, balance: i64, token: FencingToken) -> rusqlite::Result<bool> {
//!     let sql = "UPDATE account SET balance = ?3, fence = ?1 WHERE id = ?2 AND fence <= ?1";
//!     Ok(db.execute(sql, params![token.get(), id, balance])? == 1)
//! }
//!
//! let db = Connection::open_in_memory()?;
//! db.execute_batch(
//!     "CREATE TABLE account (id TEXT PRIMARY KEY, balance BIGINT, fence BIGINT NOT NULL DEFAULT 0);
//!      INSERT INTO account (id, balance) VALUES ('alice', 100);",
//! )?;
//! let locks = LockManager::in_memory();
//!
//! let stale = locks.acquire("account:alice").await?.fencing_token();
//! assert_eq!(claim(&db, "alice", stale)?, Some(100));
//!
//! // The first holder pauses, its lease expires, and another owner acquires the lock.
//! let guard = locks.acquire("account:alice").await?;
//! let token = guard.fencing_token();
//! assert_eq!(claim(&db, "alice", token)?, Some(100));
//!
//! assert!(!write(&db, "alice", 90, stale)?);
//! assert!(write(&db, "alice", 70, token)?);
//! # Ok(())
//! # }
//! ```
//!
//! # Which token to write
//!
//! | locks | write each record with |
//! |---|---|
//! | one key | [`fencing_token`](crate::Held::fencing_token) |
//! | several keys in memory, on one Redis server or behind Sentinel | `fencing_token` of the guard, the same for all records |
//! | several keys in PostgreSQL, in a Cluster, behind one endpoint for several servers, in a quorum, or with `redisson_fencing_tokens` | [`fencing_token_for`](crate::Held::fencing_token_for) the key of the record |
//! | a nested hold | the token of the outer guard |
//!
//! Compare only tokens of the same key.
//!
//! # Several keys
//!
//! A guard of several keys has one token per key. [`fencing_token`](crate::Held::fencing_token) returns the largest. If
//! one counter serves all keys, that one is fresh for each of them. In a Cluster, each slot has its own counter. The
//! largest token can be ahead of the counter of another key. A record of that key that has this token rejects the next
//! holders until their counter has passed it. So write each record with its own token, which is right in every place:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_lock::Error> {
//! use tower_lock::{LockKey, LockManager};
//!
//! let locks = LockManager::in_memory();
//! let [alice, bob] = ["alice", "bob"].map(|id| LockKey::from_parts(["account", id]));
//! let guard = locks.acquire([alice.clone(), bob.clone()]).await?;
//!
//! // `None` if the guard does not hold the key.
//! let token = guard.fencing_token_for(&alice).expect("a key of the acquire");
//! // UPDATE account SET balance = $3, fence = $1 WHERE id = 'alice' AND fence <= $1;
//! let other = guard.fencing_token_for(&bob).expect("a key of the acquire");
//! // UPDATE account SET balance = $3, fence = $1 WHERE id = 'bob' AND fence <= $1;
//! # assert_ne!(token, other);
//! # assert_eq!(guard.fencing_token(), token.max(other));
//! # Ok(())
//! # }
//! ```
//!
//! Tokens fit a signed 64-bit integer, SQL `BIGINT`. They exceed 2^53, so write them as strings in JSON.
//!
//! # When tokens increase
//!
//! - In memory, tokens always increase.
//! - On Redis, tokens increase while the server keeps its counter, or while its clock is past the lost tokens. They
//!   thus also increase over an empty restart, and over a failover between servers whose clocks agree. All processes
//!   must use the same prefix for a lock. The documentation of [`FencingToken`](crate::FencingToken) and the page
//!   [`one_server`](super::one_server#fencing-tokens) list the conditions.
//! - In a quorum, tokens increase while the nodes that lost their data are a minority. The documentation of
//!   [`Quorum`](crate::Quorum#fencing-tokens) has the proof.
//! - In PostgreSQL, tokens increase over a crash and a failover, as long as those lost are behind the clock of the server. The
//!   page [`postgres`](super::postgres#what-a-crash-loses) has the table.
//! - With `redisson_fencing_tokens`, tokens come from Redisson's counters. These are small, and restart at 1 if
//!   Redis loses its data.
//!
//! # Locks in the database of the data
//!
//! With locks in [PostgreSQL](super::postgres#the-fence), a transaction begins with one statement, and then commits only
//! under its lock. The data needs no column for tokens.
//!
//! # Storage without conditional writes
//!
//! - A service of your own can take the token as a parameter and compare it itself.
//! - Object stores have conditional writes by version: read the version under the lock, and write with the condition
//!   that the version is the same. A stale holder then fails as well, and the token is not needed.
//! - If the storage cannot compare anything, a lock reduces the number of conflicts but does not exclude them.
