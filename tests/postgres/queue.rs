//! The queue of waiters, also beside processes of version 1, which have none.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{AsyncMessage, Client, NoTls};
use tower_lock::backend::{
    AcquireRequest, Backend, Capabilities, Contended, Hint, Hints, LeaseId, Mode, Release,
    Released, Renewal,
};
use tower_lock::{LockKey, LockManager, PostgresBackend};
use uuid::Uuid;

use super::support::postgres_server::PostgresServer;
use super::{LONG, acquire, backend, is_busy, lease, release};

/// The SQL of version 1.
const OLD: &str = include_str!("version_1.sql");
const MS: Duration = Duration::from_millis(1);

async fn contend(backend: &PostgresBackend, key: &LockKey, lease: LeaseId) -> Contended {
    let request = AcquireRequest::new(key.clone(), lease, LONG).with_listening(true);
    backend.contend(&request).await.unwrap()
}

/// Enters the queue as a process that listens.
async fn waits(backend: &PostgresBackend, key: &LockKey, lease: LeaseId) -> Hints {
    let mut hints = backend.watch(key, lease.manager());
    timeout(LONG, hints.next()).await.unwrap();
    loop {
        match contend(backend, key, lease).await {
            Contended::Waiting {
                queued: Some(_),
                poll_after: None,
                ..
            } => return hints,
            // The self-test of the connection is not over.
            Contended::Waiting { .. } => sleep(10 * MS).await,
            granted => panic!("{granted:?}"),
        }
    }
}

fn is_granted(contended: Contended) -> bool {
    matches!(contended, Contended::Granted { .. })
}

async fn transferred(hints: &mut Hints, lease: LeaseId) {
    let own = Hint::transferred(lease);
    timeout(LONG, async { while hints.next().await != own {} })
        .await
        .expect("a hint of the transfer");
}

/// The suite skips what a backend does not have.
#[tokio::test]
async fn backend_has_queue_and_all_modes() {
    let server = PostgresServer::start(&[]).await;
    let [one, other] = [backend(&server).await, backend(&server).await];
    let Capabilities {
        shared, permits, ..
    } = one.capabilities();
    assert!(shared && permits);
    let (key, first, second) = (LockKey::new("all"), lease(), lease());
    assert!(is_granted(contend(&one, &key, first).await));
    let mut hints = waits(&other, &key, second).await;
    let renewal = Renewal::new(key.clone(), first, LONG);
    let downgraded = one.downgrade(&renewal).await.unwrap();
    assert!(format!("{downgraded:?}").starts_with("Shared"));
    assert_eq!(release(&one, &key, first).await, Released::Transferred);
    transferred(&mut hints, second).await;
}

/// Without a transfer, it would attempt a second later.
#[tokio::test]
async fn departure_serves_waiter_behind() {
    let server = PostgresServer::start(&[]).await;
    let [one, other] = [backend(&server).await, backend(&server).await];
    let (key, reader, writer, later) = (LockKey::new("left"), lease(), lease(), lease());
    let shared = |lease| {
        AcquireRequest::new(key.clone(), lease, LONG)
            .with_mode(Mode::Shared)
            .with_listening(true)
    };
    // The process listens.
    drop(waits_alone(&other, &LockKey::new("another")).await);
    assert!(is_granted(one.contend(&shared(reader)).await.unwrap()));
    assert!(!is_granted(contend(&one, &key, writer).await));
    let mut hints = other.watch(&key, later.manager());
    timeout(LONG, hints.next()).await.unwrap();
    assert!(!is_granted(other.contend(&shared(later)).await.unwrap()));
    let left = one.leave(&[Release::new(key.clone(), writer)]).await;
    assert_eq!(left[0].as_ref().unwrap(), &Released::NotHeld);
    transferred(&mut hints, later).await;
}

#[tokio::test]
async fn release_beside_expired_lease_transfers() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let (key, reader, writer) = (LockKey::new("expired"), lease(), lease());
    let brief = Duration::from_secs(2);
    for (reader, ttl) in [(lease(), brief), (reader, LONG)] {
        let request = AcquireRequest::new(key.clone(), reader, ttl);
        let request = request.with_mode(Mode::Shared);
        assert!(is_granted(backend.contend(&request).await.unwrap()));
    }
    sleep(brief - 500 * MS).await;
    assert!(!is_granted(contend(&backend, &key, writer).await));
    sleep(600 * MS).await;
    let outcome = release(&backend, &key, reader).await;
    assert_eq!(outcome, Released::Transferred);
}

