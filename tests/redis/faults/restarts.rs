//! Servers that restart.

use futures_util::future::{join, join_all};
use tokio::time::{Instant, timeout};
use tower_lock::ErrorKind;

use super::holder::{LONG, SHORT, acquired_again, end_of, renewed_beyond, waiter};
use crate::support::engine::{
    MS, SECOND, eventually, fails_at_its_deadline, lost_at_its_deadline, nothing_is_left,
    prompt_manager, prompt_managers, pttl, subscribers,
};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_after_empty_restart_is_lost_at_renewal() {
    let mut server = RedisServer::start();
    let locks = prompt_manager(server.url(), LONG).await;
    let first = locks.acquire("a").await.unwrap();
    let second = locks.acquire("b").await.unwrap();
    let end = end_of(&first);
    server.restart_empty();
    first.lost().await;
    second.lost().await;
    assert!(Instant::now() < end, "lost only at the deadline");
    assert!(!first.is_held() && !second.is_held());
    let next = acquired_again(&locks, "a").await;
    assert!(next.fencing_token() > first.fencing_token());
    assert!(next.fencing_token() > second.fencing_token());
    // A release by the stale holder does not affect the new lease.
    assert!(first.release().await.unwrap_err().is_lost());
    assert!(pttl(&server, "a") > 0);
    assert!(next.is_held());
    drop((next, second));
    nothing_is_left(&server, &[&locks], SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_and_waiter_survive_restart_with_data() {
    let mut server = RedisServer::start();
    let (here, there) = prompt_managers(server.url(), LONG).await;
    let guard = here.acquire("k").await.unwrap();
    let waiter = waiter(&there, "k").await;
    let end = end_of(&guard);
    server.restart_with_data();
    renewed_beyond(end, &guard).await;
    assert!(!waiter.is_finished());
    // The restored subscription serves the waiter before its backstop.
    eventually("subscribed again", || subscribers(&server, "k") == 1).await;
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    nothing_is_left(&server, &[&here, &there], SECOND, "the end").await;
}

/// Redisson #2801, #3121: `tryLock` exceeded its wait while Redis was down. Redisson #6026: pub/sub
/// was not restored after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_at_stopped_server_ends_at_deadline() {
    let mut server = RedisServer::start();
    let (here, there) = prompt_managers(server.url(), SHORT).await;
    let guard = here.acquire("k").await.unwrap();
    // This waiter is queued before the outage and stays queued until after it.
    let patient = waiter(&there, "k").await;
    let early = there.acquire("k");
    let early = tokio::spawn(async move { fails_at_its_deadline(early, 3 * SECOND).await });
    server.kill();
    let ((), late) = join(
        lost_at_its_deadline(&guard),
        fails_at_its_deadline(there.acquire("other"), 800 * MS),
    )
    .await;
    for error in [late, early.await.unwrap()] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.is_unavailable() && !error.is_busy());
    }
    let start = Instant::now();
    let once = there.acquire("other").no_wait().await.unwrap_err();
    assert_eq!(once.kind(), ErrorKind::Unavailable);
    assert!(
        start.elapsed() < 3 * SECOND,
        "no result for {:?}",
        start.elapsed()
    );
    assert!(guard.release().await.unwrap_err().is_lost());

    server.launch_again();
    let guard = acquired_again(&here, "again").await;
    let served = timeout(5 * SECOND, patient)
        .await
        .expect("the waiter is served after the outage");
    drop((guard, served.unwrap().unwrap()));
    nothing_is_left(&server, &[&here, &there], 2 * SECOND, "the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_connections_are_reopened_with_backoff() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let locks = prompt_manager(proxy.url(), SHORT).await;
    let guard = locks.acquire("k").await.unwrap();
    proxy.refuse();
    proxy.cut();
    let before = proxy.accepted();
    let start = Instant::now();
    let waits = (0..100).map(|n| locks.acquire(format!("other:{}", n % 10)).wait(3 * SECOND));
    for error in join_all(waits.map(IntoFuture::into_future)).await {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(!guard.is_held());
    // Commands and notifications each back off to one connection per second.
    let connections = proxy.accepted() - before;
    let allowed = 2 * (8 + start.elapsed().as_secs());
    assert!(
        (4..=allowed).contains(&connections),
        "{connections} in {:?}",
        start.elapsed()
    );
    proxy.heal();
    drop(acquired_again(&locks, "k").await);
    nothing_is_left(&server, &[&locks], 2 * SECOND, "the end").await;
}
