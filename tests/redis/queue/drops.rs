//! Acquires that are dropped in the queue of a Redis lock, at every step before and after its transfer.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures_util::poll;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tower_lock::{Error, LockGuard, LockManager, RedisBackend};

use crate::support::engine::{
    MS, PATIENCE, SECOND, no_subscription_is_left, nothing_is_left, prompt_manager,
};
use crate::support::proxy::{Proxy, Swallow};
use crate::support::redis_server::RedisServer;

/// The default. What leaks outlives the test.
const LEASE: Duration = Duration::from_secs(30);
/// The TTL of a transferred lease that no process confirms, in milliseconds.
const CONFIRM: i64 = 1_500;
/// A turn of another waiter, which must not wait for the end of an unconfirmed lease.
const SOON: Duration = Duration::from_millis(700);

/// What the server has of an acquire that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Outside,
    Queued,
    Transferred,
    Confirmed,
}

struct Rivals {
    server: RedisServer,
    /// Runs all but the acquire that is dropped.
    others: Runtime,
    holder: LockManager,
    other: LockManager,
}

impl Rivals {
    fn new() -> Self {
        let server = RedisServer::start();
        let mut others = Builder::new_multi_thread();
        let others = others.worker_threads(1).enable_all().build().unwrap();
        let holder = others.block_on(prompt_manager(server.url(), LEASE));
        let other = others.block_on(prompt_manager(server.url(), LEASE));
        Self {
            server,
            others,
            holder,
            other,
        }
    }

    fn in_queue(&self, locks: &LockManager, key: &str) -> bool {
        let queue = format!("lock:{{lock:{key}}}%queue");
        let members = self.server.cli(&["ZRANGE", &queue, "0", "-1"]);
        members.lines().any(|place| place.starts_with(&name(locks)))
    }

    fn has_body(&self, locks: &LockManager, key: &str) -> bool {
        let body = format!("lock:{key}");
        self.server.cli(&["HKEYS", &body]).starts_with(&name(locks))
    }

    fn phase(&self, locks: &LockManager, key: &str) -> Phase {
        if self.has_body(locks, key) {
            let left: i64 = self
                .server
                .cli(&["PTTL", &format!("lock:{key}")])
                .parse()
                .unwrap();
            match left > CONFIRM {
                true => Phase::Confirmed,
                false => Phase::Transferred,
            }
        } else if self.in_queue(locks, key) {
            Phase::Queued
        } else {
            Phase::Outside
        }
    }

    /// Lets another process wait for the key, and returns when it is in the queue. Its task returns the moment of
    /// the grant.
    fn other_waits(&self, key: &str) -> JoinHandle<Instant> {
        let waits = served(self.other.clone(), key.to_owned());
        let waits = self.others.spawn(waits);
        blocking("another waiter in the queue", || {
            self.in_queue(&self.other, key)
        });
        waits
    }

    /// Returns a moment before the release.
    fn release(&self, guard: LockGuard) -> Instant {
        let now = Instant::now();
        drop(self.others.spawn(guard.release()));
        now
    }
}

/// Returns what all leases of a manager begin with.
fn name(locks: &LockManager) -> String {
    let owner = locks.new_owner().to_string();
    owner.split(':').next().unwrap().to_owned()
}

async fn served(locks: LockManager, key: String) -> Instant {
    let guard = locks.acquire(key).wait(PATIENCE).await.unwrap();
    let granted = Instant::now();
    guard.release().await.unwrap();
    granted
}

/// Blocks the thread, so that no task of its runtime runs.
fn blocking(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(MS);
    }
}

/// Polls an acquire, runs the tasks that are ready, and lets connections and the server do their part: an arrived
/// message is handled one step later.
async fn step(
    mut acquire: Pin<&mut impl Future<Output = Result<LockGuard, Error>>>,
) -> Poll<LockGuard> {
    let polled = poll!(&mut acquire);
    yield_now().await;
    thread::sleep(3 * MS);
    polled.map(Result::unwrap)
}