/// Otherwise a lease or a place that its process has left would appear later.
#[tokio::test]
async fn late_contend_enters_no_queue() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let client = server.client().await;
    for is_held in [false, true] {
        let key = LockKey::new(format!("late {is_held}"));
        if is_held {
            acquire(&backend, &key, lease(), LONG).await;
        }
        let contend = "SELECT tower_lock.contend($1, 'l', 'x', NULL, 60000, true, NULL,
            extract(epoch FROM clock_timestamp())::float8 - 0.001, true, true)";
        let late = client.query(contend, &[&key.as_str()]).await.unwrap_err();
        assert_eq!(late.code().unwrap().code(), "TL002");
        assert!(is_granted(contend_after_force(&backend, &key).await));
    }
}

/// Contends once no lease holds the key.
async fn contend_after_force(backend: &PostgresBackend, key: &LockKey) -> Contended {
    backend.force_release(key, None).await.unwrap();
    contend(backend, key, lease()).await
}

/// A release beside the waiters of other keys, and of none.
#[tokio::test]
async fn batch_of_releases_serves_each_key() {
    let server = PostgresServer::start(&[]).await;
    let [one, other] = [backend(&server).await, backend(&server).await];
    let keys: Vec<_> = (0..9).map(|it| LockKey::new(format!("k{it}"))).collect();
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for (number, key) in keys.iter().enumerate() {
        let (holder, waiter) = (lease(), lease());
        acquire(&one, key, holder, LONG).await;
        held.push(Release::new(key.clone(), holder));
        if number % 3 == 0 {
            waits(&other, key, waiter).await;
            waiting.push((key, waiter));
        }
    }
    let released = one.release(&held).await;
    for (number, released) in released.into_iter().enumerate() {
        let expected = match number % 3 {
            0 => Released::Transferred,
            _ => Released::Released,
        };
        assert_eq!(released.unwrap(), expected, "{number}");
    }
    for (key, waiter) in waiting {
        assert!(is_busy(&one, key).await);
        assert!(is_granted(contend(&other, key, waiter).await));
    }
}

/// The server notices the end of its sessions.
#[tokio::test]
async fn ended_waiter_is_passed_over_at_once() {
    let server = PostgresServer::start(&[]).await;
    let [one, other, gone] = [(); 3].map(|()| backend(&server));
    let (one, other, gone) = (one.await, other.await, gone.await);
    let (key, holder, waiter) = (LockKey::new("ended"), lease(), lease());
    acquire(&one, &key, holder, LONG).await;
    drop(waits(&gone, &key, lease()).await);
    let mut hints = waits(&other, &key, waiter).await;
    let listeners = server.sessions("pg_advisory_lock_shared").await.len();
    drop(gone);
    let begun = Instant::now();
    while server.sessions("pg_advisory_lock_shared").await.len() == listeners {
        assert!(begun.elapsed() < LONG);
    }
    assert_eq!(release(&one, &key, holder).await, Released::Transferred);
    transferred(&mut hints, waiter).await;
    assert!(is_granted(contend(&other, &key, waiter).await));
}

/// The queue is empty after a crash, and the lease is not.
#[tokio::test]
async fn waiter_enters_again_after_crash() {
    let mut server = PostgresServer::start(&[]).await;
    let [one, other] = [backend(&server).await, backend(&server).await];
    let (key, holder, waiter) = (LockKey::new("crash"), lease(), lease());
    acquire(&one, &key, holder, LONG).await;
    drop(waits(&other, &key, waiter).await);
    server.crash().await;
    let request = AcquireRequest::new(key.clone(), waiter, LONG);
    let begun = Instant::now();
    let released = loop {
        assert!(begun.elapsed() < LONG);
        sleep(50 * MS).await;
        // A release passes over the place of a process that does not listen, and the place ends without attempts.
        let Ok(Contended::Waiting {
            queued,
            poll_after: None,
            ..
        }) = other.contend(&request).await
        else {
            continue;
        };
        assert_eq!(queued, Some(1));
        let leases = [Release::new(key.clone(), holder)];
        if let Ok(released) = one.release(&leases).await.remove(0) {
            break released;
        }
    };
    assert_eq!(released, Released::Transferred);
    assert!(is_granted(contend(&other, &key, waiter).await));
}

