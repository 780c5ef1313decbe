//! Futures dropped after every number of polls: nothing may be left behind.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, poll};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_lock::{Backend, LockBody, LockKey, LockLayer, LockManager};

#[path = "support/simulated.rs"]
mod simulated;

use simulated::Simulated;

const MS: Duration = Duration::from_millis(1);
const KEYS: [&str; 3] = ["a", "b", "c"];

/// Polls `future` up to `polls` times, a millisecond apart, and drops it. True if it was ready.
async fn dropped_after(polls: usize, future: impl Future) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        if poll!(&mut future).is_ready() {
            return true;
        }
        sleep(MS).await;
    }
    false
}

/// Two managers, as in two processes, over one store with a latency of 3 ms each way.
struct World {
    wire: Simulated,
    here: LockManager,
    there: LockManager,
}

impl World {
    fn new() -> Self {
        let wire = Simulated::new(3 * MS);
        let manager = |wire: Simulated| LockManager::builder(wire).build().unwrap();
        Self {
            here: manager(wire.clone()),
            there: manager(wire.another_wire()),
            wire,
        }
    }

    /// Nothing is left, long before a lease could have run out by itself.
    async fn is_clean(&self, case: &str) {
        let start = Instant::now();
        loop {
            let mut clean = self.here.snapshot().is_idle() && self.there.snapshot().is_idle();
            for key in KEYS {
                let holder = self.wire.memory.inspect(&LockKey::new(key)).await;
                clean &= holder.unwrap().is_none();
            }
            if clean {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(1),
                "{case}: left behind: {:?} {:?} {:?}",
                self.here.snapshot(),
                self.there.snapshot(),
                self.wire.memory,
            );
            sleep(MS).await;
        }
    }
}

/// Runs the scenario for every number of polls until it is ready by itself, which must happen.
macro_rules! for_every_number_of_polls {
    ($name:ident, |$world:ident, $polls:ident| $scenario:block) => {
        #[tokio::test(start_paused = true)]
        async fn $name() {
            for $polls in 0..200 {
                let $world = World::new();
                let ready: bool = $scenario;
                $world
                    .is_clean(&format!("{}, {} polls", stringify!($name), $polls))
                    .await;
                if ready {
                    assert!($polls > 1, "the scenario never waits");
                    return;
                }
            }
            panic!("never ready");
        }
    };
}

for_every_number_of_polls!(acquire_of_a_free_key, |world, polls| {
    dropped_after(polls, world.here.acquire("a").into_future()).await
});

for_every_number_of_polls!(acquire_of_a_key_held_elsewhere, |world, polls| {
    let guard = world.there.acquire("a").await.unwrap();
    let release = tokio::spawn(async move {
        sleep(20 * MS).await;
        drop(guard);
    });
    let ready = dropped_after(polls, world.here.acquire("a").into_future()).await;
    release.await.unwrap();
    ready
});

for_every_number_of_polls!(acquire_of_a_key_that_stays_busy, |world, polls| {
    let _guard = world.there.acquire("a").await.unwrap();
    dropped_after(polls, world.here.acquire("a").wait(60 * MS).into_future()).await
});

for_every_number_of_polls!(acquire_of_a_key_handed_over_here, |world, polls| {
    let guard = world.here.acquire("a").await.unwrap();
    let release = tokio::spawn(async move {
        sleep(10 * MS).await;
        drop(guard);
    });
    let ready = dropped_after(polls, world.here.acquire("a").into_future()).await;
    release.await.unwrap();
    ready
});

for_every_number_of_polls!(acquire_behind_another_waiter, |world, polls| {
    let guard = world.there.acquire("a").await.unwrap();
    let other = world.here.acquire("a");
    let other = tokio::spawn(async move { drop(other.await.unwrap()) });
    sleep(MS).await;
    let release = tokio::spawn(async move {
        sleep(15 * MS).await;
        drop(guard);
    });
    let ready = dropped_after(polls, world.here.acquire("a").into_future()).await;
    release.await.unwrap();
    // Whoever goes, the other is served.
    other.await.unwrap();
    ready
});

for_every_number_of_polls!(acquire_of_several_keys, |world, polls| {
    let guard = world.there.acquire("b").await.unwrap();
    let release = tokio::spawn(async move {
        sleep(20 * MS).await;
        drop(guard);
    });
    let ready = dropped_after(polls, world.here.acquire(KEYS).into_future()).await;
    release.await.unwrap();
    ready
});

