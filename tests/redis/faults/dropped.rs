//! Futures that are dropped at any moment.

use std::future::{Future, IntoFuture as _};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join;
use futures_util::poll;
use tokio::time::{Instant, sleep};
use tower_lock::LockManager;

use super::holder::LONG;
use crate::support::engine::{
    FENCE, MS, SECOND, manager, no_subscription_is_left, nothing_is_left,
};
use crate::support::redis_server::RedisServer;

/// The point at which a future is dropped.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// The number of polls, each after a wake.
    Polls(usize),
    Time(Duration),
}

/// Polls the future up to that point and returns `true` if it was ready.
async fn dropped_at(until: Until, future: impl Future) -> bool {
    let mut future = pin!(future);
    match until {
        // Timers have a resolution of 1 ms, within which most scenarios finish.
        Until::Time(time) => {
            let end = Instant::now() + time;
            loop {
                if poll!(&mut future).is_ready() {
                    return true;
                }
                if Instant::now() >= end {
                    return false;
                }
                tokio::task::yield_now().await;
            }
        }
        Until::Polls(polls) => {
            let mut left = polls;
            std::future::poll_fn(|context| {
                if left == 0 {
                    return std::task::Poll::Ready(false);
                }
                left -= 1;
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(_) => std::task::Poll::Ready(true),
                    // The last poll needs no further wake.
                    std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(false),
                    std::task::Poll::Pending => std::task::Poll::Pending,
                }
            })
            .await
        }
    }
}

struct Pair {
    here: LockManager,
    there: LockManager,
}

/// Runs the scenario for each number of polls until it completes, and for many durations.
/// After each run, all traces must be gone long before a lease expires.
macro_rules! dropped_everywhere {
    ($name:ident, $moments:literal, |$pair:ident, $until:ident| $scenario:block) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let server = RedisServer::start();
            let $pair = Pair {
                here: manager(server.url(), LONG).await,
                there: manager(server.url(), LONG).await,
            };
            let mut polls = 0;
            let mut micros = 0;
            let mut midway = 0;
            let mut ready_by_polls = false;
            while !ready_by_polls || micros < $moments {
                let $until = if ready_by_polls {
                    micros += 1 + micros / 4;
                    Until::Time(Duration::from_micros(micros))
                } else {
                    polls += 1;
                    Until::Polls(polls - 1)
                };
                let ready: bool = $scenario;
                if let Until::Polls(_) = $until {
                    ready_by_polls = ready;
                }
                midway += usize::from(!ready && !matches!($until, Until::Polls(0)));
                let managers = [&$pair.here, &$pair.there];
                nothing_is_left(&server, &managers, 2 * SECOND, $until).await;
            }
            assert!(midway > 0, "the scenario never waits");
            no_subscription_is_left(&server).await;
            assert_eq!(server.cli(&["KEYS", "*"]), FENCE);
        }
    };
}

dropped_everywhere!(
    acquire_dropped_on_free_key_leaves_nothing,
    5_000,
    |pair, until| { dropped_at(until, pair.here.acquire("a").into_future()).await }
);

dropped_everywhere!(
    acquire_dropped_on_busy_key_leaves_nothing,
    80_000,
    |pair, until| {
        let _guard = pair.there.acquire("a").await.unwrap();
        dropped_at(until, pair.here.acquire("a").wait(50 * MS).into_future()).await
    }
);

dropped_everywhere!(
    acquire_dropped_on_remote_release_leaves_nothing,
    80_000,
    |pair, until| {
        let guard = pair.there.acquire("a").await.unwrap();
        let release = async {
            sleep(5 * MS).await;
            guard.release().await.unwrap();
        };
        join(
            dropped_at(until, pair.here.acquire("a").into_future()),
            release,
        )
        .await
        .0
    }
);

dropped_everywhere!(
    acquire_dropped_on_local_handoff_leaves_nothing,
    20_000,
    |pair, until| {
        let guard = pair.here.acquire("a").await.unwrap();
        let release = async {
            sleep(2 * MS).await;
            guard.release().await.unwrap();
        };
        join(
            dropped_at(until, pair.here.acquire("a").into_future()),
            release,
        )
        .await
        .0
    }
);

dropped_everywhere!(
    acquire_dropped_on_several_keys_leaves_nothing,
    80_000,
    |pair, until| {
        let guard = pair.there.acquire("b").await.unwrap();
        let release = async {
            sleep(5 * MS).await;
            guard.release().await.unwrap();
        };
        let several = pair.here.acquire(["a", "b", "c"]);
        join(dropped_at(until, several.into_future()), release)
            .await
            .0
    }
);

/// redis-py #3847: a cancelled release lost the token, and the lock remained.
mod release {
    use super::*;

    dropped_everywhere!(dropped_leaves_nothing, 5_000, |pair, until| {
        let guard = pair.here.acquire("a").await.unwrap();
        dropped_at(until, guard.release()).await
    });

    dropped_everywhere!(
        dropped_on_several_keys_leaves_nothing,
        5_000,
        |pair, until| {
            let guard = pair.here.acquire(["a", "b", "c"]).await.unwrap();
            dropped_at(until, guard.release()).await
        }
    );
}

dropped_everywhere!(
    work_dropped_under_lock_leaves_nothing,
    20_000,
    |pair, until| {
        let work = pair.here.acquire("a").run(|_held| sleep(5 * MS));
        dropped_at(until, work).await
    }
);

dropped_everywhere!(
    shared_acquire_dropped_leaves_nothing,
    80_000,
    |pair, until| {
        let guard = pair.there.acquire("a").await.unwrap();
        let release = async {
            sleep(5 * MS).await;
            guard.release().await.unwrap();
        };
        let shared = pair.here.acquire("a").shared();
        join(dropped_at(until, shared.into_future()), release)
            .await
            .0
    }
);

dropped_everywhere!(
    acquire_dropped_beside_reader_leaves_nothing,
    5_000,
    |pair, until| {
        let reader = pair.there.acquire("a").shared().await.unwrap();
        let shared = pair.here.acquire("a").shared();
        let ready = dropped_at(until, shared.into_future()).await;
        reader.release().await.unwrap();
        ready
    }
);

dropped_everywhere!(permit_dropped_leaves_nothing, 80_000, |pair, until| {
    let guard = pair.there.acquire("a").permits(1).await.unwrap();
    let release = async {
        sleep(5 * MS).await;
        guard.release().await.unwrap();
    };
    let permit = pair.here.acquire("a").permits(1);
    join(dropped_at(until, permit.into_future()), release)
        .await
        .0
});

/// The release follows the downgrade at once.
mod downgrade {
    use super::*;

    dropped_everywhere!(dropped_leaves_nothing, 5_000, |pair, until| {
        let mut guard = pair.here.acquire("a").await.unwrap();
        dropped_at(until, guard.downgrade()).await
    });

    dropped_everywhere!(
        dropped_beside_waiting_reader_leaves_nothing,
        20_000,
        |pair, until| {
            let mut guard = pair.here.acquire("a").await.unwrap();
            let reader = tokio::spawn(pair.there.acquire("a").shared().into_future());
            while pair.there.snapshot().waiting == 0 {
                sleep(MS).await;
            }
            let ready = dropped_at(until, guard.downgrade()).await;
            drop(guard);
            let reader = reader.await.unwrap().unwrap();
            reader.release().await.unwrap();
            ready
        }
    );
}