/// The waiter would attempt a second later.
#[tokio::test]
async fn end_of_fenced_transaction_serves_waiter() {
    let server = PostgresServer::start(&[]).await;
    let [one, other] =
        [backend(&server).await, backend(&server).await].map(|it| LockManager::builder(it).build());
    let (one, other) = (one.unwrap(), other.unwrap());
    let guard = one.acquire("fenced").await.unwrap();
    let waiter = tokio::spawn(async move {
        let _guard = other.acquire("fenced").wait(LONG).await.unwrap();
        Instant::now()
    });
    while one.inspect("fenced").await.unwrap().unwrap().queued == 0 {
        sleep(10 * MS).await;
    }
    sleep(200 * MS).await;
    let mut client = server.client().await;
    let transaction = client.transaction().await.unwrap();
    let (fence, keys, tokens) = guard.fence();
    transaction.execute(fence, &[&keys, &tokens]).await.unwrap();
    guard.release().await.unwrap();
    sleep(200 * MS).await;
    assert!(!waiter.is_finished(), "the transaction is open");
    transaction.commit().await.unwrap();
    let committed = Instant::now();
    let took = waiter.await.unwrap().saturating_duration_since(committed);
    assert!(took < 500 * MS, "{took:?}");
}

/// Their rows are those of exclusive leases.
#[tokio::test]
async fn fences_of_permits_run_side_by_side() {
    let server = PostgresServer::start(&[]).await;
    let locks = LockManager::builder(backend(&server).await);
    let locks = locks.build().unwrap();
    let mut guards = Vec::new();
    let mut clients = [server.client().await, server.client().await];
    let mut transactions = Vec::new();
    for client in &mut clients {
        let guard = locks.acquire("permits").permits(2).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        let (fence, keys, tokens) = guard.fence();
        let fenced = async { transaction.execute(fence, &[&keys, &tokens]).await };
        timeout(LONG, fenced).await.expect("no wait").unwrap();
        transactions.push(transaction);
        guards.push(guard);
    }
    // Each belongs to its permit.
    let (fence, keys, tokens) = guards[0].fence();
    for transaction in transactions {
        transaction.commit().await.unwrap();
    }
    guards.remove(0).release().await.unwrap();
    let client = server.client().await;
    let lost = client.execute(fence, &[&keys, &tokens]).await.unwrap_err();
    assert_eq!(lost.code().unwrap().code(), "TL001");
}

/// A server whose schema processes of version 1 created.
async fn old_server() -> PostgresServer {
    let server = PostgresServer::start(&[]).await;
    server.run(OLD).await;
    server
}

async fn is_granted_to_old(old: &Client, key: &str, lease: &str, mode: &str) -> bool {
    let acquire = "SELECT counter FROM tower_lock.acquire_one($1, $2, $3, 60000, 1e12, true, true)";
    let row = old.query_one(acquire, &[&key, &lease, &mode]).await;
    row.unwrap().get::<_, Option<i64>>(0).is_some()
}

async fn old_release(old: &Client, key: &str, lease: &str) -> bool {
    let release = "SELECT tower_lock.release_one($1, $2)";
    let row = old.query_one(release, &[&key, &lease]).await;
    row.unwrap().get(0)
}

