//! Servers that reply, and reject grants or messages.

use std::future::IntoFuture as _;
use std::num::NonZeroUsize;

use tower_lock::{ErrorKind, LockManager, RedisBackend};

use super::{GRANTED, HEARD, LEASE, REFUSED, UNHEARD, is_unavailable, logged};
use crate::support::engine::{MS, PATIENCE, SECOND, eventually, manager};
use crate::support::redis_server::RedisServer;

#[test]
fn full_memory_with_releases_is_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let locks = manager(server.url(), LEASE).await;
        let mut held = Vec::new();
        for key in ["a", "b", "c"] {
            held.push(locks.acquire(key).await.unwrap());
        }
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        for guard in held {
            is_unavailable(&locks).await;
            guard.release().await.unwrap();
        }
        is_unavailable(&locks).await;
        assert_eq!(log.messages(), [REFUSED]);
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        for _ in 0..2 {
            drop(locks.acquire("k").wait(PATIENCE).await.unwrap());
        }
        assert_eq!(log.messages(), [REFUSED, GRANTED]);
        let text = log.text();
        let cause = text.matches("'maxmemory'").count();
        assert_eq!(cause, 1, "the cause is not logged once: {text}");
    });
}

#[test]
fn permission_loss_and_recovery_are_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let allow = |rule| server.cli(&["ACL", "SETUSER", "some", rule]);
        for rule in ["on", ">secret", "~*", "&*", "+@all"] {
            allow(rule);
        }
        let locks = manager(server.url_of("some", "secret"), LEASE).await;
        allow("-hset");
        for _ in 0..3 {
            let error = locks.acquire("k").no_wait().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused);
        }
        assert_eq!(log.messages(), [REFUSED]);
        // Redis 6.2 and 7.0 do not name a command that a script may not use.
        let text = log.text();
        let named = text.matches("to run the 'hset' command").count();
        let remedy = text
            .matches("`ACL LOG` on the server names the command")
            .count();
        assert_eq!(named + remedy, 1, "{text}");
        allow("+hset");
        drop(locks.acquire("k").wait(PATIENCE).await.unwrap());
        assert_eq!(log.messages(), [REFUSED, GRANTED]);
    });
}

/// The grants of other keys do not show that this one can be acquired again.
#[test]
fn forbidden_key_beside_others_is_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let keys = "~lock:k* ~lock:self-test* ~lock:{*";
        let rules = format!("ACL SETUSER some on >secret &* +@all {keys}");
        server.cli(&rules.split(' ').collect::<Vec<_>>());
        let locks = manager(server.url_of("some", "secret"), LEASE).await;
        for n in 0..5 {
            let error = locks.acquire("forbidden").no_wait().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused);
            drop(locks.acquire(format!("k{n}")).await.unwrap());
        }
        assert_eq!(log.messages(), [REFUSED]);
        server.cli(&["ACL", "SETUSER", "some", "~*"]);
        // Ten seconds without a failure end it.
        let granted = async {
            while log.messages() != [REFUSED, GRANTED] {
                drop(locks.acquire("forbidden").wait(PATIENCE).await.unwrap());
                tokio::time::sleep(SECOND / 2).await;
            }
        };
        tokio::time::timeout(PATIENCE, granted).await.unwrap();
    });
}

/// Its waiters leave before the next attempt to subscribe.
#[test]
fn forbidden_channel_beside_others_is_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start();
        let forbidden = "redisson_lock__channel:{lock:forbidden}*";
        let rules = "ACL SETUSER some on >secret ~* +@all resetchannels \
                     &redisson_lock__channel:{lock:self-test* &redisson_lock__channel:{lock:k*";
        server.cli(&rules.split_ascii_whitespace().collect::<Vec<_>>());
        let locks = manager(server.url_of("some", "secret"), LEASE).await;
        let other = manager(server.url(), LEASE).await;
        let held = other.acquire("forbidden").await.unwrap();
        let permitted = other.acquire("k").await.unwrap();
        for _ in 0..2 {
            for key in ["forbidden", "k"] {
                let waiting = locks.acquire(key).wait(300 * MS).await;
                assert_eq!(waiting.unwrap_err().kind(), ErrorKind::Busy);
            }
            // Longer than a channel outlives its waiters, and than the backoff.
            tokio::time::sleep(3 * SECOND).await;
        }
        assert_eq!(log.messages(), [UNHEARD]);
        server.cli(&["ACL", "SETUSER", "some", &format!("&{forbidden}")]);
        let waiting = tokio::spawn(locks.acquire("forbidden").wait(PATIENCE).into_future());
        eventually("the end", || log.messages() == [UNHEARD, HEARD]).await;
        drop((held, permitted));
        drop(waiting.await.unwrap().unwrap());
    });
}

/// The backend works without the commands that this user cannot run.
#[test]
fn guide_acl_user_logs_nothing() {
    let manual = include_str!("../../../../src/guide/redis.rs").replace("//!", "");
    let (_, rules) = manual.split_once("ACL SETUSER locker ").unwrap();
    let (rules, _) = rules.split_once("```").unwrap();
    logged(|log| async move {
        let server = RedisServer::start();
        let rules: Vec<_> = rules.split_ascii_whitespace().collect();
        server.cli(&[&["ACL", "SETUSER", "locker"], &rules[..]].concat());
        let locks = manager(server.url_of("locker", "SECRET"), LEASE).await;
        let guard = locks.acquire("k").await.unwrap();
        locks.inspect("k").await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(log.text(), "");
    });
}

#[test]
fn replica_hang_and_recovery_are_logged_once() {
    logged(|log| async move {
        let server = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let port = server.port().to_string();
        let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
        eventually("a replica in sync", || {
            let replication = server.cli(&["INFO", "replication"]);
            replication.contains("state=online")
        })
        .await;
        // The replica timeout exceeds the second after which a new replica reports its offset.
        let builder = RedisBackend::builder(server.url());
        let builder = builder.min_replicas(NonZeroUsize::MIN, 2 * SECOND);
        let locks = LockManager::builder(builder.connect().await.unwrap());
        let locks = locks.build().unwrap();
        replica.stop_process();
        for _ in 0..3 {
            is_unavailable(&locks).await;
        }
        assert_eq!(log.messages(), [REFUSED]);
        replica.continue_process();
        let again = async { while locks.acquire("k").no_wait().await.is_err() {} };
        tokio::time::timeout(PATIENCE, again).await.unwrap();
        assert_eq!(log.messages(), [REFUSED, GRANTED]);
    });
}