/// Drops an acquire after so many steps. Returns its phase, or `None` if it was complete.
///
/// The key is released three steps after the acquire has entered the queue, or after the drop. `companion`: another
/// acquire of the same process waits for the key.
async fn dropped_after(
    steps: usize,
    world: &Rivals,
    here: &LockManager,
    guard: LockGuard,
    key: &str,
    companion: bool,
) -> Option<Phase> {
    const STEPS_IN_QUEUE: usize = 3;
    let mut guard = Some(guard);
    let mut released = None;
    let mut others = Vec::new();
    let waits = || {
        let mut waits = vec![world.other_waits(key)];
        if companion {
            waits.push(tokio::spawn(served(here.clone(), key.to_owned())));
        }
        waits
    };
    let mut steps_in_queue = 0;
    let mut acquire = Box::pin(here.acquire(key).into_future());
    let mut ready = None;
    for _ in 0..steps {
        if let Poll::Ready(guard) = step(acquire.as_mut()).await {
            ready = Some(guard);
            break;
        }
        if world.in_queue(here, key) {
            steps_in_queue += 1;
            if others.is_empty() {
                others = waits();
            }
        }
        if steps_in_queue == STEPS_IN_QUEUE
            && let Some(guard) = guard.take()
        {
            released = Some(world.release(guard));
            blocking("the transfer", || world.has_body(here, key));
        }
    }
    let phase = (ready.is_none()).then(|| world.phase(here, key));
    let dropped = Instant::now();
    drop((acquire, ready));
    if others.is_empty() {
        others = waits();
    }
    if let Some(guard) = guard {
        released = Some(world.release(guard));
    }
    let since = dropped.max(released.unwrap());
    for other in others {
        let granted = timeout(PATIENCE, other).await.unwrap().unwrap();
        let waited = granted.saturating_duration_since(since);
        assert!(waited < SOON, "{key}, {phase:?}: {waited:?}");
    }
    let managers = [here, &world.other, &world.holder];
    nothing_is_left(&world.server, &managers, SECOND, (key, phase)).await;
    phase
}

fn every_step(companion: bool) {
    let world = Rivals::new();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let here = runtime.block_on(prompt_manager(world.server.url(), LEASE));
    let mut phases = BTreeSet::new();
    // One step more or less may belong to a phase.
    for sweep in 0..3 {
        for steps in 0.. {
            assert!(steps < 100, "never granted");
            let key = format!("k{sweep}:{steps}");
            let guard = world.holder.acquire(&*key).into_future();
            let guard = world.others.block_on(guard).unwrap();
            let dropped = dropped_after(steps, &world, &here, guard, &key, companion);
            match runtime.block_on(dropped) {
                Some(phase) => phases.insert(phase),
                None => break,
            };
        }
    }
    let before = phases.contains(&Phase::Outside) && phases.contains(&Phase::Queued);
    let after = phases.contains(&Phase::Transferred) || phases.contains(&Phase::Confirmed);
    assert!(before && after, "{phases:?}");
    runtime.block_on(no_subscription_is_left(&world.server));
}

#[test]
fn dropped_queued_acquire_leaves_nothing() {
    every_step(false);
}

#[test]
fn dropped_queued_acquire_serves_companion() {
    every_step(true);
}

/// A late command restores the place of a process that waits no more. While its subscription lasts, the place receives the
/// key, until the transfer expires. After that, it is passed over.
#[test]
fn restored_place_of_idle_process_delays_once() {
    const QUEUE: &str = "lock:{lock:k}%queue";
    let world = Rivals::new();
    let here = world
        .others
        .block_on(prompt_manager(world.server.url(), LEASE));
    let members = || world.server.cli(&["ZRANGE", QUEUE, "0", "-1"]);
    for subscribed in [true, false] {
        let guard = world.holder.acquire("k").into_future();
        let guard = world.others.block_on(guard).unwrap();
        let waits = here.acquire("k").wait(PATIENCE).into_future();
        let waits = world.others.spawn(waits);
        blocking("a place", || world.in_queue(&here, "k"));
        let lease = members();
        let lease = lease.lines().find(|it| it.starts_with(&name(&here)));
        let lease = lease.unwrap().to_owned();
        waits.abort();
        blocking("no place", || !world.in_queue(&here, "k"));
        let other = world.other_waits("k");
        let channel = format!("redisson_lock__channel:{{lock:k}}%{}", name(&here));
        let is_subscribed = || {
            let count = world.server.cli(&["PUBSUB", "NUMSUB", &channel]);
            count.ends_with('1')
        };
        if !subscribed {
            blocking("the end of the subscription", || !is_subscribed());
        }
        let now = world.server.cli(&["TIME"]);
        let now: i64 = now.lines().next().unwrap().parse().unwrap();
        let deadline = ((now + 3) * 1_000).to_string();
        let mark = format!("!{lease}");
        world
            .server
            .cli(&["ZADD", QUEUE, "0", &lease, &deadline, &mark]);
        // On a busy machine, the subscription may have ended by now, and the place is passed over.
        assert!(subscribed || !is_subscribed());
        let released = world.release(guard);
        let granted = world.others.block_on(other).unwrap();
        let waited = granted.saturating_duration_since(released);
        let expiry = if subscribed {
            3 * SECOND / 2
        } else {
            Duration::ZERO
        };
        assert!(waited < expiry + SOON, "{subscribed}: {waited:?}");
        let managers = [&here, &world.other, &world.holder];
        let left = nothing_is_left(&world.server, &managers, 8 * SECOND, subscribed);
        world.others.block_on(left);
    }
}