#[tokio::test]
async fn versions_exclude_each_other_in_all_modes() {
    let server = old_server().await;
    let (old, new) = (server.client().await, backend(&server).await);
    let modes = [
        (Mode::Exclusive, None),
        (Mode::Shared, None),
        (Mode::Permit, std::num::NonZeroU16::new(9)),
    ];
    for (mode, limit) in modes {
        let key = LockKey::new(format!("{mode:?}"));
        let holder = lease();
        let request = AcquireRequest::new(key.clone(), holder, LONG);
        let request = request.with_mode(mode).with_limit(limit);
        assert!(is_granted(new.contend(&request).await.unwrap()));
        let both_shared = mode == Mode::Shared;
        assert!(!is_granted_to_old(&old, key.as_str(), "o", "x").await);
        let joined = is_granted_to_old(&old, key.as_str(), "o", "s").await;
        assert_eq!(joined, both_shared, "{mode:?}");
        release(&new, &key, holder).await;
        assert_eq!(old_release(&old, key.as_str(), "o").await, joined);
        assert!(is_granted_to_old(&old, key.as_str(), "o", "x").await);
        let waiting = new.contend(&request).await.unwrap();
        assert!(!is_granted(waiting), "{mode:?}");
        assert!(old_release(&old, key.as_str(), "o").await);
        assert!(is_granted(new.contend(&request).await.unwrap()));
    }
}

/// A process of version 1 transfers nothing.
#[tokio::test]
async fn release_of_version_1_wakes_queue() {
    let server = old_server().await;
    let (old, new) = (server.client().await, backend(&server).await);
    let (key, waiter) = (LockKey::new("woken"), lease());
    assert!(is_granted_to_old(&old, "woken", "o", "x").await);
    let mut hints = waits(&new, &key, waiter).await;
    let keep = "SELECT watchers FROM tower_lock.release_or_keep('woken', 'o', 'o', 60000, 1)";
    let row = old.query_one(keep, &[]).await.unwrap();
    assert_eq!(row.get::<_, Option<i32>>(0), Some(1), "it waits");
    timeout(LONG, hints.next()).await.unwrap();
    assert!(is_granted(contend(&new, &key, waiter).await));
}

/// Waits for a key as a process of version 1. Returns its messages.
async fn watch_of_version_1(
    server: &PostgresServer,
    key: &str,
) -> (Client, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let (client, mut connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    let (sender, messages) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = std::pin::pin!(futures_util::stream::poll_fn(move |cx| {
            connection.poll_message(cx)
        }));
        while let Some(Ok(message)) = futures_util::StreamExt::next(&mut messages).await {
            if let AsyncMessage::Notification(it) = message {
                drop(sender.send(it.payload().to_owned()));
            }
        }
    });
    let channel = format!("tower_lock_{}", Uuid::new_v4().simple());
    let listen = format!("LISTEN {channel}");
    client.batch_execute(&listen).await.unwrap();
    let watch = "SELECT tower_lock.watch($1, 'old', $2)";
    client.query(watch, &[&key, &channel]).await.unwrap();
    (client, messages)
}

#[tokio::test]
async fn waiter_of_version_1_has_turn_in_each_round() {
    let server = old_server().await;
    let [one, other] = [backend(&server).await, backend(&server).await];
    let (key, first, second) = (LockKey::new("turns"), lease(), lease());
    assert!(is_granted(contend(&one, &key, first).await));
    waits(&other, &key, second).await;
    let (old, mut messages) = watch_of_version_1(&server, "turns").await;
    for _ in 0..2 {
        assert_eq!(release(&one, &key, first).await, Released::Transferred);
        assert!(messages.try_recv().is_err(), "the queue comes first");
        assert!(is_granted(contend(&other, &key, second).await));
        assert!(!is_granted(contend(&one, &key, first).await));
        assert_eq!(release(&other, &key, second).await, Released::LeftToOthers);
        // It is the turn of version 1.
        let message = timeout(LONG, messages.recv()).await.unwrap().unwrap();
        assert_eq!(message, "r turns");
        assert!(is_granted_to_old(&old, "turns", "o", "x").await);
        assert!(!is_granted(contend(&one, &key, first).await));
        assert!(!is_granted(contend(&other, &key, second).await));
        assert!(old_release(&old, "turns", "o").await);
        assert_eq!(messages.recv().await.unwrap(), "r turns");
        assert!(is_granted(contend(&one, &key, first).await));
    }
    // Without it, the turn ends.
    assert_eq!(release(&one, &key, first).await, Released::Transferred);
    assert!(is_granted(contend(&other, &key, second).await));
    assert!(!is_granted(contend(&one, &key, first).await));
    assert_eq!(release(&other, &key, second).await, Released::LeftToOthers);
    let begun = Instant::now();
    while !is_granted(contend(&one, &key, first).await) {
        assert!(begun.elapsed() < LONG);
        sleep(5 * MS).await;
    }
}

