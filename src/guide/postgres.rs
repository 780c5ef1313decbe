//! PostgreSQL: for services whose data is in one, and that have no Redis or want a lock without which nothing commits.
//!
//! The feature `postgres` adds the backend:
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn example() -> Result<(), tower_lock::ConnectError> {
//! use tower_lock::LockManager;
//!
//! let locks = LockManager::connect("postgres://app:secret@db.example:5432/shop").await?;
//! # Ok(())
//! # }
//! ```
//!
//! It creates a schema `tower_lock` in the database of the URL. With `sslmode=require` in the URL and the feature
//! `postgres-tls`, connections use TLS, and the certificate must be valid for the host. It must come from a public
//! authority, or from one of those that `PostgresBackendBuilder::ca_certificate` names.
//!
//! # When to choose it
//!
//! | | PostgreSQL | Redis |
//! |---|---|---|
//! | the service has already | PostgreSQL | Redis |
//! | a grant costs | a commit to disk, shared by the grants that arrive together | a script |
//! | a crash of the server | loses no grant | loses what was not on disk |
//! | a stale holder | cannot commit, with the [fence](#the-fence) | is rejected if each write compares a [token](super::fencing) |
//!
//! While the critical section is one transaction, `SELECT … FOR UPDATE` needs no lock of this crate.
//!
//! # The fence
//!
//! A process can pause for longer than its lease, and commit after another owner has acquired the lock. A transaction
//! that begins with the fence of its lock cannot: the statement fails if the lock is lost, and otherwise no other owner
//! acquires the lock until the transaction ends. Renewals continue. No clock takes part in it.
//!
//! [`Held::fence`](crate::Held) returns the statement and its two parameters, for locks of this backend **in the same
//! database**:
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn example(
//! #     locks: tower_lock::LockManager,
//! #     mut client: tokio_postgres::Client,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let guard = locks.acquire("account:7").await?;
//! let (fence, keys, tokens) = guard.fence();
//! let transaction = client.transaction().await?;
//! transaction.execute(fence, &[&keys, &tokens]).await?;
//! transaction.execute("UPDATE account SET cents = cents - 100 WHERE id = 7", &[]).await?;
//! transaction.commit().await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The statement is plain SQL, so any client can send it:
//!
//! | client | statement |
//! |---|---|
//! | sqlx | `sqlx::query(fence).bind(keys).bind(tokens).execute(&mut *transaction)` |
//! | diesel | `sql_query(fence).bind::<Array<Text>, _>(keys).bind::<Array<BigInt>, _>(tokens)` |
//! | sea-orm | `Statement::from_sql_and_values(Postgres, fence, [keys.into(), tokens.into()])`, with the feature `postgres-array` |
//! | another one, for one key | `SELECT tower_lock.fence($1::text, $2::bigint)` with the key and its token |
//!
//! | code | meaning | what to do |
//! |---|---|---|
//! | `TL001` | the lock is lost | roll back, and acquire the lock again or reject the request |
//! | `40001` | the previous holder is still committing, in REPEATABLE READ or SERIALIZABLE | repeat the transaction |
//! | `55P03`, `40P01` | the fence waited for the previous holder for longer than the `lock_timeout` of the session, or in a deadlock of two transactions with several fences | repeat the transaction |
//! | `25006` | the transaction is read-only, or the server is a standby | use the primary |
//!
//! Rules:
//!
//! - It is inside of a transaction. Without one, it succeeds and protects no statement after it.
//! - It is the **first** statement: what a transaction reads before the fence may be old. In REPEATABLE READ and
//!   SERIALIZABLE, begin the transaction after the acquire.
//! - It is outside of savepoints. A rollback to a savepoint ends a fence after it.
//! - A transaction that is idle for 10 s under a fence ends, unless the session sets
//!   `idle_in_transaction_session_timeout` itself. A process that stops in it thus blocks the key for at most that time.
//!   A prepared transaction (`PREPARE TRANSACTION`) blocks it until its second phase.
//! - It waits for the transaction of the previous holder in the same process. Only `lock_timeout` limits that wait. A transaction
//!   of several keys has one fence, which takes all of them: it waits for them in one order.
//! - Under a shared lock, fenced transactions run side by side.
//!
//! # What a crash loses
//!
//! Grants are on disk before the reply. Renewals and releases are not, as a lost one does no harm.
//!
//! | | default | [`relaxed`](crate::backend::postgres::PostgresBackendBuilder::relaxed) |
//! |---|---|---|
//! | a crash of the server loses | releases of the last 0.6 s: these locks expire | also grants of the last 0.6 s: another owner can acquire their locks |
//! | a [failover](#a-failover) to an asynchronous standby loses | the grants that it had not received | the same |
//! | a transaction with the fence | commits only under its lock | commits only under its lock |
//! | fencing tokens | increase | increase, as far as the server's clock does |
//!
//! # A failover
//!
//! Name the primary and its standbys in the URL: `postgres://app@one,two/shop?target_session_attrs=read-write`. After the
//! promotion of a standby, the next connection of a process is to that one. A host that hangs delays it by its
//! `connect_timeout`, which defaults to 2 s, and later ones begin at the host that accepted. A connection on which a server
//! rejects writes is replaced.
//!
//! With `synchronous_standby_names`, a grant is on the standby before the reply, and a failover to it loses none, unless the
//! role sets `synchronous_commit` to `local`. While no such standby is connected, acquires are rejected with 503, and held
//! locks are renewed and released. The
//! former primary must have ended before the promotion: locks and fence of a server know nothing of another one.
//!
//! # Rights
//!
//! [`connect`](crate::LockManager::connect) creates the schema, for which its user needs `CREATE` on the database. A
//! service without that right sets [`migrate(false)`](crate::backend::postgres::PostgresBackendBuilder::migrate): the error of `connect` contains the SQL, which is also
//! `PostgresBackend::MIGRATION`. These are the least rights of a service, and of a role that only writes under the fence:
//!
//! ```sql
//! GRANT USAGE ON SCHEMA tower_lock TO app;
//! GRANT SELECT ON tower_lock.version TO app;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON tower_lock.lease, tower_lock.watcher, tower_lock.waiter TO app;
//! GRANT SELECT, INSERT ON tower_lock.era TO app;
//! GRANT USAGE, UPDATE ON tower_lock.counter TO app;
//! GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tower_lock TO app;
//!
//! GRANT USAGE ON SCHEMA tower_lock TO writer;
//! GRANT EXECUTE ON FUNCTION tower_lock.fence(text[], bigint[]), tower_lock.fence(text, bigint) TO writer;
//! ```
//!
//! # Waiters
//!
//! The page [`order`](super::order) states in which order processes acquire a key. A release transfers the lock to the first
//! process of the queue in its own transaction, and notifies only that one. The queue is an unlogged table: after a crash or
//! a failover it is empty, and each waiter enters it again within 1.1 s.
//!
//! While a transaction with the fence of a released lock is open, the lock waits for its end. The first waiter then attempts
//! every 20 ms.
//!
//! # An upgrade
//!
//! Each version of the schema adds functions, and leaves those of older versions as they are. So processes of two versions
//! run side by side, in either order, and exclude each other. A new process upgrades the schema when it connects. With
//! [`migrate(false)`](crate::backend::postgres::PostgresBackendBuilder::migrate), run the SQL and the [grants](#rights)
//! before.
//!
//! Processes of version 1 have no queue. While one of them waits for a key, those without a queue have one turn of at most
//! 50 ms in each round of it.
//!
//! # Dead rows
//!
//! Each grant with its release leaves a dead row, until a vacuum removes it. The tables of locks have settings for autovacuum of
//! their own: at 2,000 dead rows, without pauses. A vacuum keeps the rows that an open transaction of the same database may
//! still read, and each command for their key passes over them. These rates are those of two processes on a server with
//! two cores that had other work as well (PostgreSQL 15.18, [`relaxed`](crate::backend::postgres::PostgresBackendBuilder::relaxed)):
//!
//! | the server has | one key | 10,000 keys, 64 owners | what to do |
//! |---|---|---|---|
//! | autovacuum, every 10 s | 460 to 710 pairs/s for 96 s; 1 MB | 7,200 to 10,600 pairs/s for 72 s; 24 MB | – |
//! | no autovacuum | 310 to 680 pairs/s for 96 s; 7 MB | 12,700 to 14,200 pairs/s for 72 s; 220 MB | the rates stay, and the tables grow: turn it on |
//! | a transaction from before the load | 370 pairs/s at first, 74 after 72 s; in another run of 10 minutes, under more load, 106 at first and 8 at its end | 3,900 pairs/s at first, 2,200 to 3,400 with 200,000 dead rows | end the transaction, and set `idle_in_transaction_session_timeout` for its role. The next vacuum removes the rows |
//!
//! In no case did two owners hold a key. Slow commands can exceed their timeout, and an acquire is then rejected with 503.
//! The alerts `TowerLockOldTransaction` and `TowerLockTableBloat` in `ops/` detect both: see
//! [`operations`](super::operations#what-to-monitor). A replication slot, a prepared transaction, and a standby with
//! `hot_standby_feedback` keep rows as well.
//!
//! # Operation
//!
//! - PostgreSQL 13 or newer; tested with 13 to 18. In a database of another encoding than UTF-8, an acquire of a key with
//!   other characters is rejected.
//! - A process has two connections, one for grants and one for other commands, and a third one that listens while it holds
//!   or waits for a lock, and for one to two minutes afterwards.
//! - The listening connection sends a statement every 30 s, and so keeps a server awake that is suspended while idle, such as
//!   one of Neon. A held lock does so by its renewals. An idle process lets the server sleep, and its next acquire
//!   starts it: set `connect_timeout` in the URL if that takes longer than 2 s.
//! - A proxy that delivers no notifications, such as PgBouncer in transaction mode, is detected: waiters then poll every
//!   100 ms. Set [`listen`](crate::backend::postgres::PostgresBackendBuilder::listen) to the URL of the server itself.
//! - A client that listens and stays in a transaction fills the queue of notifications of all databases. From 90 % on, a
//!   release notifies no process, and waiters attempt every second. Alert on `pg_notification_queue_usage()`.
//! - A session prepares the commands for one key, as `tower_lock_acquire_one_`, `tower_lock_contend_`
//!   and `tower_lock_release_one_2_` with a number.
//!   Behind a proxy that sends statements to several sessions, which `connect` detects, they are sent unprepared, and each
//!   connection has one command in flight. Tested with PgBouncer 1.18 and 1.24 in transaction mode. RDS Proxy pins the
//!   sessions of a process, as it does after `SET`.
//! - PgBouncer before 1.21 keeps no session for a client that sends a command before the reply to its last one, which then
//!   fails with 08P01. This backend does not send so, but other clients of the same pool may: give the locks a user of
//!   their own there.
//! - These commands contain their key, in hexadecimal. The server shows it in `pg_stat_activity`, and logs it with an error
//!   of the command and with `log_statement`. The table of leases has the keys as well.
//! - Advisory locks of two numbers, of which the first is 1953459811 to 1953459814, belong to this crate.
//! - Every 60 s, each process that listens removes what ended processes left: leases that expired, and places that were
//!   refreshed last, more than 60 s ago, up to 1,000 of each. With 100,000 held locks this took 16 ms.
//! - After a restore of a dump, run `TRUNCATE tower_lock.era`. The next token is then ahead of the clock.
//! - `connect` refuses CockroachDB, which has no notifications and another `FOR KEY SHARE`, and YugabyteDB, which is
//!   untested.
