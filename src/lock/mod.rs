//! The engine: locks by key, without HTTP and without any particular backend.
//!
//! # Rooms
//!
//! A room names those above it in this table, and none below.
//!
//! | room | responsibility |
//! |---|---|
//! | [`clock`] | time that includes suspends, and waits with a deadline |
//! | [`lease`] | one lease of this process: its renewals and hand-offs; its grant, which the guards share; its loss and the reason |
//! | [`lane`] | one key in this process: a state machine without I/O, its queue, its attempts and its holds, and the effects of its events |
//! | [`table`] | all lanes by key, the index of their deadlines, their numbers |
//! | [`engine`] | what all handles and tasks of a manager share: its options, its home, the releases that are due or unconfirmed |
//! | [`tasks`] | the tasks: acquire loops and renewals at home, first attempts and releases near the caller; the one place that carries out effects |
//! | [`acquire`] | an acquire: its options, its first event, its first attempt, its wait, and the guard that it returns |
//! | [`api`] | the public handle, its settings, its view of the locks, forced releases |
//! | `view` | what operators see: lanes, in frames |
//!
//! # Life of a lock
//!
//! Each key has one *lane* per process ([`lane`]), and one for each owner that asks for a permit: a state machine under
//! the mutex of its shard of the table ([`table`]), the *mutex of the lane*. Acquires, guards and background tasks send it
//! events. An event changes the state under the mutex and fills one [`Effects`](lane::Effects) value;
//! [`dispatch`](tasks::dispatch) carries it out after the mutex is free. No other file answers a waiter, reports a release
//! or wakes a loss future.
//!
//! Three kinds of work are no effects. An acquire sends its first attempt after the event by which it begins to contend
//! ([`entry`](acquire::entry), [`pending`](acquire::entry::pending)). A task gets its next command as the result of its
//! event, such as a due renewal or a release, and sends it after that. An event that gives a loop or a downgrade
//! something to do notifies it under the mutex: that only stores a wake-up and schedules its task.
//!
//! The backend in memory replies without waiting. Its first attempts and releases run under the mutex, inside of the
//! event, so several rows of the table below are one event there.
//!
//! An acquire that waits is one [`Waiter`](lane::Waiter), which its future and its lane share: its claim, its seat, the
//! answer and the task to wake. Between two polls it also holds the first attempt, so home finds it there.
//!
//! The phases are those of `Phase` in `lane/state.rs`, but its `Returning` is three of them here, by its `Sent`. A lease is
//! *surrendered* from the end of its last hold until its release is sent, and *returning* from then on. It is *kept* while
//! its release is not due, because its key comes back: the last acquire began within the time of
//! [`keep_released`](LockManagerBuilder::keep_released) after the end before it. A shared lease is *open* while other owners
//! may join it. A lease has *budget* while it may pass to a waiter here: it is renewed, other processes have not waited too
//! long, and tokens are left ([`Lease::may_pass_to`](lease::Lease::may_pass_to)). A place is one in the queue of the backend.
//!
//! The column *task* names the background task that the next phase needs to make progress, or that notices the event:
//! `attempt` is the task of a [`first_attempt`](tasks::first_attempt), `loop` an acquire loop
//! ([`contender`](tasks::contender)), `releaser` a task of [`releaser`](tasks::releaser), `watchdog` the task of
//! [`watchdog`](tasks::watchdog). The tasks of first attempts and of releases run near the caller, and at home where a row
//! says so. All others run at home. A lease or a place that the lane has left, and that the backend may still hold, is
//! released by commands of [`unconfirmed`](tasks::unconfirmed), which the watchdog sends, also after a late reply.
//!
//! | phase | event | next phase | effect | task |
//! |---|---|---|---|---|
//! | idle | acquire | contending | queue, send the first attempt | attempt |
//! | idle | acquire of a permit that waits for more than 2 s, other owners in this process wait for one | contending | queue, start a loop | loop |
//! | contending | acquire | | queue; with `no_wait` wait for the reply, or reject behind others | |
//! | contending | the first attempt is rejected | contending, or idle; yielding, as before the acquire | reject it if it is a `no_wait`; start a loop for the queue | loop |
//! | contending | the acquire has not polled its first attempt for 8 ms while others wait, or is rejected before the reply | | finish it by a task at home | attempt |
//! | contending | the first attempt has no reply after one response timeout while others wait, or after the end of its acquire; its runtime has ended | contending, or idle; yielding, as before the acquire | release its lease; start a loop for the queue | loop |
//! | contending, permit | 4 loops contend for permits of the key | | the new loop waits for one of them to end, for a second, or until 20 ms before the deadline | loop |
//! | contending | the attempt is granted | held by the first in the queue | answer it | watchdog |
//! | contending | the same, but the queue is empty or its terms differ | surrendered | release | releaser |
//! | contending | the loop's attempt is rejected | | keep the place in the backend's queue; reject `no_wait`s: those that came before it, or all if the backend failed | loop |
//! | contending | the key is transferred to the place of this process, or the loop wakes | | attempt under the lease of the place | loop |
//! | contending | the attempt can never succeed | idle, or contending | reject the waiters of its mode, leave the place | loop |
//! | contending | the last waiter leaves | idle, once the loop has woken; yielding, as before the waiter | the loop ends, leave the place | loop |
//! | contending | the home ends | idle; yielding, as before the waiter | reject the waiters, leave the place | |
//! | contending, held | released by force, before or after the grant | | renew at once, which shows the order | watchdog |
//! | held | the hold of one owner is released by force | surrendered | mark the guard lost; release, and report | releaser |
//! | held | acquire by the owner, or queued acquires of the owner | | count up; at 64 reject | watchdog |
//! | held | exclusive acquire by an owner that holds it shared | | reject: it would wait for itself | watchdog |
//! | held, shared, open | shared acquire by another owner, no waiter; its fixed lease ends earlier, or 500 ms, a third of its own TTL, or a third of that of a renewed lease is left | | join the lease, without a command | watchdog |
//! | held, shared, open | the same, the last reply is older than 50 ms | | renew at once; others join for 500 ms without a reply | watchdog |
//! | held, shared | the renewal says "wanted" | held, shared, closed | no other owner joins | watchdog |
//! | held, shared, closed | 250 ms have passed since the last reply | | renew, to find out whether the writer has left | watchdog |
//! | held, shared | renewed and not wanted, or the exclusive waiter leaves or is rejected while it is open | held, shared, open | the first waiters that are shared join | watchdog |
//! | held, shared | release, or the end of one of several owners | | the terms of the others apply | watchdog |
//! | held, exclusive | downgrade, one hold | | send the command, after the reply to a renewal in flight | its own task |
//! | held, exclusive | downgraded | held, shared, open | a fresh token; the first waiters that are shared join | watchdog |
//! | held, exclusive | the downgrade is rejected | | renew at once | watchdog |
//! | held, exclusive | the result of the downgrade is unknown | surrendered | mark the guard lost; release | releaser |
//! | held | acquire by another owner | | queue; with `no_wait` reject | watchdog |
//! | held | release, count above 1 | | count down; the terms of the remaining holds apply | watchdog |
//! | held, not by a permit | last release, the first waiter has the same mode, budget left | held by that waiter | answer it | watchdog |
//! | held, exclusive | last release by a drop, no waiter here, none known elsewhere, its key comes back, tokens left, in its turn, no renewal is due or in flight | kept | | watchdog |
//! | held, exclusive | last release by a drop, no waiter, its key comes back, otherwise | surrendered | keep unless other processes wait; no budget is left if its turn has ended | releaser |
//! | held | last release otherwise | surrendered | release | releaser |
//! | kept | acquire, tokens left, in its turn | held | take the lease back | watchdog |
//! | kept | acquire otherwise, acquire of a permit of its key, released by force, a shutdown begins, or the home ends | surrendered | release | releaser |
//! | kept | its turn has ended | surrendered | release; keep unless other processes wait if it was held shortly before | releaser |
//! | held | not picked up by the deadline of its waiter | surrendered | release | releaser |
//! | held | a renewal or the downgrade says "not held", or released by force | contending, or idle | mark the guard lost; contend | loop |
//! | held | the guard's deadline has passed | surrendered | mark the guard lost; release | releaser |
//! | surrendered, no permit | acquire, the queue is empty, budget left | held | take the lease back | watchdog |
//! | surrendered, returning | acquire otherwise | | queue; with `no_wait` only as the first | releaser |
//! | surrendered | the renewal for which it waits has ended, a waiter, budget left | held by the first in the queue | answer it | watchdog |
//! | surrendered | the releaser runs, the queue is empty | returning | release | releaser |
//! | surrendered | the releaser runs, a waiter | returning | keep unless other processes wait | releaser |
//! | returning | no reply to the release after one response timeout | | send it again from home, once | its own task |
//! | surrendered, returning | the lease must have expired | | report `Unavailable` | watchdog |
//! | surrendered, returning | the same, and a late release had 500 ms | contending, or idle | if none was sent, release without the lane | loop |
//! | returning | kept by the backend | held by the first in the queue, or kept | answer it; if none is left and its key does not come back, release | watchdog |
//! | returning | released by force | | if the reply says "kept", release it | releaser |
//! | returning | released, not held, or failed | contending, or idle | retry a failed release without the lane | loop |
//! | returning | transferred, or left to other clients | contending, or yielding | start a loop, which attempts or keeps the place that the release entered | loop |
//! | yielding | acquire | contending | queue behind others; the loop enters the backend's queue | loop |
//! | yielding | acquire with `no_wait` | contending | queue, send the first attempt | attempt |
//! | any with waiters | the deadline of a waiter has passed; a shutdown begins and it has none; the grace of a shutdown is about to end | | reject it | watchdog, or the shutdown |
//! | yielding | 20 ms have passed | idle | | watchdog |
//!
//! The turn of a lease in which it is kept has the length of `keep_released`, and begins with its grant by the backend, or
//! when the backend keeps it. So other processes wait for it at most that much longer, however often its key comes back. With
//! the last handle and the last guard, `engine/keep.rs` releases the kept leases without their lanes.
//!
//! A lease passes only to waiters of its mode. Readers under the lease of a writer would keep out the readers of all
//! other processes, whom the backend grants together with them. Permits are counted in the backend.
//!
//! A held lease has an upkeep, the state of its renewals: `RenewalState` in `lease/renewal.rs`. Renewals change the phase
//! only by the rows above.
//! Without the task of a row, the lease expires at the guard's deadline:
//!
//! | upkeep | event | next upkeep | effect | task |
//! |---|---|---|---|---|
//! | due | a third of the lease has passed | in flight | send a renewal | watchdog |
//! | due | the backend may have lost it, or a nested hold needs more than the remaining TTL | due now | | watchdog |
//! | in flight | renewed | due | the guard's deadline moves | watchdog |
//! | in flight | failed | retry due soon | | watchdog |
//! | due | downgrade | in flight | send the downgrade; renewals wait for its reply, however late | its own task |
//! | in flight | a renewal is needed before the reply | in flight, then due now | | watchdog |
//! | retry due | the backoff has passed | in flight | send a renewal | watchdog |
//!
//! A fixed lease has no upkeep: it ends at its deadline. A renewal is only sent for a nested hold that needs more than the
//! remaining TTL, or to find out whether more owners may share the lease. A lease that the backend has kept is due a third
//! of its length later.
//!
//! # After the last hold
//!
//! These files decide in this order what becomes of a lease:
//!
//! | question | decided in |
//! |---|---|
//! | does it pass to a waiter here, without a command? | `pass_on` in `lane/holding/held.rs`, by the budget in `lease/hand_offs.rs` |
//! | is it kept, without a command? | `engine/keep.rs` whether its key comes back, `lane/holding/keeping.rs` whether the lease may stay |
//! | is it released, or does the backend decide? | `take_return` in `lane/holding/returning.rs`, when the releaser runs |
//! | does the backend keep it for this process, or transfer it to another one? | the backend. `tasks/releaser.rs` and `tasks/releaser/release_or_keep.rs` pass its reply to `returning.rs` |
//!
//! A lease whose last hold ends by the clock or by force begins with the third question.
//!
//! # Time
//!
//! The sender of an event reads the clock before it locks the mutex, and all steps of the event use that moment. It can be
//! slightly earlier than the moment of the event before. The replies to renewals and downgrades are the exception: they
//! read the clock again under the mutex (`tasks/watchdog.rs`, `tasks/downgrade.rs`). A caller may have observed a loss
//! while they waited for the mutex, and such a reply must not undo it.
//!
//! The clock includes suspends of the machine ([`clock`]). A resume is no event: the next tick of the watchdog finds the
//! renewals that are due and the locks that have ended.
//!
//! A backend that lost its last writes can have a place that this process left, and transfer the key to it. The transfer
//! expires, and delays the other waiters by its TTL once.
//!
//! # Invariants
//!
//! - A lane has at most one acquire or release in flight. A renewal may be in flight concurrently, but none is sent
//!   after a release, and a release waits for the reply to one in flight.
//!   A first attempt or a release without a reply in time is the exception: its runtime may block, and home does not
//!   wait for it.
//! - Processes that contend for one key take turns, in the order in which they entered the queue of the
//!   backend. In a turn, each waiter that this process has at its start gets the lease once, for at most
//!   50 ms. Turns shorter than 2 ms go on with later waiters.
//! - Without a queue in the backend, a process that released a key for others contends again after 5 ms.
//! - A lane has at most one place in the backend's queue of its key, under one lease id. It keeps the
//!   place until the lease is granted or left. After an unknown result, the lease is released until the
//!   backend replies or the lease must have expired, and the next attempt has another id. A command without a reply
//!   may take effect up to a minute later: a server that was stopped continues with the commands in its buffers.
//! - Only the reply to an attempt grants a lease. A message of the backend is a hint, which causes an attempt.
//! - A guard is current while the lane holds the very grant that the guard was made from. Operations of
//!   another guard, such as a lost one, change nothing.
//! - If a waiter is dropped while it is being answered, its hold is released and goes to the next in the
//!   queue.
//!
//! # Home
//!
//! A manager has one place for its background work, its [`home`](engine::home): a thread of its own, or the runtime set by
//! [`LockManagerBuilder::runtime`]. Renewals, deadlines, acquire loops and retries run there, so a runtime of callers that
//! idles, blocks or ends affects no lock. While the system allows no further thread, the runtime of a caller is the home.
//! Only first attempts, first releases and single commands such as `inspect` are sent near the caller, because a change of
//! threads costs more than a script call: from its runtime if that has timers and several threads, and from
//! home otherwise. A message for an acquire loop is read there as well, and its reader polls the loop: an attempt that
//! changed threads first would come after those of clients outside the queue. What is sent near the caller and has no
//! reply after one response timeout is repeated or released from home.
//!
//! A task at home that is dropped before its end makes the home suspect: the next acquire checks whether the home has
//! ended, and starts the tasks again if it has not. A watchdog that panics in code of the program starts again at once.
//!
//! # Dropped futures
//!
//! A caller can drop three futures: the acquire, `release` and `downgrade`. So can the end of its runtime. They only await
//! what tasks report, but an acquire may also poll its own first attempt.
//!
//! A dropped acquire leaves the queue at once. A task finishes its first attempt, or a loop replaces that if the runtime has
//! ended ([`first_attempt`](tasks::first_attempt)). A late reply to a replaced attempt changes nothing in the lane: a lease
//! that it grants is released.
//!
//! An acquire is a waiter of its lane from its first event on, and home takes a first attempt that it does not poll. So
//! until it is granted, a future that is not polled delays no other for more than 8 ms. A grant that it does not pick up
//! delays others until its deadline, if it has one. `release` and `downgrade` have started before their first await. Tasks
//! are only dropped with their runtimes, or if code of the program panics in them.
//!
//! # Shutdown
//!
//! [`LockManager::shutdown`] waits in four steps:
//!
//! 1. It rejects new acquires and the waiters without a deadline, and releases the kept leases. It waits until no lane is
//!    held or has a waiter, but at most until shortly before the end of the grace.
//! 2. It rejects the other waiters, and waits for the holders until the end of the grace.
//! 3. It waits until the table is empty, and the work that lanes left was started.
//! 4. It waits until no release is unconfirmed.
//!
//! While the backend is silent, steps 3 and 4 end after one response timeout. Each reply to a release extends that, at most
//! to the end of the grace.

mod acquire;
mod api;
mod clock;
mod engine;
mod lane;
mod lease;
mod table;
mod tasks;
#[cfg(test)]
mod tests;
#[cfg(feature = "dashboard")]
mod view;

pub(crate) use acquire::guard::Heir;
pub use acquire::guard::LockGuard;
pub use acquire::{Acquire, AcquireFuture};
pub use api::builder::LockManagerBuilder;
pub use api::manager::LockManager;
pub use api::snapshot::LockInfo;
pub(crate) use engine::options::{valid_keep, valid_lease, valid_permits, valid_wait};
pub(crate) use engine::read_budget::{ReadBudget, ReadShare};
#[cfg(feature = "tracing")]
pub use engine::trace_keys::TraceKeys;
#[cfg(feature = "dashboard")]
pub(crate) use lane::HeldBy;
pub use lease::Held;
pub(crate) use lease::Lost;
pub use table::counts::Snapshot;
#[cfg(feature = "dashboard")]
pub(crate) use table::hot::HotKey;
#[cfg(feature = "dashboard")]
pub(crate) use view::{LaneView, Order, OwnerView, Walk, WeakManager};