#[tokio::test]
async fn schema_of_version_1_is_upgraded_beside_old_process() {
    let server = old_server().await;
    let old = server.client().await;
    assert!(is_granted_to_old(&old, "before", "o", "x").await);
    let new = backend(&server).await;
    assert!(is_busy(&new, &LockKey::new("before")).await);
    assert!(old_release(&old, "before", "o").await);
    // The script of the old version, by hand.
    server.run(OLD).await;
    let (key, holder) = (LockKey::new("before"), lease());
    acquire(&new, &key, holder, LONG).await;
    assert!(!is_granted_to_old(&old, "before", "o", "s").await);
    assert_eq!(release(&new, &key, holder).await, Released::Released);
}

/// A place that a release enters may have the next turn before its process subscribes.
#[tokio::test]
async fn transfer_before_subscription_is_delivered() {
    let server = PostgresServer::start(&[]).await;
    let [one, other] = [backend(&server).await, backend(&server).await];
    let (key, holder, waiter) = (LockKey::new("early"), lease(), lease());
    // The process listens, for another key.
    drop(waits_alone(&other, &LockKey::new("another")).await);
    acquire(&one, &key, holder, LONG).await;
    assert!(!is_granted(contend(&other, &key, waiter).await));
    assert_eq!(release(&one, &key, holder).await, Released::Transferred);
    sleep(200 * MS).await;
    let mut hints = other.watch(&key, waiter.manager());
    transferred(&mut hints, waiter).await;
}

/// Holds a key under another process, and waits for it.
async fn waits_alone(backend: &PostgresBackend, key: &LockKey) -> Hints {
    acquire(backend, key, lease(), LONG).await;
    waits(backend, key, lease()).await
}

/// A row that a fenced transaction locks does not hold up the sweep.
#[tokio::test]
async fn sweep_removes_abandoned_rows() {
    let server = PostgresServer::start(&[]).await;
    let backend = backend(&server).await;
    let (key, holder) = (LockKey::new("live"), lease());
    acquire(&backend, &key, holder, LONG).await;
    let _hints = waits(&backend, &key, lease()).await;
    let age = "now() - interval '2 min'";
    server
        .run(&format!(
            "INSERT INTO tower_lock.lease SELECT 'old' || n, n, n, 'l', 'x', {age} FROM generate_series(1, 10) n;
             INSERT INTO tower_lock.watcher SELECT 'old' || n, 'm', 'c', {age} FROM generate_series(1, 10) n;
             INSERT INTO tower_lock.waiter SELECT 'old' || n, 1, 'l', 'x', NULL, 'c', {age} FROM generate_series(1, 10) n"
        ))
        .await;
    let mut fenced = server.client().await;
    let fenced = fenced.transaction().await.unwrap();
    let fence = "SELECT tower_lock.fence('old7', 7 * 256)";
    fenced.query(fence, &[]).await.unwrap();
    let client = server.client().await;
    let sweep = async || {
        client
            .query("SELECT tower_lock.sweep_2()", &[])
            .await
            .unwrap()
    };
    timeout(LONG, sweep()).await.expect("no wait");
    let count = async || {
        let counts = "SELECT (SELECT count(*) FROM tower_lock.lease), (SELECT count(*) FROM tower_lock.watcher),
            (SELECT count(*) FROM tower_lock.waiter)";
        let row = client.query_one(counts, &[]).await.unwrap();
        [0, 1, 2].map(|index| row.get::<_, i64>(index))
    };
    assert_eq!(count().await, [2, 1, 1]);
    fenced.commit().await.unwrap();
    sweep().await;
    assert_eq!(count().await, [1, 1, 1]);
}

