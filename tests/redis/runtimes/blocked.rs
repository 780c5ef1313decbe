//! A multi-thread runtime that has the subscriptions of a backend, and all of whose threads block. It is the home of one of
//! two managers.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout};
use tower_lock::{LockManager, RedisBackend};

use crate::support::engine::{
    MS, SECOND, connected, eventually, manager_on, prompt_manager, subscribers,
};
use crate::support::other_runtime::current_thread;
use crate::support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(30);
const THREADS: usize = 2;

/// Blocks all threads of the runtime until the senders are dropped.
fn block(runtime: &Runtime) -> Vec<Sender<()>> {
    let (blocks, are_blocked) = channel();
    let over = (0..THREADS).map(|_| {
        let (over, is_over): (_, Receiver<()>) = channel();
        let blocks = blocks.clone();
        runtime.spawn(async move {
            blocks.send(()).unwrap();
            is_over.recv().unwrap_err();
        });
        over
    });
    let over: Vec<_> = over.collect();
    (0..THREADS).for_each(|_| are_blocked.recv().unwrap());
    over
}

/// Without messages, the waiters of the other manager attempt by the clock.
#[test]
fn blocked_subscriber_delays_until_next_attempt() {
    let server = RedisServer::start();
    let mut builder = Builder::new_multi_thread();
    let blocking = builder.worker_threads(THREADS).enable_all().build();
    let blocking = blocking.unwrap();
    current_thread().block_on(async {
        // Commands go over the thread of the crate.
        let backend = connected(|| RedisBackend::builder(server.url())).await;
        let home = blocking.handle().clone();
        let blocked = LockManager::builder(backend.clone()).runtime(home).build();
        let blocked = blocked.unwrap();
        let locks = manager_on(&backend);
        let there = prompt_manager(server.url(), LEASE).await;
        let first = there.acquire("first").await.unwrap();
        let guard = there.acquire("k").await.unwrap();
        let later_guard = there.acquire("later").await.unwrap();
        // The first watch of the backend, which chooses the runtime.
        let wait = blocking.spawn(blocked.acquire("first").into_future());
        eventually("first subscription", || subscribers(&server, "first") == 1).await;
        let mut waiting = Box::pin(locks.acquire("k").into_future());
        tokio::select! {
            _ = &mut waiting => panic!("granted twice"),
            () = eventually("subscribed", || subscribers(&server, "k") == 1) => {}
        }
        let over = block(&blocking);
        let released = Instant::now();
        guard.release().await.unwrap();
        // Its next attempt is up to 990 ms away.
        let granted = timeout(2 * SECOND, &mut waiting).await;
        let waited = released.elapsed();
        drop(granted.unwrap_or_else(|_| panic!("{waited:?}")).unwrap());

        // A waiter without a subscription attempts more often.
        let before = locks.snapshot().queued;
        let mut later = Box::pin(locks.acquire("later").into_future());
        tokio::select! {
            _ = &mut later => panic!("granted twice"),
            () = eventually("queued", || locks.snapshot().queued > before) => {}
        }
        assert_eq!(subscribers(&server, "later"), 0);
        let released = Instant::now();
        later_guard.release().await.unwrap();
        let granted = timeout(600 * MS, later).await;
        let waited = released.elapsed();
        drop(granted.unwrap_or_else(|_| panic!("{waited:?}")).unwrap());

        // The runtime serves its waiters again.
        drop(over);
        first.release().await.unwrap();
        let granted = timeout(2 * SECOND, wait).await.expect("in time");
        drop(granted.unwrap().unwrap());
    });
    drop(blocking);
}
