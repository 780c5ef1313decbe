//! Operations: for operators running a service with locks in production.
//!
//! The page [`incidents`](super::incidents) leads from a symptom or an alert to its cause.
//!
//! # What to monitor
//!
//! The feature `metrics` reports these figures through the [`metrics`](https://docs.rs/metrics) crate:
//!
//! | name | kind | alert when |
//! |---|---|---|
//! | `tower_lock_acquires_total{outcome, layer}` | counter | the rate of an outcome other than `granted`, `busy`, `permits_exhausted`, `cancelled` and those of wrong requests (`invalid_key`, `no_route`, `body_…`) is above 0 for some minutes |
//! | `tower_lock_grants_total{via, layer}` | counter of keys, by `backend`, `handoff`, `kept`, `reclaimed`, `reentrant` | – |
//! | `tower_lock_wait_seconds{outcome, layer}` | histogram, by `granted`, `rejected`, `cancelled` | its 99th percentile approaches the wait of the layer |
//! | `tower_lock_hold_seconds{layer}` | histogram of keys, from the grant to the end of the last hold | its 99th percentile approaches the wait of the layer |
//! | `tower_lock_lost_total{reason, layer}` | counter of keys, by [`LostReason`](crate::manager::LostReason) | it increases with a reason other than `forced`: some work ran under a lost lock |
//! | `tower_lock_held{mode, layer}` | gauge of owners that hold a key, by `exclusive`, `shared`, `permit`. Several can hold the same key in the last two modes | – |
//! | `tower_lock_waiting{layer}` | gauge of acquires | – |
//! | `tower_lock_waiting_limit` | gauge, the sum over all managers of the process | – |
//! | `tower_lock_waiting_ratio` | gauge, the part of its limit that a manager uses, the largest of all managers of the process | it is above 0.8 |
//! | `tower_lock_unreleased` | gauge of leases whose release the backend has not confirmed | it stays above 0 for a minute |
//! | `tower_lock_kept` | gauge of leases that are [kept](#kept-leases) | – |
//! | `tower_lock_oldest_hold_seconds`, `tower_lock_oldest_wait_seconds` | gauge | the oldest hold is older than any request should be |
//! | `tower_lock_renewals_total{outcome}`, `tower_lock_releases_total{outcome}` | counter of leases, by `ok`, `not_held`, `failed` | `failed` increases for some minutes |
//! | `tower_lock_wakeups_total{by}` | counter of grants after a wait for another process, by `message`, `expiry`, `backstop` | more than 20 % are `backstop`: notifications do not arrive |
//! | `tower_lock_backend_command_seconds{command, outcome}` | histogram, by `ok`, `refused`, `unknown` | `unknown` increases for some minutes |
//! | `tower_lock_backend_up{server, part}` | gauge, of `commands`, `releases`, `notifications`, `sentinel` | it is 0 for 30 s |
//! | `tower_lock_backend_incidents_total{server, part}` | counter of outages that began | – |
//! | `tower_lock_watchdog_lag_seconds` | gauge, the longest delay of a round of the watchdog in the last one to two minutes | it is above 1 s: code of the program blocks the thread of the manager, or the CPU is limited |
//! | `tower_lock_force_releases_total{outcome}` | counter, by `released`, `not_held`, `failed` | – |
//! | `tower_lock_unlocked_total{option}` | counter of requests that ran without their lock, by `observe_only` or `on_unavailable`. `tower_lock_acquires_total` has their outcomes | it increases with the option `on_unavailable` |
//! | `tower_lock_transfers_total` | counter of keys that went to the first process of a queue, counted by the process whose command found them free | – |
//! | `tower_lock_transfer_seconds` | histogram, from a transfer to its confirmation by a command. It has no transfer that was never confirmed: such a key is idle for at most 1.5 s. Of Redis only | its 99th percentile is above some round trips |
//! | `tower_lock_passed_over_total` | counter of waiters whose processes ended or hang, counted as the transfers. Of Redis only | it increases outside of deployments |
//!
//! A process tries a server that it does not reach until it does, also without requests, and then sets
//! `tower_lock_backend_up` to 1. Only a command shows that a server no longer rejects commands: full memory, or a missing
//! permission. Without requests the gauge stays 0.
//!
//! The repository has a dashboard for Grafana and alerts for Prometheus with their tests, in `ops/`: import
//! `grafana.json`, and add `alerts.yml` to the rule files. The alerts `TowerLockOldTransaction` and `TowerLockTableBloat`,
//! and the plots under *PostgreSQL*, have metrics of the default collectors of
//! [postgres_exporter](https://github.com/prometheus-community/postgres_exporter) 0.13 or newer. It has to connect to the
//! database with the schema `tower_lock`.
//!
//! The label `outcome` of acquires is `granted`, `busy`, `permits_exhausted`, `too_many_waiters`, `overloaded`, `unavailable`,
//! `refused`, `lost`, `shutting_down`, `invalid_key`, `misconfigured`, `no_route`, `body_too_large`,
//! `body_timeout`, `body_failed`, `invalid_option`, `key_conflict`, `reentrancy_limit`, `upgrade`, `unsupported` or
//! `cancelled`. The label `layer` is the [name of the layer](crate::LockLayer::name), and is absent without a name. No
//! label contains a key.
//!
//! A request only increases counts. A thread reports the counts every second and the gauges every 5 s;
//! [`flush_metrics`](crate::LockManager::flush_metrics) reports at once. All series of a manager begin at zero when it is
//! built, so that `increase()` sees the first event. [`metrics`](crate::metrics) has the bounds of the histograms, without
//! which the exporter for Prometheus renders summaries.
//!
//! An idle timeout of the exporter for Prometheus keeps the counters and gauges of this crate if it is a minute or
//! longer. It removes histograms without samples, unless its mask is `COUNTER | GAUGE`: see
//! [`metrics`](crate::metrics#idle-timeouts).
//!
//! The feature `tracing` reports these events to the program's subscriber, such as `tracing_subscriber::fmt().init()`.
//! Without the feature, [`LockLayer::on_reject`](crate::LockLayer::on_reject) can log
//! [`LockRejection::error`](crate::LockRejection::error) and its sources, which contain the cause.
//!
//! | level | message | meaning |
//! |---|---|---|
//! | `error` | `lock layer misconfigured`, with the fields `extractor`, `route` and `problem` | no request to a route has a key, or a handler extracts what no layer provides. Once per route of a layer or extractor, on at most 100 routes; once if the requests have no route of axum |
//! | `warn` | `lock lost`, with the fields `lock.layer`, `lock.mode`, `lock.lost_reason`, `lock.via`, `lock.token`, `lock.wait_ms`, `lock.hold_ms` and `lock.overdue_ms` | a guard was lost: see below. In the span in which the lock was acquired, also if the watchdog detects the loss |
//! | `warn` | `one kind of lock key on two routes`, with the fields `kind`, `route` and `other_route`, once per kind | `/orders/{id}` and `/customers/{id}` under `by_path_param(locks, "id")` exclude each other: rename a parameter, or set [`kind`](crate::LockLayer::kind). Set it also where they are meant to exclude each other: then there is no warning. Routes that differ only behind the parameter, such as `/orders/{id}/lines`, are of one resource |
//! | `warn` | `lock request dropped without an await`, once per process | `let _guard = locks.acquire(key);` acquires nothing: see [lints](super::testing#lints) |
//! | `warn` | `lock backend self-test warning`, with the field `warning` | the server may evict locks, is a replica, or cannot grant locks now |
//! | `warn` | `lock backend unreachable`, with the fields `address` and `cause` | a server does not reply, or rejects the login: then the cause begins with `lock backend refuses this client`; once per outage, and again when the cause has changed, at most every 10 s |
//! | `warn` | `locks cannot be acquired` | a server replies but rejects grants: a permission, full memory, a replica |
//! | `warn` | `locks cannot be released` | a server rejects releases. They are retried until the leases expire, and until then the keys stay held |
//! | `warn` | `lock backend denies the queue of a permitted lock`, once per process | the user may use the key of a lock and not the keys of its queue, so its waiters compete with other processes. Add the key patterns of the [permissions](super::redis#permissions) |
//! | `warn` | `release notifications unavailable` | waiters poll until the subscription is restored |
//! | `warn` | `sentinels unavailable` | no sentinel of the URL replies |
//! | `info` | `… again`, or `server removed` | the end of an outage |
//! | `warn` | `requests run without their lock` | the backend is unavailable, and `on_unavailable` lets requests pass |
//! | `info` | `request would be rejected` | a request under `observe_only` |
//! | `info` | `primary changed` | the sentinels named another primary |
//! | `warn`, then `debug` | `renewal failed`, with the fields `count`, `left_ms` and `cause` | leases were not renewed. A warning when an outage begins and every 10 s while it lasts |
//! | `info` | `renewals succeed again` | the end of such an outage |
//! | `debug` | `lock not acquired`, with the fields `lock.layer`, `lock.outcome`, `lock.wait_ms`, `lock.queue_position` and `cause` | one acquire failed |
//! | `debug` | `lock wait dropped`, with the fields `lock.layer` and `lock.wait_ms` | the caller dropped an acquire that waited: its client disconnected, or a timeout outside was shorter than the wait. The outcome `cancelled` counts them |
//! | `debug` | `lock granted`, with the fields `lock.layer`, `lock.mode`, `lock.via`, `lock.wait_ms` and `lock.token` | a key was granted, in the span of the caller |
//! | `debug` | `lock released`, with the fields `lock.layer` and `lock.hold_ms` | the last hold of a key was released |
//! | `warn` | `force release`, of the target `tower_lock::audit`, with the fields `operator`, `reason` and `outcome` | an operator forced a release on the [dashboard](super::dashboard#release-a-key-from-the-page): `released`, `not_held`, `vetoed` or `failed` |
//!
//! An acquire that waits also has the span `lock.acquire` of the level `debug`, inside the span of its caller. Its fields
//! are `lock.layer`, `lock.mode`, `lock.keys`, `lock.queue_position`, `lock.via`, `lock.outcome`, `lock.wait_ms`,
//! `error.type`, `otel.kind` and `otel.status_code`. The mode is `exclusive`, `shared` or `permit`; that of several keys is
//! `exclusive` if one of them is. Without a wait there is no span. The position is that in the queue of this process
//! when the acquire joined it; the next acquire has the position 1.
//!
//! Each call of a script in Redis has the span `EVALSHA` of the level `trace`, from the command to its reply. It has no
//! parent, because a call can serve several requests. Its fields are those of OpenTelemetry: `otel.kind`,
//! `db.system.name`, `db.operation.name`, `db.stored_procedure.name` with the name of the script,
//! `db.operation.batch.size` of a call for several locks, `server.address`, `server.port`, `error.type`, and
//! `db.response.status_code` if the server rejects the call. Calls that undo an acquire without a reply have no span.
//! The targets of these events and spans begin with `tower_lock`, unless the table names another one.
//!
//! No event contains a key, an owner or a password. To find the busy keys, log the paths of requests that receive 409
//! in the service itself. Alternatively, set [`trace_keys`](crate::LockManagerBuilder::trace_keys): it writes keys or
//! their hashes into the span `lock.acquire`.
//!
//! [`LockManager::snapshot`](crate::LockManager::snapshot) returns the current numbers of locks and waiters.
//! [`RedisBackend::warnings`](crate::RedisBackend::warnings) returns the warnings of the connect without `tracing`.
//!
//! # What to do when
//!
//! | symptom | meaning | first steps |
//! |---|---|---|
//! | 409 `resource-busy` | another owner held the lock for the whole wait | measure how long handlers hold it; shorten them or raise the wait; use finer [keys](super::keys) |
//! | 409 `lock-failed-in-handler` after the whole wait, also without other requests | the handler acquired a lock without the owner of its request, or through a second manager over the same backend: it waited for itself | use [`LockScope::acquire`](crate::LockScope::acquire), and one manager. If another owner of this manager held the lock, which may be the request itself, the event `lock not acquired` of the level `debug` has this remedy as its `cause` |
//! | 429 `too-many-waiters` | 1,024 acquires wait for this key | find the client that repeats its request; raise [`max_waiters_per_key`](crate::LockManagerBuilder::max_waiters_per_key) only with a reason |
//! | 503 `lock-overload` | 65,536 acquires wait in this manager | as above, over all keys: [`max_waiters`](crate::LockManagerBuilder::max_waiters) |
//! | 503 `lock-unavailable` with `Retry-After`, and the event `lock backend unreachable` | the server did not reply within the wait | read the `cause` of the event in the log; check the network, the load and the failover of the server |
//! | 503 `lock-unavailable` with `Retry-After`, and the event `locks cannot be acquired` | the server replies but cannot grant | read the `cause` of the event in the log: full memory, a replica, or too few replicas |
//! | 503 `lock-unavailable` without `Retry-After` | the server rejects this client | read the `cause` of the last event `locks cannot be acquired` or `lock backend unreachable` in the log; check the password, the [permissions](super::redis#permissions) and the certificate. A command that is denied inside a script, a channel or a key has no name in the `cause`: `ACL LOG` on the server names it as `object`. Redis checks a password only when a connection opens, so one that was changed can be rejected much later |
//! | 408 or 413 | [`read_body_first`](crate::LockLayer::read_body_first) rejected a body | raise its deadline or limit if the clients are right |
//! | 503 `shutting-down` | this instance is ending: the request came after the begin of its shutdown, or waited to the end of its grace | nothing: another instance serves the retry. If many wait for so long, lengthen the grace |
//! | 500 `lock-lost` | the lock was lost while the handler ran | see the next section |
//! | 500 `lock-key-conflict` | the key in Redis belongs to other data, or one owner asks for a shared lock and a permit of it | set a [prefix](crate::backend::redis::RedisBackendBuilder::prefix) of your own, or use [one mode](super::shared#which-mode-to-use) |
//! | 500 `lock-reentrancy` | one owner holds the lock 64 times | look for an acquire in a loop that keeps its guards |
//! | a key stays held, and its TTL in [`inspect`](crate::LockManager::inspect) increases now and then | a handler hangs, or a guard is stored: a process renews the lease | find the key on the dashboard of the process; set [`max_hold`](crate::LockLayer::max_hold) |
//! | a key stays held, its TTL only decreases, and the log has the event `locks cannot be released` | the server rejects releases | read the `cause` of the event; the user needs the [permissions](super::redis#permissions), such as `+hdel` |
//! | a key stays held, its TTL only decreases, and no log has this event | its process crashed, and the lease has not expired | wait for the [watchdog timeout](crate::LockManagerBuilder::watchdog_timeout), 30 s by default |
//!
//! # Why a lock was lost
//!
//! [`Held::lost_reason`](crate::Held::lost_reason), [`LockRejection::lost_reason`](crate::LockRejection::lost_reason), the
//! field `lock.lost_reason` and the label `reason` have the [reason](crate::manager::LostReason): `expired`, `not_held`, `max_hold`,
//! `lease_ended`, `forced` or `downgrade`. The first two rows are `expired` and `not_held`. A paused process is also
//! `expired`, with a large `lock.overdue_ms`.
//!
//! | cause | sign | remedy |
//! |---|---|---|
//! | the server was unavailable for two thirds of the watchdog timeout | a `warn` event of the outage before it | raise [`watchdog_timeout`](crate::LockManagerBuilder::watchdog_timeout), or improve the failover |
//! | the server lost its data | the losses of all processes coincide with a restart | persistence: see [`one_server`](super::one_server) |
//! | the process paused: suspended machine, CPU limit; or code of the program blocked the thread of the manager | no event of the server | do not block that thread; see [`runtimes`](super::runtimes) |
//! | the hold reached `max_hold` or its fixed lease | the loss comes after a constant time | raise the limit or split the work |
//! | [`force_release`](crate::LockManager::force_release) | a call of yours | – |
//!
//! # Release a key by hand
//!
//! [`force_release`](crate::LockManager::force_release) releases a key from any owner, and from all that share it or
//! have permits. Its guard is then lost, and the next waiter acquires the key. Use it only if the holder cannot write
//! any more, or if the storage checks [fencing tokens](super::fencing). A `DEL` in Redis has the same effect, but
//! notifies no waiter: waiters then attempt within about 1 s.
//! [`force_release_held_by`](crate::LockManager::force_release_held_by) releases only the owner that
//! [`inspect`](crate::LockManager::inspect) returned. The [dashboard](super::dashboard) uses it, if you allow that.
//!
//! # Kept leases
//!
//! A tenant, an account or an order under edit often comes back to the same process within milliseconds.
//! [`keep_released`](crate::LockManagerBuilder::keep_released), of the manager or of
//! [one layer](crate::LockLayer::keep_released), lets the lease of a dropped lock stay in the process for a few
//! milliseconds, and the next request for its key needs no command. A new key is released at once.
//!
//! Do not use it if a load balancer spreads the requests for one key over many processes (round robin): most requests then
//! wait for a process that does not need the lease, for up to this time. Route the requests for one key to one process, or
//! leave the setting off. With `no_wait`, these requests fail, although no owner holds the key.
//!
//! `tower_lock_grants_total{via="kept"}` shows whether the setting helps: each of these grants saved the commands of an
//! acquire and a release. If few grants are `kept`, and the waits of other processes increase, leave it off. While a lease is
//! kept, [`is_locked`](crate::LockManager::is_locked) is `true`, and [`inspect`](crate::LockManager::inspect), the dashboard
//! and `tower_lock_kept` show it as kept. [`force_release`](crate::LockManager::force_release) ends it.
//!
//! The time is a part of the longest wait: choose about twice the usual time between two requests for one key. A key in
//! constant use needs a command at the end of each of these times, so a longer one costs less: with 64 such keys, 50 ms cost
//! as much as locks in memory, and 10 ms a fifth more. A crash costs the rest of the lease, as it does while a lock is held.
//! [`shutdown`](crate::LockManager::shutdown) releases kept leases first, and so does the last handle of a manager.
//!
//! # Shut down
//!
//! A process that ends without a shutdown keeps its locks until their leases expire.
//! [`shutdown`](crate::LockManager::shutdown) serves the waiters, lets holders finish and releases their locks. Call it on
//! SIGTERM and on Ctrl-C, as `examples/orders` does. [Its documentation](crate::LockManager::shutdown) has the lines
//! for `axum::serve`, with the signals and a bound for requests that do not end.
//!
//! | acquire | from the call on |
//! |---|---|
//! | new | rejected with [`ShuttingDown`](crate::ErrorKind::ShuttingDown) |
//! | by the owner of a held lock | re-enters it |
//! | waits with a deadline | is served, like a request that axum has accepted; rejected shortly before the end of `grace`: by a tenth of it, at most by one response timeout |
//! | [`wait_forever`](crate::manager::Acquire::wait_forever), [`run_every`](crate::manager::Acquire::run_every) | ends at once |
//!
//! The call completes when the last lock is released. If the backend does not reply, it completes one response timeout
//! after the last holder and waiter, and the keys remain until their leases expire.
//!
//! - Pass a `grace` that is shorter than the time after which the service manager kills the process, such as
//!   `terminationGracePeriodSeconds` of Kubernetes.
//! - `grace` bounds `shutdown` only. A graceful shutdown of the server has no bound, so put a `timeout` around it.
//! - A lock whose holder does not end by then remains until its lease expires. The returned
//!   [`Snapshot`](crate::manager::Snapshot) counts these locks.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use tower_lock::{ErrorKind, LockManager};
//!
//! let locks = LockManager::in_memory();
//! let guard = locks.acquire("order:42").await?;
//! let handler = tokio::spawn(async move {
//!     tokio::time::sleep(Duration::from_millis(20)).await;
//!     drop(guard);
//! });
//!
//! let remaining = locks.shutdown(Duration::from_secs(10)).await;
//! assert!(remaining.is_idle());
//! assert_eq!(locks.acquire("order:42").await.unwrap_err().kind(), ErrorKind::ShuttingDown);
//! # handler.await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Background jobs
//!
//! A job acquires its lock from the same manager. [`run_every`](crate::manager::Acquire::run_every) runs it once per interval over
//! all processes. One of them holds the lock also between the runs. If that process ends, another one continues, one
//! interval later. `examples/jobs.rs` is a whole program:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tower_lock::Error> {
//! use std::time::Duration;
//! use tower_lock::LockManager;
//!
//! let locks = LockManager::in_memory();
//! let job = locks.acquire("clean-up").run_every(Duration::from_secs(600), |_held| async {
//!     println!("cleaned up");
//! });
//! # let shutdown = async {
//! #     tokio::time::sleep(Duration::from_secs(601)).await;
//! #     locks.shutdown(Duration::from_secs(1)).await
//! # };
//! # let (job, _) = tokio::join!(job, shutdown);
//! # let job = std::future::ready(job);
//! job.await?; // Ends when the manager shuts down.
//! # Ok(())
//! # }
//! ```
//!
//! A job that another program starts, such as cron, acquires with one attempt. It skips **only runs that overlap**: two
//! instances whose clocks differ by more than the length of a run both run. [`run`](crate::manager::Acquire::run) drops the work
//! if the lock is lost:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_lock::Error> {
//! use tower_lock::{ErrorKind, LockManager};
//!
//! async fn clean_up() -> usize {
//!     3
//! }
//!
//! let locks = LockManager::in_memory();
//! // One attempt: while another instance runs the job, this one skips it.
//! match locks.acquire("nightly").no_wait().run(|_held| clean_up()).await {
//!     Ok(removed) => assert_eq!(removed, 3),
//!     Err(error) if error.kind() == ErrorKind::Busy => {}
//!     Err(error) => return Err(error),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Deploy
//!
//! - *The first week.* [`observe_only`](crate::LockLayer::observe_only) rejects nothing, and counts what it would
//!   reject. Wait and keys can be chosen from these counts.
//! - *Rolling update.* Old and new processes exclude each other, unless the changelog says that they do not.
//! - *Restart Redis.* With its data and within two thirds of the watchdog timeout, no lock is lost. The page of the
//!   [topology](super) describes the other cases.
//! - *Change the prefix, the topology or `redisson_fencing_tokens`.* Stop all processes first: old and new processes
//!   do not exclude each other, or their tokens do not increase together.