/// A turn is an attempt that enters the queue, its confirmation, and a release. Each waiter refreshes its place every second.
#[tokio::test(flavor = "multi_thread")]
async fn contended_grants_take_few_commands() {
    let settings = ["track_functions=all"];
    let server = PostgresServer::start(&settings).await;
    let mut all = Vec::new();
    for _ in 0..8 {
        let builder = LockManager::builder(backend(&server).await);
        all.push(builder.build().unwrap());
    }
    let client = server.client().await;
    let calls = async || {
        // A session reports its calls at most every second.
        sleep(1200 * MS).await;
        let calls = "SELECT coalesce(sum(calls), 0)::int8 FROM pg_stat_user_functions
            WHERE funcname IN ('acquire', 'acquire_one', 'contend', 'release_2', 'release_one_2',
                'release_or_keep_2', 'renew_2', 'watch', 'unwatch')";
        client.query_one(calls, &[]).await.unwrap().get::<_, i64>(0)
    };
    let before = calls().await;
    let begun = Instant::now();
    let grants = all.iter().map(async |locks| {
        let mut grants = 0;
        while begun.elapsed() < Duration::from_secs(3) {
            let guard = locks.acquire("herd").wait(LONG).await.unwrap();
            sleep(5 * MS).await;
            guard.release().await.unwrap();
            grants += 1;
        }
        grants
    });
    let grants: Vec<i32> = join_all(grants).await;
    // On a busy machine, a turn is so long that they are many: this allows three a second for each waiter.
    let refreshes = 3.0 * all.len() as f64 * begun.elapsed().as_secs_f64();
    let commands = calls().await - before;
    let sum: i32 = grants.iter().sum();
    let per_grant = (commands as f64 - refreshes) / f64::from(sum);
    assert!(per_grant < 5.0, "{per_grant} commands for each of {sum}");
    // On a slow machine the last round of turns is a large part of them all.
    let least = (grants.iter().min().unwrap() + 1) * 10;
    assert!(least * 8 >= sum * 7, "each has its turns: {grants:?}");
}

/// Sends commands for the key `k`. Each place is one that does not listen.
async fn commands(server: &PostgresServer, commands: &[&str]) -> Client {
    let client = server.client().await;
    for command in commands {
        client.query(*command, &[]).await.expect(command);
    }
    client
}

/// The lease that follows a released one may be in the queue before.
#[tokio::test]
async fn release_beside_place_of_next_lease_succeeds() {
    let server = PostgresServer::start(&[]).await;
    let _schema = backend(&server).await;
    let contend = |lease: &str| {
        format!(
            "SELECT tower_lock.contend('k', '{lease}', 'x', NULL, 60000, true, NULL, 1e11, true, true)"
        )
    };
    let [held, first, next] = ["held", "first", "next"].map(contend);
    let client = commands(&server, &[&held, &first, &next]).await;
    let keep = "SELECT outcome
        FROM tower_lock.release_or_keep_2('k', 'held', 'own', 60000, 1, 'next', NULL)";
    let row = client.query_one(keep, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "t");
    let places = "SELECT lease FROM tower_lock.waiter WHERE key = 'k'";
    let row = client.query_one(places, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "next");
}

/// A shared lease was granted while it had a place, and again by a transfer.
#[tokio::test]
async fn batch_returns_one_row_for_lease_with_two() {
    let server = PostgresServer::start(&[]).await;
    let _schema = backend(&server).await;
    let contend = |lease: &str, mode: &str, waits: bool| {
        format!(
            "SELECT tower_lock.contend('k', '{lease}', '{mode}', NULL, 60000, {waits}, NULL, 1e11, true, true)"
        )
    };
    let steps = [
        contend("held", "x", true),
        contend("twice", "s", true),
        "DELETE FROM tower_lock.lease WHERE lease = 'held'".to_owned(),
        contend("twice", "s", false),
        "SELECT tower_lock.pass('k', false)".to_owned(),
    ];
    let client = commands(&server, &steps.each_ref().map(String::as_str)).await;
    let rows = "SELECT count(*) FROM tower_lock.lease WHERE lease = 'twice'";
    let row = client.query_one(rows, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 2);
    let release =
        "SELECT n FROM tower_lock.release_2('{k, k}', '{twice, other}', '{f, f}') ORDER BY n";
    let rows = client.query(release, &[]).await.unwrap();
    let ordinals: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(ordinals, [1, 2]);
}
