//! Incidents: for operators looking for the cause of a symptom or an alert.
//!
//! The page [`operations`](super::operations) describes the metrics and the events, and
//! [`dashboard`](super::dashboard) describes the dashboard.
//!
//! # Find the cause
//!
//! Read the rows from top to bottom: the first row that fits is the cause. A cause above often has the signs of the rows
//! below it as well. The label `layer` of a metric is the name of a layer, which usually names its route. The label
//! `instance`, which Prometheus adds, is the process: a server that is `DOWN` for one process of several has no fault.
//!
//! | cause | dashboard | metrics and alerts | how it differs from others |
//! |---|---|---|---|
//! | the server is down or unreachable | *Backend*: `commands` and `notifications` are `DOWN`. *Grants* falls to 0. *Rejected*: `unavailable` | `TowerLockBackendDown`, later `TowerLockRenewalsFailing` and `TowerLockReleasesStuck`; acquires with the outcome `unavailable` in all layers | the cause in *Backend* is a refused connection or a missing reply. If the server hangs, `notifications` is `DOWN` a few seconds after `commands` |
//! | the server replies but cannot grant: full memory, a replica, too few replicas | *Backend*: `commands` is `DOWN`, `notifications` is `up`. *Rejected*: `unavailable` | `TowerLockBackendDown`; acquires with the outcome `unavailable` | the cause in *Backend* is the server's own text, such as `OOM`, `READONLY` or `NOREPLICAS` |
//! | the server rejects this client: a permission, a password | *Backend*: `commands` is `DOWN`, `notifications` often `up`. *Rejected*: `refused` | `TowerLockBackendDown`; acquires with the outcome `refused` | the cause in *Backend* begins with `lock backend refuses this client`. A password: it goes on with `WRONGPASS` or `NOAUTH`. A permission: with `NoPerm` or `can't run this command`, and `ACL LOG` on the server names the command or key |
//! | the server rejects releases alone: a permission | *Backend*: `releases` is `DOWN`, `commands` is `up`. *Unreleased* is above 0. *Rejected*: `busy` | `TowerLockReleasesRejected`, with traffic also `TowerLockReleasesStuck` and `TowerLockBusyRatio` | the cause in *Backend* as above, of `releases`. *Look up a key*: a key that no process lists in *Keys* stays held until its lease expires |
//! | notifications do not arrive | *Backend*: `notifications` is `DOWN`, `commands` is `up`. No rejections, if waits are long enough | `TowerLockNotificationsDown`, later `TowerLockNotificationsBroken`; `tower_lock_wakeups_total` counts `backstop` in place of `message` | the cause in *Backend* is that of the subscription. Only waits for locks of other processes are longer |
//! | PostgreSQL keeps dead rows: an old transaction, or no vacuum | *Wait* and the times of commands increase over minutes, with the same traffic | `TowerLockOldTransaction`, `TowerLockTableBloat`, later `TowerLockWaitSlow`; `tower_lock_backend_command_seconds` | the CPU of the server is busy, and the rates fall with each minute. After the end of the transaction and a vacuum, they are as before |
//! | the process pauses: a suspended machine, a CPU limit, code that blocks the thread of the manager | *Backend*: `this process paused`. All plots have gaps of the same time. *Lost*: `expired` | `TowerLockWatchdogLate`, then `TowerLockLost` with the reason `expired`; only one `instance` | the server is `up`, and no renewal has failed. `lock.overdue_ms` in the log is large |
//! | one handler hangs, or a guard is stored | *Oldest hold* increases with each second. *Keys*, by the longest hold: one key, *Held for* longer than any request lasts | `TowerLockHeldTooLong`; `tower_lock_oldest_hold_seconds` of one `instance` | *Hold* is as before, because it has only holds that have ended |
//! | handlers hold their locks for too long | *Hold* is higher than before. *Rejected*: `busy` | `TowerLockWaitSlow`, `TowerLockBusyRatio`; the holds of one layer are longer than before | the holds that end are longer, of one key or of many |
//! | a key has too much traffic | *Hold* is as before. *Hottest keys*: one key has nearly all waits. *Rejected*: `busy`, or `too many waiters` | `TowerLockWaitSlow`, `TowerLockBusyRatio`, `TowerLockQueueNearLimit`; the holds of the layer are as short as before | short holds, and more acquires than before |
//!
//! The plot *Hold* mixes all layers. A layer that always holds for seconds hides another one that has become slow. This
//! query has the hold times by layer, and its graph shows since when they are longer. With `instance` in place of `layer`,
//! it shows the process whose handlers are slow:
//!
//! ```text
//! histogram_quantile(0.9, sum by (layer, le) (rate(tower_lock_hold_seconds_bucket[1m])))
//! ```
//!
//! `tower_lock_backend_command_seconds` with the outcome `refused` counts commands that certainly had no effect. Both a
//! server that rejects them and one that refuses the connection cause it.
//!
//! # Alerts
//!
//! The alerts of `ops/alerts.yml` wait until a problem lasts, some for 10 minutes. Until then, Prometheus lists them as
//! pending, which already is a sign. Each one names its process, the `instance`, except the two for the waits and
//! rejections of a layer, which are those of all processes together.
//!
//! | alert | meaning | first steps |
//! |---|---|---|
//! | `TowerLockBackendDown` | a server rejects commands or does not reply | read the cause in *Backend*, or the `cause` in the log: network and server, or permissions and password |
//! | `TowerLockReleasesRejected` | released keys stay held until their leases expire, and the server is up | read the cause. The user needs `+hdel +del +exists`, `+publish` and the names of its locks: [permissions](super::redis#permissions). Without `+exists`, only releases with waiters are rejected |
//! | `TowerLockNotificationsDown` | the subscription fails, and the server is up | read the cause. The user needs `+subscribe`, `+unsubscribe`, `+publish` and the channels of its locks |
//! | `TowerLockLost` | work ran under a lost lock | its `reason`, and [why a lock was lost](super::operations#why-a-lock-was-lost) |
//! | `TowerLockRenewalsFailing` | renewals fail for a minute: locks are lost next | as for `TowerLockBackendDown` |
//! | `TowerLockReleasesStuck` | released keys stay held in the backend until their leases expire | as for `TowerLockBackendDown` |
//! | `TowerLockWaitSlow` | 1 % of the granted acquires wait for more than 1 s | compare holds: longer than before is a slow handler, as before a busy key. At least 5 acquires have waited |
//! | `TowerLockBusyRatio` | more than 5 % of the acquires are rejected as busy | as for `TowerLockWaitSlow`. At least 5 rejections in 5 minutes |
//! | `TowerLockQueueNearLimit` | the waiters of a manager use more than 80 % of its places | *Keys* by waiters: one key, or all |
//! | `TowerLockHeldTooLong` | a lock has been held for more than 5 minutes | *Keys* by the longest hold; [`max_hold`](crate::LockLayer::max_hold) |
//! | `TowerLockNotificationsBroken` | waiters find released locks by polling | if `notifications` is `DOWN`, as for `TowerLockNotificationsDown`. If it is `up`, something between the process and the server drops messages |
//! | `TowerLockWatchdogLate` | the process paused, or code of the program blocked the thread of the manager | look for suspends, CPU limits, and subscribers or backends that block: [`runtimes`](super::runtimes) |
//! | `TowerLockOldTransaction` | a transaction in the database of the locks has been open for 5 minutes, so dead rows stay | end it: `pg_terminate_backend` of the session with the oldest `xact_start` in `pg_stat_activity` |
//! | `TowerLockTableBloat` | a table of locks in PostgreSQL has had more than 100,000 dead rows for 10 minutes | [what to do](super::postgres#dead-rows) |