/// A waiter behind proxies, with the first place in a queue of two.
struct Front {
    world: Rivals,
    here: LockManager,
    commands: Proxy,
    messages: Proxy,
}

impl Front {
    async fn new() -> Self {
        let world = thread::spawn(Rivals::new).join().unwrap();
        let commands = Proxy::start(world.server.port()).await;
        let messages = Proxy::start(world.server.port()).await;
        let backend = RedisBackend::builder(commands.url()).notify(messages.url());
        let here = LockManager::builder(backend.connect().await.unwrap());
        Self {
            world,
            here: here.build().unwrap(),
            commands,
            messages,
        }
    }

    /// Drops an acquire after its transfer, in the state that `until` returns for. Another waiter must be served
    /// within `limit` from the return of `after`.
    async fn dropped(
        self,
        before: impl AsyncFnOnce(&Self),
        until: impl Fn(&Self) -> bool,
        after: impl AsyncFnOnce(&Self),
        limit: Duration,
    ) {
        let Self { world, here, .. } = &self;
        let guard = world.others.spawn(world.holder.acquire("k").into_future());
        let guard = guard.await.unwrap().unwrap();
        // The message of a transfer does not grant a fixed lease.
        let acquire = here.acquire("k").wait(PATIENCE).lease(LEASE);
        let acquire = tokio::spawn(acquire.into_future());
        while !world.in_queue(here, "k") {
            sleep(MS).await;
        }
        let other = world.other_waits("k");
        // The attempt after the subscription is over.
        sleep(100 * MS).await;
        before(&self).await;
        world.release(guard);
        let deadline = Instant::now() + SOON;
        while !until(&self) {
            assert!(Instant::now() < deadline, "not in that state");
            sleep(MS).await;
        }
        assert!(!acquire.is_finished());
        acquire.abort();
        assert!(acquire.await.unwrap_err().is_cancelled());
        let dropped = Instant::now();
        after(&self).await;
        let granted = timeout(PATIENCE, other).await.unwrap().unwrap();
        let waited = granted.saturating_duration_since(dropped);
        assert!(waited < limit, "{waited:?}");
        let managers = [here, &world.other, &world.holder];
        nothing_is_left(&world.server, &managers, SECOND, "the end").await;
        self.messages.cut();
        no_subscription_is_left(&world.server).await;
        // A runtime must not be dropped inside of another.
        thread::spawn(|| drop(self)).join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_before_lost_wake_message_frees_key() {
    let front = Front::new().await;
    front
        .dropped(
            async |front| front.messages.swallow(Swallow::Answers),
            |front| front.world.has_body(&front.here, "k"),
            async |front| front.messages.heal(),
            SOON,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_before_confirm_arrives_frees_key() {
    let front = Front::new().await;
    let sent = AtomicU64::new(0);
    let count = |front: &Front| front.commands.scripts();
    front
        .dropped(
            async |front| {
                sent.store(count(front), Ordering::SeqCst);
                front.commands.freeze();
            },
            |front| count(front) > sent.load(Ordering::SeqCst),
            async |front| {
                sleep(100 * MS).await;
                assert_eq!(front.world.phase(&front.here, "k"), Phase::Transferred);
                front.commands.thaw();
            },
            SOON,
        )
        .await;
}

/// The connection is replaced after the response timeout of 500 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_after_lost_confirm_reply_frees_key() {
    let front = Front::new().await;
    front
        .dropped(
            async |front| front.commands.swallow(Swallow::Answers),
            |front| front.world.phase(&front.here, "k") == Phase::Confirmed,
            async |front| front.commands.heal(),
            500 * MS + SECOND,
        )
        .await;
}