for_every_number_of_polls!(acquire_whose_answer_is_lost, |world, polls| {
    let fault = simulated::Fault::AnswerLost;
    world.wire.fail_next(simulated::Command::Acquire, fault);
    let ready = dropped_after(polls * 20, world.here.acquire("a").into_future()).await;
    // The give-back starts when the loss of the answer is known.
    sleep(600 * MS).await;
    ready
});

for_every_number_of_polls!(release, |world, polls| {
    let guard = world.here.acquire("a").await.unwrap();
    dropped_after(polls, guard.release()).await
});

for_every_number_of_polls!(release_of_several_keys, |world, polls| {
    let guard = world.here.acquire(KEYS).await.unwrap();
    dropped_after(polls, guard.release()).await
});

for_every_number_of_polls!(run, |world, polls| {
    let work = world.here.acquire("a").run(|_| sleep(10 * MS));
    dropped_after(polls, work).await
});

/// A handler of 5 ms whose body then comes in three frames, 2 ms apart.
async fn handler(_: Request<()>) -> Result<Response<StreamBody<Frames>>, Infallible> {
    sleep(5 * MS).await;
    let frames = futures_util::stream::unfold(0, |n| async move {
        sleep(2 * MS).await;
        (n < 3).then(|| (Ok(Frame::data(Bytes::from_static(b"part"))), n + 1))
    });
    Ok(Response::new(StreamBody::new(Box::pin(frames))))
}

type Frames = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

fn request() -> Request<()> {
    Request::put("/a").body(()).unwrap()
}

fn served(
    world: &World,
) -> impl Service<Request<()>, Response = Response<LockBody<StreamBody<Frames>>>, Error = Infallible>
+ use<> {
    let keys = |_: &http::request::Parts| Ok(Some("a".into()));
    ServiceBuilder::new()
        .layer(LockLayer::new(world.here.clone(), keys))
        .service_fn(handler)
}

for_every_number_of_polls!(the_layers_future_for_a_free_key, |world, polls| {
    dropped_after(polls, served(&world).oneshot(request())).await
});

for_every_number_of_polls!(the_layers_future_for_a_busy_key, |world, polls| {
    let guard = world.there.acquire("a").await.unwrap();
    let release = tokio::spawn(async move {
        sleep(10 * MS).await;
        drop(guard);
    });
    let ready = dropped_after(polls, served(&world).oneshot(request())).await;
    release.await.unwrap();
    ready
});

for_every_number_of_polls!(the_body, |world, polls| {
    let response = served(&world).oneshot(request()).await.unwrap();
    assert_eq!(world.here.snapshot().held, 1, "the body has the lock");
    dropped_after(polls, response.into_body().collect()).await
});

for_every_number_of_polls!(shutdown, |world, polls| {
    let guard = world.here.acquire("a").await.unwrap();
    let waiter = tokio::spawn(world.here.acquire("a").into_future());
    sleep(MS).await;
    let release = tokio::spawn(async move {
        sleep(10 * MS).await;
        drop(guard);
    });
    let grace = Duration::from_secs(1);
    let ready = dropped_after(polls, world.here.shutdown(grace)).await;
    release.await.unwrap();
    let waited = waiter.await.unwrap();
    if polls > 0 {
        assert!(waited.unwrap_err().is_shutting_down());
    }
    ready
});

#[tokio::test(start_paused = true)]
async fn no_task_survives_the_last_guard() {
    let world = World::new();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let guard = world.here.acquire("a").await.unwrap();
    let waiter = tokio::spawn(world.there.acquire("a").into_future());
    sleep(Duration::from_secs(60)).await;
    waiter.abort();
    drop(guard);
    // The watchdog looks once more, at the latest when the lease would have ended.
    sleep(Duration::from_secs(30)).await;
    assert_eq!(tasks(), before);
}

#[test]
fn a_guard_may_outlive_its_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let locks = LockManager::in_memory();
    let waiter = locks.acquire("a").into_future();
    let guard = runtime.block_on(locks.acquire("a").into_future()).unwrap();
    drop(runtime);
    assert!(guard.is_held());
    drop(guard);
    // The lease was never given back; another runtime takes over where the first one died.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    assert!(runtime.block_on(waiter).unwrap().is_held());
}

