//! A user that may no longer publish: what is logged, and how waiters attempt.

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_lock::backend::{
    AcquireRequest, Backend as _, ContendRequest, Contended, LeaseId, Release, Released,
};
use tower_lock::{LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use super::logs::{LEASE, logged};
use super::writes::patient_manager;
use crate::support::engine::{MS, PATIENCE, eventually};
use crate::support::log::Log;
use crate::support::redis_server::RedisServer;

const UNPUBLISHED: &str = "WARN releases are not published";
const PUBLISHED: &str = "INFO releases are published again";

/// A user whose permissions change, and the managers of two processes.
struct Withdrawn {
    server: RedisServer,
    locks: [LockManager; 2],
}

impl Withdrawn {
    async fn new() -> Self {
        let server = RedisServer::start();
        let rules = "ACL SETUSER some reset on >secret ~* &* +@all";
        server.cli(&rules.split(' ').collect::<Vec<_>>());
        let connect = || patient_manager(server.url_of("some", "secret"));
        let locks = [connect().await, connect().await];
        Self { server, locks }
    }

    fn allow(&self, rule: &str) {
        self.server.cli(&["ACL", "SETUSER", "some", rule]);
    }

    /// Holds the key in turns.
    async fn take_turns(&self, key: &str, turns: usize) {
        let acquires = (0..turns).map(|turn| async move {
            let guard = self.locks[turn % 2].acquire(key).wait(PATIENCE);
            let guard = guard.await.unwrap();
            sleep(2 * MS).await;
            guard.release().await.unwrap();
        });
        join_all(acquires).await;
    }
}

fn count(log: &Log, message: &str) -> usize {
    log.messages().iter().filter(|it| *it == message).count()
}

#[test]
fn denied_publish_is_logged_once_until_allowed() {
    logged(|log| async move {
        let user = Withdrawn::new().await;
        user.take_turns("k", 8).await;
        assert_eq!(log.text(), "");
        user.allow("-publish");
        for _ in 0..3 {
            user.take_turns("k", 4).await;
        }
        eventually("both processes report", || count(&log, UNPUBLISHED) == 2).await;
        assert_eq!(log.messages(), [UNPUBLISHED; 2], "{}", log.text());
        user.allow("+publish");
        eventually("both ends are reported", || count(&log, PUBLISHED) == 2).await;
        user.take_turns("k", 4).await;
        assert_eq!(log.messages().len(), 4, "{}", log.text());
    });
}

/// Without a waiter, as well.
#[test]
fn denied_channel_is_logged_at_first_release() {
    logged(|log| async move {
        let user = Withdrawn::new().await;
        user.allow("resetchannels");
        drop(user.locks[0].acquire("k").await.unwrap());
        eventually("it is reported", || log.messages() == [UNPUBLISHED]).await;
        user.allow("&*");
        let both = [UNPUBLISHED, PUBLISHED];
        eventually("its end is reported", || log.messages() == both).await;
    });
}

/// Otherwise a process would notice a transfer at its next attempt, after 0.9 s.
#[tokio::test]
async fn waiter_of_denied_publisher_polls() {
    let user = Withdrawn::new().await;
    let backend = RedisBackend::builder(user.server.url_of("some", "secret"));
    let backend = backend.connect_timeout(PATIENCE).response_timeout(PATIENCE);
    let backend = backend.connect().await.unwrap();
    let (held, free) = (LockKey::new("held"), LockKey::new("free"));
    let _guard = user.locks[0].acquire(&held).await.unwrap();
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let _hints = backend.watch(&held, lease.manager());
    let polls = async |expected| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let request = ContendRequest::new(held.clone(), lease, LEASE, true);
            match backend.contend(&request).await.unwrap() {
                Contended::Waiting { poll_after, .. } if poll_after.is_some() == expected => return,
                other => assert!(Instant::now() < deadline, "{other:?}"),
            }
            sleep(MS).await;
        }
    };
    polls(false).await;
    user.allow("-publish");
    backend
        .try_acquire(&AcquireRequest::new(free.clone(), lease, LEASE))
        .await
        .unwrap();
    let released = backend.release(&[Release::new(free, lease)]).await;
    assert_eq!(*released[0].as_ref().unwrap(), Released::Released);
    polls(true).await;
    user.allow("+publish");
    polls(false).await;
}
