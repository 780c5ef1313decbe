//! Futures dropped after every possible number of polls leave no lock, waiter or task behind.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, poll};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_lock::backend::Backend;
use tower_lock::service::LockBody;
use tower_lock::{LockGuard, LockKey, LockKeys, LockLayer, LockManager, LockScope, LockScopeLayer};

use crate::support::engine::{MS, manager_on};
use crate::support::simulated::{self, Simulated};

const KEYS: [&str; 3] = ["a", "b", "c"];

/// Polls `future` up to `polls` times, 1 ms apart, and drops it. Returns `true` if it completed.
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

/// Drops a guard after a time.
fn dropped_in(time: Duration, guard: LockGuard) -> JoinHandle<()> {
    tokio::spawn(async move {
        sleep(time).await;
        drop(guard);
    })
}

/// Two managers, as in two processes, on one store with a latency of 3 ms each way.
struct Pair {
    wire: Simulated,
    here: LockManager,
    there: LockManager,
}

impl Pair {
    fn new() -> Self {
        let wire = Simulated::new(3 * MS);
        Self {
            here: manager_on(&wire),
            there: manager_on(&wire.another_wire()),
            wire,
        }
    }

    /// Completes when no lock or waiter is left, long before a lease could expire.
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

/// Runs the scenario with 0, 1, 2, … polls until its future completes, which it must.
macro_rules! for_every_number_of_polls {
    ($name:ident, |$world:ident, $polls:ident| $scenario:block) => {
        #[tokio::test(start_paused = true)]
        async fn $name() {
            for $polls in 0..200 {
                let $world = Pair::new();
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

for_every_number_of_polls!(
    dropped_acquire_of_free_key_leaves_nothing,
    |world, polls| { dropped_after(polls, world.here.acquire("a").into_future()).await }
);

for_every_number_of_polls!(
    dropped_acquire_of_remote_key_leaves_nothing,
    |world, polls| {
        let guard = world.there.acquire("a").await.unwrap();
        let release = dropped_in(20 * MS, guard);
        let ready = dropped_after(polls, world.here.acquire("a").into_future()).await;
        release.await.unwrap();
        ready
    }
);

for_every_number_of_polls!(
    dropped_acquire_of_busy_key_leaves_nothing,
    |world, polls| {
        let _guard = world.there.acquire("a").await.unwrap();
        dropped_after(polls, world.here.acquire("a").wait(60 * MS).into_future()).await
    }
);

for_every_number_of_polls!(
    dropped_acquire_at_hand_off_leaves_nothing,
    |world, polls| {
        let guard = world.here.acquire("a").await.unwrap();
        let release = dropped_in(10 * MS, guard);
        let ready = dropped_after(polls, world.here.acquire("a").into_future()).await;
        release.await.unwrap();
        ready
    }
);

for_every_number_of_polls!(
    dropped_driver_before_waiter_leaves_nothing,
    |world, polls| {
        let guard = world.there.acquire("a").await.unwrap();
        let other = world.here.acquire("a");
        let other = tokio::spawn(async move { drop(other.await.unwrap()) });
        sleep(MS).await;
        let release = dropped_in(15 * MS, guard);
        let ready = dropped_after(polls, world.here.acquire("a").into_future()).await;
        release.await.unwrap();
        // The other waiter acquires whether or not this one is dropped.
        other.await.unwrap();
        ready
    }
);

for_every_number_of_polls!(dropped_acquire_of_keys_leaves_nothing, |world, polls| {
    let guard = world.there.acquire("b").await.unwrap();
    let release = dropped_in(20 * MS, guard);
    let ready = dropped_after(polls, world.here.acquire(KEYS).into_future()).await;
    release.await.unwrap();
    ready
});

for_every_number_of_polls!(
    dropped_acquire_of_shared_key_leaves_nothing,
    |world, polls| {
        let writer = world.there.acquire("a").await.unwrap();
        let release = dropped_in(20 * MS, writer);
        let ready = dropped_after(polls, world.here.acquire("a").shared().into_future()).await;
        release.await.unwrap();
        ready
    }
);

for_every_number_of_polls!(dropped_acquire_of_permit_leaves_nothing, |world, polls| {
    let permit = world.there.acquire("a").permits(1).await.unwrap();
    let release = dropped_in(20 * MS, permit);
    let ready = dropped_after(polls, world.here.acquire("a").permits(1).into_future()).await;
    release.await.unwrap();
    ready
});

for_every_number_of_polls!(
    dropped_acquire_of_mixed_keys_leaves_nothing,
    |world, polls| {
        let guard = world.there.acquire("b").await.unwrap();
        let release = dropped_in(20 * MS, guard);
        let keys = LockKeys::new().shared("a").exclusive("b").shared("c");
        let ready = dropped_after(polls, world.here.acquire(keys).into_future()).await;
        release.await.unwrap();
        ready
    }
);

for_every_number_of_polls!(
    dropped_acquire_with_lost_reply_leaves_nothing,
    |world, polls| {
        let fault = simulated::Fault::AnswerLost;
        world.wire.fail_next(simulated::Command::Acquire, fault);
        let ready = dropped_after(polls * 20, world.here.acquire("a").into_future()).await;
        // The release starts when the loss of the reply is known.
        sleep(600 * MS).await;
        ready
    }
);

for_every_number_of_polls!(dropped_release_leaves_nothing, |world, polls| {
    let guard = world.here.acquire("a").await.unwrap();
    dropped_after(polls, guard.release()).await
});

for_every_number_of_polls!(dropped_release_of_keys_leaves_nothing, |world, polls| {
    let guard = world.here.acquire(KEYS).await.unwrap();
    dropped_after(polls, guard.release()).await
});

for_every_number_of_polls!(dropped_downgrade_leaves_nothing, |world, polls| {
    let mut guard = world.here.acquire(KEYS).await.unwrap();
    dropped_after(polls, guard.downgrade()).await
});

for_every_number_of_polls!(dropped_run_leaves_nothing, |world, polls| {
    let work = world.here.acquire("a").run(|_| sleep(10 * MS));
    dropped_after(polls, work).await
});

for_every_number_of_polls!(dropped_run_every_leaves_nothing, |world, polls| {
    let guard = world.there.acquire("a").await.unwrap();
    let release = dropped_in(20 * MS, guard);
    let shutdown = tokio::spawn({
        let here = world.here.clone();
        async move {
            sleep(90 * MS).await;
            here.shutdown(Duration::from_secs(1)).await
        }
    });
    let job = world
        .here
        .acquire("a")
        .run_every(15 * MS, |held| async move {
            sleep(4 * MS).await;
            assert!(held.is_held());
        });
    let ready = dropped_after(polls, job).await;
    release.await.unwrap();
    assert!(shutdown.await.unwrap().is_idle());
    ready
});

/// A handler that acquires by its scope while another process holds the key, after `polls` polls of the acquire.
async fn acquired_in_scope(world: &Pair, polls: usize) -> bool {
    let guard = world.there.acquire("b").await.unwrap();
    let release = dropped_in(20 * MS, guard);
    let service = ServiceBuilder::new()
        .layer(LockScopeLayer::new())
        .service_fn(async |request: Request<()>| {
            let scope = LockScope::of(request.extensions()).unwrap();
            let acquire = scope.acquire(&world.here, KEYS);
            let ready = dropped_after(polls, acquire.into_future()).await;
            assert!(
                !ready || world.here.snapshot().held == KEYS.len(),
                "the scope keeps it"
            );
            Ok::<_, Infallible>(Response::new(ready.to_string()))
        });
    let response = service.oneshot(request()).await.unwrap();
    release.await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    body == "true"
}

for_every_number_of_polls!(dropped_scope_acquire_leaves_nothing, |world, polls| {
    acquired_in_scope(&world, polls).await
});

for_every_number_of_polls!(dropped_request_in_scope_leaves_nothing, |world, polls| {
    dropped_after(polls, acquired_in_scope(&world, usize::MAX)).await
});

/// Responds after 5 ms with a body of three frames, 2 ms apart.
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
    world: &Pair,
) -> impl Service<Request<()>, Response = Response<LockBody<StreamBody<Frames>>>, Error = Infallible>
+ use<> {
    ServiceBuilder::new()
        .layer(LockLayer::by_fn(world.here.clone(), |_| LockKey::new("a")))
        .service_fn(handler)
}

for_every_number_of_polls!(
    dropped_request_for_free_key_leaves_nothing,
    |world, polls| { dropped_after(polls, served(&world).oneshot(request())).await }
);

for_every_number_of_polls!(
    dropped_request_for_busy_key_leaves_nothing,
    |world, polls| {
        let guard = world.there.acquire("a").await.unwrap();
        let release = dropped_in(10 * MS, guard);
        let ready = dropped_after(polls, served(&world).oneshot(request())).await;
        release.await.unwrap();
        ready
    }
);

for_every_number_of_polls!(dropped_body_leaves_nothing, |world, polls| {
    let response = served(&world).oneshot(request()).await.unwrap();
    assert_eq!(world.here.snapshot().held, 1, "the body holds the lock");
    dropped_after(polls, response.into_body().collect()).await
});

for_every_number_of_polls!(dropped_shutdown_leaves_nothing, |world, polls| {
    let guard = world.here.acquire("a").await.unwrap();
    let waiter = world.here.acquire("a").into_future();
    let waiter = tokio::spawn(async move { waiter.await.map(drop) });
    sleep(MS).await;
    let release = dropped_in(10 * MS, guard);
    let grace = Duration::from_secs(1);
    let ready = dropped_after(polls, world.here.shutdown(grace)).await;
    release.await.unwrap();
    let waited = waiter.await.unwrap();
    assert!(waited.is_ok(), "it is served: {waited:?}");
    if polls > 0 {
        let new = world.here.acquire("b").await;
        assert!(new.unwrap_err().is_shutting_down());
    }
    ready
});

#[tokio::test(start_paused = true)]
async fn last_guard_dropped_leaves_no_task() {
    let world = Pair::new();
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
    // The watchdog wakes once more, at the latest when the lease would have expired.
    sleep(Duration::from_secs(30)).await;
    assert_eq!(tasks(), before);
}