#[test]
fn a_runtime_may_go_down_at_any_moment() {
    for delay in [0, 1, 2, 3, 5, 8, 13, 21] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let world = runtime.block_on(async { World::new() });
        let (here, there) = (world.here.clone(), world.there.clone());
        for locks in [here, there] {
            for key in KEYS {
                for _ in 0..4 {
                    let locks = locks.clone();
                    runtime.spawn(async move {
                        loop {
                            let guard = locks.acquire(key).await;
                            sleep(MS).await;
                            drop(guard);
                        }
                    });
                }
            }
        }
        std::thread::sleep(delay * MS);
        runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

/// Nor is any of it waited for until the grace is over, where nobody asks for the key again.
#[test]
fn a_shutdown_finishes_what_a_runtime_that_is_gone_has_left() {
    // Neither an answer nor a renewal before the runtime is gone.
    let lease = 3000 * MS;
    for on_the_wire in [true, false] {
        let wire = Simulated::new(200 * MS);
        let locks = LockManager::builder(wire.clone());
        let locks = locks.watchdog_timeout(lease).build().unwrap();
        let first = tokio::runtime::Runtime::new().unwrap();
        let guard = first.block_on(async {
            let guard = locks.acquire("a").await.unwrap();
            if !on_the_wire {
                return Some(guard);
            }
            drop(guard);
            while wire.sent(simulated::Command::Release) == 0 {
                sleep(MS).await;
            }
            None
        });
        drop(first);
        // Outside of any runtime.
        drop(guard);
        let next = tokio::runtime::Runtime::new().unwrap();
        let (since, grace) = (Instant::now(), 3 * lease);
        let left = next.block_on(locks.shutdown(grace));
        assert!(left.is_idle(), "on the wire: {on_the_wire}: {left:?}");
        assert!(since.elapsed() < grace);
        assert_eq!(wire.sent(simulated::Command::Release), 1);
    }
}

/// A manager may live longer than the runtime it was used in, as a static does among tests: no
/// command that went down with it blocks its key.
#[test]
fn what_was_on_the_wire_when_the_runtime_went_down_blocks_nobody_in_the_next() {
    #[derive(Debug, Clone, Copy)]
    enum OnTheWire {
        Acquire,
        Renewal,
        ReleaseDuringRenewal,
        Release,
        NotEvenRelease,
    }
    let lease = 2000 * MS;
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    for case in [
        OnTheWire::Acquire,
        OnTheWire::Renewal,
        OnTheWire::ReleaseDuringRenewal,
        OnTheWire::Release,
        OnTheWire::NotEvenRelease,
    ] {
        let wire = Simulated::new(20 * MS);
        let locks = LockManager::builder(wire.clone());
        let locks = locks.watchdog_timeout(lease).build().unwrap();
        let sent = |command| wire.sent(command) > 0;
        let first = runtime();
        let guard = first.block_on(async {
            let mut guard = None;
            if let OnTheWire::Acquire = case {
                drop(tokio::spawn(locks.acquire("a").into_future()));
            } else {
                guard = Some(locks.acquire("a").await.unwrap());
            }
            let command = match case {
                OnTheWire::Acquire => simulated::Command::Acquire,
                OnTheWire::Renewal | OnTheWire::ReleaseDuringRenewal => simulated::Command::Renew,
                OnTheWire::Release => {
                    guard = None;
                    simulated::Command::Release
                }
                OnTheWire::NotEvenRelease => return guard,
            };
            while !sent(command) {
                sleep(MS).await;
            }
            if let OnTheWire::ReleaseDuringRenewal = case {
                guard = None;
            }
            guard
        });
        drop(first);
        // Outside of any runtime, and long after the lease could have been handed on.
        drop(guard);
        std::thread::sleep(110 * MS);
        runtime().block_on(async {
            let once = locks.acquire("a").no_wait().await.map(drop);
            assert!(once.is_ok() || once.is_err_and(|error| error.is_busy()));
            let next = locks.acquire("a").wait(2 * lease).await;
            let next = next.unwrap_or_else(|error| panic!("{case:?}: {error}"));
            let end = Instant::now() + next.remaining();
            while Instant::now() + next.remaining() <= end + 10 * MS {
                assert!(next.is_held(), "{case:?}: not renewed");
                sleep(10 * MS).await;
            }
            next.release().await.unwrap();
            assert!(locks.snapshot().is_idle(), "{case:?}: {locks:?}");
        });
    }
}
