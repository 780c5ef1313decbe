//! Foreign values, full memory and missing permissions.

use futures_util::future::join_all;
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendErrorKind, ForceReleased, KeepRequest, LeaseId,
    Release, Released, Renewal, Renewed,
};
use tower_lock::{ConnectError, LockKey, RedisBackend};

use super::client::{MANAGER, TTL, connect, grant, lease, release, renew};
use crate::support::errors::debug_chain;
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn foreign_value_is_conflict_and_stays_unchanged() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    server.cli(&["SET", "lock:text", "precious"]);
    server.cli(&["SET", "lock:mortal", "precious", "EX", "100"]);
    server.cli(&["RPUSH", "lock:list", "precious"]);
    server.cli(&["HSET", "lock:hash", "field", "precious"]);
    let dump = |key: &str| server.cli(&["DUMP", key]);
    for name in ["text", "mortal", "list", "hash"] {
        let key = LockKey::new(name);
        let before = dump(&format!("lock:{name}"));
        let errors = [
            backend
                .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
                .await
                .map(drop),
            backend.inspect(&key).await.map(drop),
            backend.force_release(&key, None).await.map(drop),
        ];
        for (command, error) in errors.into_iter().enumerate() {
            let error = error.expect_err(name);
            assert_eq!(error.kind(), BackendErrorKind::Conflict, "{name} {command}");
            assert!(!error.may_have_taken_effect());
        }
        // A foreign hash does not contain the lease; any other type is a conflict.
        if name != "hash" {
            let outcomes = [
                renew(&backend, name).await.map(drop),
                release(&backend, name).await.map(drop),
                backend
                    .release_or_keep(&[KeepRequest::new(key.clone(), lease(), TTL)])
                    .await
                    .remove(0)
                    .map(drop),
            ];
            for error in outcomes.map(Result::unwrap_err) {
                assert_eq!(error.kind(), BackendErrorKind::Conflict);
            }
        }
        assert_eq!(dump(&format!("lock:{name}")), before, "{name} was changed");
    }
}

#[tokio::test]
async fn conflict_in_batch_affects_only_its_key() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    server.cli(&["SET", "lock:text", "precious"]);
    grant(&backend, "a").await;
    grant(&backend, "b").await;
    let renewals = ["a", "text", "b"].map(|key| Renewal::new(LockKey::new(key), lease(), TTL));
    let answers = backend.renew(&renewals).await;
    assert_eq!(*answers[0].as_ref().unwrap(), Renewed::Renewed);
    let error = answers[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Conflict);
    assert_eq!(*answers[2].as_ref().unwrap(), Renewed::Renewed);
    let releases = ["a", "text", "b"].map(|key| Release::new(LockKey::new(key), lease()));
    let answers = backend.release(&releases).await;
    for (key, answer) in releases.iter().zip(answers) {
        match key.key.as_str() {
            "text" => assert_eq!(answer.unwrap_err().kind(), BackendErrorKind::Conflict),
            _ => assert_eq!(answer.unwrap(), Released::Released),
        }
    }
}

/// Two managers can share a backend.
#[tokio::test]
async fn one_key_twice_in_call_has_one_holder() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    // The first one is sent alone, and most others in shared calls.
    let acquires: Vec<_> = (0..100)
        .map(|number| {
            let (key, lease) = (format!("k{}", number / 2), LeaseId::new(MANAGER, number));
            AcquireRequest::new(LockKey::new(key), lease, TTL)
        })
        .collect();
    let outcomes = join_all(acquires.iter().map(|it| backend.try_acquire(it))).await;
    let granted = |outcome: &_| matches!(outcome, Ok(Acquired::Granted { .. }));
    for (key, pair) in outcomes.chunks(2).enumerate() {
        assert!(granted(&pair[0]) != granted(&pair[1]), "k{key}: {pair:?}");
        assert_eq!(server.cli(&["HLEN", &format!("lock:k{key}")]), "1");
    }
}

