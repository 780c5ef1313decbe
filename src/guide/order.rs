//! Order: for services whose processes compete for busy keys.
//!
//! This page states in which order waiters acquire a key.
//!
//! ```text
//!   process A            process B            process C
//!  ┌─────────────┐      ┌─────────────┐      ┌─────────────┐
//!  │ holder      │      │ 3 waiters   │      │ 1 waiter    │
//!  └──────┬──────┘      └──────▲──────┘      └─────────────┘
//!         │ 1. release         │ 2. notification
//!      ┌──▼────────────────────┴──┐
//!      │ Redis                    │   lock:order:42               → { "<B>:9": 1 }
//!      │ queue: 1. B   2. C       │   lock:{lock:order:42}%queue  → places
//!      └──────────────────────────┘
//! ```
//!
//! # What is guaranteed
//!
//! - Within a process, compatible waiters acquire a key in the order of their arrival.
//! - Between processes, a queue in the backend orders those that wait for a key. A release transfers the key to
//!   the first process of the queue in one step, and notifies only that process. No process can acquire the key
//!   in between.
//! - A process has one place in the queue, for all of its waiters. Only waiters for [permits](super::shared#permits) have
//!   a place each. While other processes wait, its turn serves
//!   the waiters that wait when the turn begins. After 50 ms, the turn ends with the present hold. If it has
//!   lasted less than 2 ms, it also serves later waiters. A waiter with a fixed
//!   [`lease`](crate::manager::Acquire::lease) has a turn of its own, since a fixed lease is not handed off.
//! - A process whose first attempt finds the key held enters the queue at its next attempt. A single attempt,
//!   [`no_wait`](crate::manager::Acquire::no_wait), does not enter the queue, unless it waits for a release of its own process
//!   that is in flight.
//! - If every notification is lost, each waiting process attempts at intervals. The attempt of any of them at a free
//!   key is the turn of the first live process of the queue. It attempts itself within the bound below.
//!
//! # Without notifications
//!
//! While every notification is lost and the backend replies, a free key waits for its next attempt for at most the sum
//! of these times:
//!
//! | part | time | why |
//! |---|---|---|
//! | poll | 1 s | a process without notifications attempts, or refreshes its place in the queue, at this interval |
//! | jitter | 0.1 s | each interval varies by up to a tenth |
//! | refresh | the way back of one reply | the key became free after the last attempt or refresh, and the interval begins with its reply |
//! | command | the way of one command to the backend | the next attempt |
//!
//! The last two are one round trip, if a command waits for no other one: 1.22 s in total for a backend that takes 120 ms
//! for a command. If it takes all of that time on either way, the sum is 1.34 s. A wait that ends earlier ends at its own
//! time. If the backend does not reply, or rejects the commands, each attempt follows the one before it after 50 ms, and
//! each further one after twice the time before, up to the poll interval. `make simulate` checks the bound.
//!
//! # Where
//!
//! | backend | order between processes |
//! |---|---|
//! | [`Memory`](crate::Memory) | the same, between the managers that share it |
//! | one server, [Sentinel][sentinel] | as above |
//! | [PostgreSQL](super::postgres#waiters) | as above; a process that does not listen polls at least every 100 ms, and is not passed over |
//! | [Cluster][cluster] with sharded messages | as above |
//! | Cluster with plain messages or [`Publish::Both`] | as above, and every 500 ms the clients outside the queue have a turn |
//! | one endpoint for several servers | as above, but a process that does not confirm a transfer within 0.3 s loses its place |
//! | [`Quorum`](crate::Quorum) | none: its nodes cannot agree on one queue |
//!
//! A failover or a restart that loses the queue also loses the places. So does each crash of PostgreSQL. The waiters enter again in any order.
//!
//! # What a failed process costs
//!
//! | process | cost to the processes behind it |
//! |---|---|
//! | the holder ends or hangs | its lease, at most the [watchdog timeout](crate::LockManagerBuilder::watchdog_timeout) (30 s by default) |
//! | a waiter ends, and the server has closed its connection | nothing: the next release passes it over |
//! | a waiter ends after the key was transferred to it | at most 1.5 s, once |
//! | waiters hang with open connections | at most 4.5 s for all of them together |
//! | a waiter left, and a failover of Redis restored its place | nothing if the server counts subscribers and the process has left the key for a second; otherwise at most 1.5 s, once |
//!
//! A process refreshes its place every second, and loses it after 3 s without a refresh. It confirms a
//! transferred lease within 1.5 s, or the key expires and the next process is served. The 4.5 s are the sum of both
//! times.
//!
//! # What a transfer costs
//!
//! The notification of a transfer wakes the process, which confirms the transfer by a command. So a transfer between two
//! processes takes the message and one round trip. A message that is lost, late or repeated grants nothing.
//!
//! While a process has waiters for an exclusive lock, its release enters the queue for the next one in the same command.
//! A turn then takes two commands: this release, and the confirmation. An acquire that comes after the release, and each
//! permit, enters the queue by a command of its own.
//!
//! [`LockInfo::queued`](crate::manager::LockInfo::queued) is the number of places in the queue.
//!
//! # Processes without a subscription
//!
//! A pool without [`notify`], or a broken connection, leaves a process without notifications. In Redis, a primary does not
//! count a subscription at its replica. In each case the process has the same place as any other, polls, and confirms
//! a transfer within 0.3 s. In PostgreSQL, it confirms within 1.5 s, first polls after 10 ms for each place, and is not
//! passed over. In all other stores:
//!
//! - It first polls after 3 ms for each place up to and including its own. Without progress it polls after a tenth of the time since its
//!   last progress. The interval is at most 100 ms (110 ms with jitter).
//! - While it sleeps, a release passes over it, and it keeps its place. The transfer goes to the first process that
//!   listens or is about to poll. If all of them sleep, it goes to the first one.
//! - Once the first process of the queue has polled, the next release transfers the key to it. So its turn comes at
//!   most 100 ms later than that of a process that listens. Of several such processes in a row, each follows within
//!   the same time after the one before it.
//! - The lock is idle from the transfer until the poll: about 3 ms while the holds are short, at most a tenth of a
//!   longer hold.
//!
//! # When a process can overtake others
//!
//! - After a lease expires, the key is free until the first process attempts. Any other process can acquire it in
//!   that time.
//! - In PostgreSQL, a process of version 1 of the schema waits outside the queue: the page [`postgres`](super::postgres#an-upgrade).
//! - In Redis, a process of a version without the queue, or a client such as Redisson, waits outside the queue. While such
//!   a client is subscribed, it has one turn of at most 10 ms in each round of the queue. The page [`redisson`]
//!   describes the consequences.
//! - A process of a version without the queue keeps a lease for its own waiters until another process subscribes. A
//!   process that only polls then waits as long as those waiters follow each other. During a rolling deployment, set
//!   [`notify`] for a pool.
//! - While a slot is moving to another node, its keys have no queue.
//! - With full memory, a process cannot enter the queue, and polls about once a second. Places in the queue remain.
//! - Without the [permissions] for sorted sets there is no queue. The backend warns when it connects. A
//!   key whose queue alone is denied has no queue, and the backend warns at the first one. The same applies to a
//!   permission that is withdrawn later.
//! - A single attempt can acquire the key in the turn of the clients outside the queue.
//! - A release looks at the first 32 places. If none of these processes is reachable, the key is free.
//!

// The pages and settings of Redis exist with its feature only.
#![cfg_attr(
    feature = "redis",
    doc = "
[cluster]: super::cluster
[`notify`]: crate::backend::redis::RedisBackendBuilder::notify
[`Publish::Both`]: crate::backend::redis::Publish::Both
[permissions]: crate::RedisBackend#permissions
[`redisson`]: super::redisson#what-is-different
[sentinel]: super::sentinel
"
)]
#![cfg_attr(
    not(feature = "redis"),
    doc = "
[cluster]: ../cluster/index.html
[`notify`]: ../../backend/redis/struct.RedisBackendBuilder.html#method.notify
[`Publish::Both`]: ../../backend/redis/enum.Publish.html#variant.Both
[permissions]: ../../struct.RedisBackend.html#permissions
[`redisson`]: ../../guide/redisson/#what-is-different
[sentinel]: ../../guide/sentinel/
"
)]