#[tokio::test]
async fn full_memory_rejects_only_acquires() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let backend = connect(&server).await;
    grant(&backend, "held").await;
    grant(&backend, "passed").await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);

    let key = LockKey::new("new");
    let error = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(!error.may_have_taken_effect(), "{}", debug_chain(&error));
    assert_eq!(server.cli(&["EXISTS", "lock:new"]), "0");

    server.cli(&["PEXPIRE", "lock:held", "10000"]);
    assert_eq!(renew(&backend, "held").await.unwrap(), Renewed::Renewed);
    let left: u64 = server.cli(&["PTTL", "lock:held"]).parse().unwrap();
    assert!(left > 20_000, "renewed: {left}");
    assert_eq!(release(&backend, "held").await.unwrap(), Released::Released);
    assert_eq!(server.cli(&["EXISTS", "lock:held"]), "0");
    let forced = backend.force_release(&LockKey::new("passed"), None).await;
    assert_eq!(forced.unwrap(), ForceReleased::Released);
}

#[tokio::test]
async fn unsuitable_server_is_reported_in_warnings() {
    let server = RedisServer::start();
    assert_eq!(connect(&server).await.warnings(), [""; 0]);
    let warned_of = async |what: &str| {
        let backend = connect(&server).await;
        let warnings = backend.warnings();
        assert!(
            warnings.iter().any(|warning| warning.contains(what)),
            "{what} is not in {warnings:?}"
        );
    };
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    warned_of("allkeys-lru").await;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    warned_of("cannot grant locks now").await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    warned_of("is a replica").await;
}

#[tokio::test]
async fn unauthorized_client_is_rejected_on_connect() {
    let server = RedisServer::start();
    let refused = async |url: String| {
        let outcome = RedisBackend::builder(url).connect().await;
        let error = outcome.expect_err("the client is unauthorized");
        assert!(
            matches!(&error, ConnectError::Refused { address, .. }
                if *address == format!("127.0.0.1:{}", server.port())),
            "{}",
            debug_chain(&error)
        );
        debug_chain(&error)
    };
    // This user can only log in.
    server.cli(&["ACL", "SETUSER", "guest", "reset", "on", ">secret"]);
    refused(server.url_of("guest", "secret")).await;
    // This user can run everything except one command inside the scripts.
    let all = [
        "ACL", "SETUSER", "most", "reset", "on", ">secret", "~*", "&*", "+@all",
    ];
    server.cli(&[&all[..], &["-pexpire"]].concat());
    let said = refused(server.url_of("most", "secret")).await;
    assert!(
        [
            "The user executing the script can't",
            "ACL failure in script"
        ]
        .iter()
        .any(|it| said.contains(it)),
        "{said}"
    );
    let bodies = server.cli(&["KEYS", "lock:self-test*"]);
    assert_eq!(bodies, "", "a self-test key without a TTL was deleted");
    // This user cannot subscribe.
    server.cli(&[&all[..], &["-subscribe"]].concat());
    refused(server.url_of("most", "secret")).await;
    // The password is wrong, and then missing.
    refused(server.url_of("most", "wrong")).await;
    server.cli(&["CONFIG", "SET", "requirepass", "secret"]);
    refused(server.url()).await;
}

#[tokio::test]
async fn revoked_permission_is_misconfigured() {
    let server = RedisServer::start();
    let all = [
        "ACL", "SETUSER", "some", "reset", "on", ">secret", "~*", "&*", "+@all",
    ];
    server.cli(&all);
    let url = server.url_of("some", "secret");
    let backend = RedisBackend::builder(url).connect().await.unwrap();
    server.cli(&["ACL", "SETUSER", "some", "-hset"]);
    let key = LockKey::new("a");
    let error = backend
        .try_acquire(&AcquireRequest::new(key.clone(), lease(), TTL))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    server.cli(&["ACL", "SETUSER", "some", "-evalsha"]);
    let error = renew(&backend, "a").await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
}

#[tokio::test]
async fn inspect_without_hgetall_omits_holder_id() {
    let server = RedisServer::start();
    let rules = "ACL SETUSER some reset on >secret ~* &* +@all -hgetall";
    server.cli(&rules.split(' ').collect::<Vec<_>>());
    let url = server.url_of("some", "secret");
    let backend = RedisBackend::builder(url).connect().await.unwrap();
    grant(&backend, "a").await;
    let holder = backend.inspect(&LockKey::new("a")).await.unwrap().unwrap();
    assert_eq!((holder.id.as_str(), holder.hold_count), ("", 1));
}
