//! Grants that require acknowledgements from replicas.
// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::num::NonZeroUsize;
use std::time::Duration;

use deadpool_redis::{Manager, Pool};
use futures_util::future::{join, join_all};
use futures_util::poll;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend as _, BackendError, BackendErrorKind, ContendRequest,
    Contended, LeaseId, Release, Released, Renewal, Renewed, conformance,
};
use tower_lock::{ConnectError, ErrorKind, LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use support::cluster::Cluster;
use support::engine::{FENCE, MS, Monitor, PATIENCE, SECOND, eventually};
use support::errors::chain;
use support::patience::wait_until;
use support::proxy::{Proxy, Swallow};
use support::redis_server::RedisServer;
use support::sentinel::SentinelSet;

const TTL: Duration = Duration::from_secs(30);
/// The number of acquires that may wait for replicas concurrently.
const LENT: usize = 32;

/// A primary and two replicas in sync.
struct Trio {
    primary: RedisServer,
    replicas: Vec<RedisServer>,
}

impl Trio {
    fn start() -> Self {
        // By default, the primary waits five seconds for more replicas before it sends its data.
        let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let port = primary.port().to_string();
        let replica = || RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
        let replicas = vec![replica(), replica()];
        wait_until(
            "replicas in sync",
            || primary.log(),
            || online(&primary) == 2 && replicas.iter().all(is_up),
        );
        Self { primary, replicas }
    }

    /// Uses long timeouts for a busy machine, except for the wait for replicas.
    fn builder(&self, replicas: usize, timeout: Duration) -> RedisBackendBuilder {
        self.builder_at(self.primary.url(), replicas, timeout)
    }

    fn builder_at(&self, url: String, replicas: usize, timeout: Duration) -> RedisBackendBuilder {
        RedisBackend::builder(url)
            .connect_timeout(PATIENCE)
            .response_timeout(PATIENCE)
            .min_replicas(NonZeroUsize::new(replicas).unwrap(), timeout)
    }

    /// Connects a backend that requires both replicas.
    async fn backend(&self, timeout: Duration) -> RedisBackend {
        connected(|| self.builder(2, timeout)).await
    }

    fn stop_replicas(&self) {
        self.replicas.iter().for_each(RedisServer::stop_process);
    }

    fn continue_replicas(&self) {
        self.replicas.iter().for_each(RedisServer::continue_process);
    }

    fn has(&self, key: &str) -> bool {
        exists(&self.primary, key)
    }
}

/// Retries to connect: on a busy machine the replicas may be late at first.
async fn connected(builder: impl Fn() -> RedisBackendBuilder) -> RedisBackend {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match builder().connect().await {
            Ok(backend) => return backend,
            Err(error) => assert!(Instant::now() < deadline, "{}", chain(&error)),
        }
    }
}

fn online(primary: &RedisServer) -> usize {
    let replication = primary.cli(&["INFO", "replication"]);
    replication.matches("state=online").count()
}

/// Returns `true` if the replica has loaded the data of its primary.
fn is_up(replica: &RedisServer) -> bool {
    let replication = replica.cli(&["INFO", "replication"]);
    replication.contains("master_link_status:up")
}

fn exists(server: &RedisServer, key: &str) -> bool {
    server.cli(&["EXISTS", &format!("lock:{key}")]) == "1"
}

fn lease(number: u64) -> LeaseId {
    LeaseId::new(Uuid::from_u128(7), number)
}

async fn acquire(backend: &RedisBackend, key: &str) -> Result<Acquired, BackendError> {
    backend
        .try_acquire(&AcquireRequest::new(LockKey::new(key), lease(1), TTL))
        .await
}

/// Acquires the key and returns the counter of the grant.
async fn grant(backend: &RedisBackend, key: &str) -> u64 {
    match acquire(backend, key).await.unwrap() {
        Acquired::Granted { counter, .. } => counter,
        other => panic!("{key}: {other:?}"),
    }
}

async fn release(backend: &RedisBackend, key: &str) -> Released {
    let outcome = backend
        .release(&[Release::new(LockKey::new(key), lease(1))])
        .await;
    outcome.into_iter().next().unwrap().unwrap()
}

async fn renew(backend: &RedisBackend, key: &str) -> Renewed {
    let renewal = Renewal::new(LockKey::new(key), lease(1), TTL);
    let outcome = backend.renew(&[renewal]).await;
    outcome.into_iter().next().unwrap().unwrap()
}

/// Checks that too few replicas acknowledged the grant, and that the backend released it.
fn is_short(error: &BackendError, acknowledged: &str) {
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(!error.may_have_taken_effect(), "{}", chain(error));
    let said = format!("{acknowledged} replicas acknowledged the grant");
    assert!(chain(error).contains(&said), "{}", chain(error));
}

/// Returns `total_connections_received`.
fn connections(server: &RedisServer) -> usize {
    let stats = server.cli(&["INFO", "stats"]);
    let prefix = "total_connections_received:";
    let count = stats.lines().find_map(|line| line.strip_prefix(prefix));
    count.unwrap().trim().parse().unwrap()
}

// ---- grants ----

#[tokio::test]
async fn grant_reply_follows_replication() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    let mut last = 0;
    for n in 0..50 {
        let key = format!("key {n}");
        let counter = grant(&backend, &key).await;
        let encoded = LockKey::new(&key);
        for replica in &trio.replicas {
            assert!(exists(replica, encoded.as_str()), "{key}");
        }
        assert!(counter > last);
        last = counter;
    }
}

#[tokio::test]
async fn renew_release_and_inspect_skip_replica_wait() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    grant(&backend, "k").await;
    let before = trio.primary.calls("wait");
    assert_eq!(renew(&backend, "k").await, Renewed::Renewed);
    assert_eq!(release(&backend, "k").await, Released::Released);
    let holder = backend.inspect(&LockKey::new("k")).await.unwrap();
    assert_eq!(holder, None);
    assert_eq!(trio.primary.calls("wait"), before);
}

#[tokio::test]
async fn redis_with_replicas_passes_conformance() {
    let trio = Trio::start();
    let (one, other) = (trio.backend(PATIENCE).await, trio.backend(PATIENCE).await);
    conformance::all(&one, &other).await;
}

#[tokio::test]
async fn flushed_script_is_reloaded() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    for _ in 0..3 {
        trio.primary.cli(&["SCRIPT", "FLUSH"]);
        grant(&backend, "k").await;
        release(&backend, "k").await;
    }
    // The server has the script again from here on.
    let before = trio.primary.calls("eval");
    grant(&backend, "k").await;
    assert_eq!(trio.primary.calls("eval"), before);
}

// ---- too few ----

#[tokio::test]
async fn grant_with_too_few_replicas_is_released() {
    let trio = Trio::start();
    let backend = trio.backend(SECOND).await;
    trio.replicas[0].stop_process();
    let start = Instant::now();
    is_short(&acquire(&backend, "k").await.unwrap_err(), "1 of 2");
    assert!(start.elapsed() >= SECOND, "did not wait");
    assert!(!trio.has("k"), "kept");
    trio.replicas[1].stop_process();
    // The backoff after the first one.
    sleep(SECOND).await;
    is_short(&acquire(&backend, "k").await.unwrap_err(), "0 of 2");
    assert!(!trio.has("k"), "kept");
    assert_eq!(trio.primary.cli(&["KEYS", "*"]), FENCE);
}

#[tokio::test]
async fn replica_wait_does_not_block_shared_connection() {
    let trio = Trio::start();
    let backend = trio.backend(SECOND).await;
    grant(&backend, "held").await;
    trio.stop_replicas();
    let mut acquiring = std::pin::pin!(acquire(&backend, "k"));
    let mut renewals = 0;
    let mut slowest = Duration::ZERO;
    let error = loop {
        let start = Instant::now();
        // Both run concurrently: behind `WAIT`, only one renewal would complete.
        tokio::select! {
            biased;
            outcome = &mut acquiring => break outcome.unwrap_err(),
            renewed = renew(&backend, "held") => assert_eq!(renewed, Renewed::Renewed),
        }
        renewals += 1;
        slowest = slowest.max(start.elapsed());
        let other = backend.inspect(&LockKey::new("other")).await.unwrap();
        assert_eq!(other, None);
        sleep(MS).await;
    };
    is_short(&error, "0 of 2");
    assert!(renewals >= 20, "{renewals} renewals within a second");
    assert!(slowest < 500 * MS, "a renewal took {slowest:?}");
    assert_eq!(release(&backend, "held").await, Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_finds_recovered_replicas_within_wait() {
    let trio = Trio::start();
    let backend = trio.backend(100 * MS).await;
    let locks = LockManager::builder(backend).build().unwrap();
    let guard = locks.acquire("k").wait(PATIENCE).await.unwrap();
    guard.release().await.unwrap();
    trio.stop_replicas();
    let error = locks.acquire("k").wait(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        chain(&error).contains("0 of 2 replicas"),
        "{}",
        chain(&error)
    );
    let patient = tokio::spawn(locks.acquire("k").wait(PATIENCE).into_future());
    sleep(500 * MS).await;
    assert!(!patient.is_finished());
    trio.continue_replicas();
    let back = Instant::now();
    let guard = patient.await.unwrap().unwrap();
    // The longest backoff of a waiter, plus time for a busy machine.
    assert!(back.elapsed() < 5 * SECOND, "{:?}", back.elapsed());
    assert!(trio.replicas.iter().all(|replica| exists(replica, "k")));
    guard.release().await.unwrap();
}

/// The release of a short grant notifies all waiters, and each notification causes an attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_without_replicas_back_off() {
    let trio = Trio::start();
    let backends = [trio.backend(20 * MS).await, trio.backend(20 * MS).await];
    trio.stop_replicas();
    let managers = backends.map(|backend| LockManager::builder(backend).build().unwrap());
    let before = trio.primary.calls("wait");
    let start = Instant::now();
    let keys = (0..100).flat_map(|n| managers.iter().map(move |locks| (locks, n % 10)));
    let waits = keys.map(|(locks, n)| locks.acquire(format!("key {n}")).wait(3 * SECOND));
    for error in join_all(waits.map(IntoFuture::into_future)).await {
        // An acquire is busy if another attempt held the key at that moment.
        let kind = error.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Busy));
    }
    // After each backoff, attempts start until the first of them fails.
    let tries = trio.primary.calls("wait") - before;
    let steps = 5 + u64::try_from(start.elapsed().as_millis()).unwrap() / 300;
    assert!((4..=2 * 10 * steps).contains(&tries), "{tries} tries");
}

#[tokio::test]
async fn busy_key_skips_replica_wait() {
    let mut trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    grant(&backend, "k").await;
    trio.replicas.iter_mut().for_each(RedisServer::kill);
    eventually("replicas are gone", || online(&trio.primary) == 0).await;
    let stranger = LeaseId::new(Uuid::new_v4(), 1);
    for _ in 0..3 {
        let start = Instant::now();
        let outcome = backend
            .try_acquire(&AcquireRequest::new(LockKey::new("k"), stranger, TTL))
            .await;
        assert!(matches!(outcome, Ok(Acquired::Busy { .. })), "{outcome:?}");
        assert!(start.elapsed() < PATIENCE / 2, "waited for replicas");
    }
}

#[tokio::test]
async fn earlier_grant_survives_retry_without_replicas() {
    let trio = Trio::start();
    let backend = trio.backend(SECOND).await;
    let first = grant(&backend, "k").await;
    let second = grant(&backend, "k").await;
    assert!(second > first);
    assert_eq!(trio.primary.cli(&["HVALS", "lock:k"]), "1");
    trio.stop_replicas();
    let error = acquire(&backend, "k").await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(error.may_have_taken_effect(), "it holds the key");
    assert!(chain(&error).contains("0 of 2"), "{}", chain(&error));
    assert_eq!(renew(&backend, "k").await, Renewed::Renewed);
    assert_eq!(release(&backend, "k").await, Released::Released);
}

// ---- lost and late replies ----

/// Pauses all writes on the server until `CLIENT UNPAUSE`.
fn pause(server: &RedisServer) {
    server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]);
}

/// Waits until the server has blocked a call of the acquire script.
async fn acquire_is_held_up(server: &RedisServer) {
    eventually("the acquire is blocked", || {
        let clients = server.cli(&["INFO", "clients"]);
        clients.contains("blocked_clients:1")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_with_lost_reply_leaves_no_key() {
    let trio = Trio::start();
    let proxy = Proxy::start(trio.primary.port()).await;
    let builder = || trio.builder_at(proxy.url(), 2, 100 * MS);
    let backend = connected(|| builder().response_timeout(SECOND)).await;
    pause(&trio.primary);
    let unknown = join(acquire(&backend, "k"), async {
        acquire_is_held_up(&trio.primary).await;
        proxy.swallow(Swallow::Answers);
        trio.primary.cli(&["CLIENT", "UNPAUSE"]);
        eventually("granted", || trio.has("k")).await;
    });
    let error = unknown.await.0.unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", chain(&error));
    // Only the backend can release this lease: the caller has no guard.
    eventually("released", || !trio.has("k")).await;
    proxy.heal();
    grant_again(&backend, "k").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_acquire_leaves_no_key() {
    let trio = Trio::start();
    let builder = || trio.builder(2, 100 * MS).response_timeout(300 * MS);
    let backend = connected(builder).await;
    let granted = |n: u64| trio.primary.calls("hset") > n;
    let before = trio.primary.calls("hset");
    pause(&trio.primary);
    let error = acquire(&backend, "k").await.unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", chain(&error));
    trio.primary.cli(&["CLIENT", "UNPAUSE"]);
    eventually("granted and released", || granted(before) && !trio.has("k")).await;
    grant_again(&backend, "k").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replica_count_leaves_no_key() {
    let trio = Trio::start();
    let proxy = Proxy::start(trio.primary.port()).await;
    let builder = || trio.builder_at(proxy.url(), 2, 500 * MS);
    let backend = connected(|| builder().response_timeout(500 * MS)).await;
    trio.stop_replicas();
    let unknown = join(acquire(&backend, "k"), async {
        eventually("granted", || trio.has("k")).await;
        // The reply to the grant has arrived, and the replica count is outstanding.
        sleep(100 * MS).await;
        proxy.swallow(Swallow::Answers);
    });
    let error = unknown.await.0.unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", chain(&error));
    eventually("released", || !trio.has("k")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_in_replica_wait_leaves_no_key() {
    let trio = Trio::start();
    let proxy = Proxy::start(trio.primary.port()).await;
    let backend = trio.builder_at(proxy.url(), 2, 10 * SECOND).connect().await;
    let locks = LockManager::builder(backend.unwrap()).build().unwrap();
    trio.stop_replicas();
    let unknown = join(locks.acquire("k").no_wait().into_future(), async {
        eventually("granted", || trio.has("k")).await;
        proxy.cut();
    });
    let error = unknown.await.0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    eventually("released", || !trio.has("k")).await;
    trio.continue_replicas();
    let guard = locks.acquire("k").wait(PATIENCE).await.unwrap();
    guard.release().await.unwrap();
}

/// A command that the server has read but not executed must not run after its own undo.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_after_disconnect_uses_new_connection() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    // Returns the address of the client that sent the last command for the key.
    let monitor = Monitor::start(&trio.primary);
    let sender = async || {
        let lines = monitor.lines_until_now(&trio.primary).await;
        let last = lines.into_iter().rfind(|line| line.contains("lock:k"));
        last.unwrap().split([' ', ']']).nth(2).unwrap().to_owned()
    };
    assert_eq!(backend.inspect(&LockKey::new("k")).await.unwrap(), None);
    let shared = sender().await;
    trio.stop_replicas();
    let broken = join(acquire(&backend, "k"), async {
        let waits = |line: &String| line.contains(" flags=b ");
        let waiting = || trio.primary.clients("normal").into_iter().find(waits);
        eventually("it waits for replicas", || waiting().is_some()).await;
        let waiting = waiting().unwrap();
        let id = waiting
            .strip_prefix("id=")
            .and_then(|line| line.split(' ').next());
        trio.primary.cli(&["CLIENT", "KILL", "ID", id.unwrap()]);
    });
    let error = broken.await.0.unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", chain(&error));
    let acquirer = sender().await;
    assert_eq!(release(&backend, "k").await, Released::Released);
    let releaser = sender().await;
    assert_ne!(acquirer, shared);
    assert!(releaser != shared && releaser != acquirer, "{releaser}");
}

/// Acquires the key, with retries until the fault is over.
async fn grant_again(backend: &RedisBackend, key: &str) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match acquire(backend, key).await {
            Ok(Acquired::Granted { counter, .. }) => return counter,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        sleep(50 * MS).await;
    }
}

#[test]
fn runtime_shutdown_in_replica_wait_expires_leases() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().unwrap()
    };
    let trio = Trio::start();
    let first = runtime();
    let backend = first.block_on(trio.backend(PATIENCE));
    trio.stop_replicas();
    let waits = (0..50).map(|n| {
        let backend = backend.clone();
        let key = LockKey::new(format!("key {n}"));
        first.spawn(async move {
            backend
                .try_acquire(&AcquireRequest::new(key.clone(), lease(1), 2 * SECOND))
                .await
        })
    });
    let waits: Vec<_> = waits.collect();
    first.block_on(eventually("granted", || {
        let granted = |n| exists(&trio.primary, LockKey::new(format!("key {n}")).as_str());
        (0..50).filter(|n| granted(*n)).count() == LENT
    }));
    let start = Instant::now();
    drop(first);
    assert!(start.elapsed() < 5 * SECOND, "slow shutdown");
    drop(waits);
    trio.continue_replicas();
    // The backend must work on another runtime.
    runtime().block_on(async {
        eventually("over", || trio.primary.cli(&["KEYS", "*"]) == FENCE).await;
        grant_again(&backend, "k").await;
    });
}

// ---- connections ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_grants_share_bounded_connections() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    let before = connections(&trio.primary);
    let keys: Vec<_> = (0..500).map(|n| format!("key {n}")).collect();
    join_all(keys.iter().map(|key| grant(&backend, key))).await;
    let opened = connections(&trio.primary) - before;
    assert!((2..=LENT).contains(&opened), "{opened} connections");
    join_all(keys.iter().map(|key| release(&backend, key))).await;
    // The pool reuses its connections.
    join_all(keys.iter().map(|key| grant(&backend, key))).await;
    let opened = connections(&trio.primary) - before;
    assert!((2..=LENT).contains(&opened), "{opened} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exhausted_pool_allows_renewal_and_release() {
    let trio = Trio::start();
    let backend = trio.backend(SECOND).await;
    grant(&backend, "held").await;
    trio.stop_replicas();
    let crowd: Vec<_> = (0..4 * LENT).map(|n| format!("key {n}")).collect();
    let crowd = join_all(crowd.iter().map(|key| acquire(&backend, key)));
    let mut crowd = std::pin::pin!(crowd);
    assert!(poll!(&mut crowd).is_pending());
    let held = async {
        eventually("all are taken", || {
            let clients = trio.primary.cli(&["INFO", "clients"]);
            clients.contains(&format!("blocked_clients:{LENT}"))
        })
        .await;
        let start = Instant::now();
        assert_eq!(renew(&backend, "held").await, Renewed::Renewed);
        assert_eq!(release(&backend, "held").await, Released::Released);
        assert!(start.elapsed() < 900 * MS, "behind the acquires");
    };
    let (outcomes, ()) = join(crowd, held).await;
    for outcome in outcomes {
        // The first reply fails the queued acquires without attempts of their own.
        is_short(&outcome.unwrap_err(), "0 of 2");
    }
    assert_eq!(trio.primary.cli(&["KEYS", "*"]), FENCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_pool_keeps_one_connection_free() {
    let trio = Trio::start();
    // Long timeouts keep a busy machine from failing the test.
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE));
    let config = config.set_response_timeout(Some(PATIENCE));
    let manager = Manager::new_with_config(trio.primary.url(), config).unwrap();
    let pool = Pool::builder(manager).max_size(4).build().unwrap();
    let two = NonZeroUsize::new(2).unwrap();
    let builder = || {
        let builder = RedisBackend::from_pool(pool.clone()).min_replicas(two, SECOND);
        builder.connect_timeout(PATIENCE).response_timeout(PATIENCE)
    };
    let backend = connected(builder).await;
    let before = connections(&trio.primary);
    let keys: Vec<_> = (0..100).map(|n| format!("key {n}")).collect();
    join_all(keys.iter().map(|key| grant(&backend, key))).await;
    assert!(connections(&trio.primary) - before <= 3, "pool used up");
    // While its connections are in use, the pool can still lend one.
    trio.stop_replicas();
    let mut waiting = std::pin::pin!(join_all(
        ["a", "b", "c", "d"].map(|key| acquire(&backend, key))
    ));
    assert!(poll!(&mut waiting).is_pending());
    let another = async {
        eventually("all are taken", || {
            let clients = trio.primary.cli(&["INFO", "clients"]);
            clients.contains("blocked_clients:3")
        })
        .await;
        timeout(900 * MS, pool.get()).await.expect("room").unwrap();
    };
    let (outcomes, ()) = join(waiting, another).await;
    assert!(outcomes.iter().all(Result::is_err));
}

// ---- connecting ----

#[tokio::test]
async fn connect_without_enough_replicas_is_rejected() {
    let server = RedisServer::start();
    let one = NonZeroUsize::MIN;
    let builder = RedisBackend::builder(server.url()).min_replicas(one, 100 * MS);
    let builder = builder.connect_timeout(PATIENCE).response_timeout(PATIENCE);
    let error = builder.connect().await.unwrap_err();
    let ConnectError::Config(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.field(), "min_replicas");
    let said = format!(
        "0 of 1 replicas of the server {} acknowledged a grant",
        server.address()
    );
    assert!(error.to_string().contains(&said), "{error}");
    assert_eq!(server.cli(&["KEYS", "*"]), FENCE, "keys are left");
    eventually("no connection is left", || {
        server.clients("normal").is_empty() && server.clients("pubsub").is_empty()
    })
    .await;

    let trio = Trio::start();
    let error = trio.builder(3, 3 * SECOND).connect().await.unwrap_err();
    assert!(
        chain(&error).contains("2 of 3 replicas"),
        "{}",
        chain(&error)
    );
    let error = error_of(trio.builder(257, SECOND)).await;
    assert!(error.contains("more than 256"), "{error}");
    let error = error_of(trio.builder(1, Duration::ZERO)).await;
    assert!(error.contains("not within"), "{error}");
}

async fn error_of(builder: RedisBackendBuilder) -> String {
    match builder.connect().await.unwrap_err() {
        ConnectError::Config(error) if error.field() == "min_replicas" => error.to_string(),
        error => panic!("{error}"),
    }
}

#[tokio::test]
async fn connect_without_wait_permission_is_rejected() {
    let trio = Trio::start();
    let rules = "ACL SETUSER locker reset on >secret ~* &* +@all -wait";
    trio.primary
        .cli(&rules.split_ascii_whitespace().collect::<Vec<_>>());
    let url = || trio.primary.url_of("locker", "secret");
    let error = trio.builder_at(url(), 2, SECOND).connect().await;
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    assert_eq!(trio.primary.cli(&["KEYS", "*"]), FENCE, "released");
    trio.primary.cli(&["ACL", "SETUSER", "locker", "+wait"]);
    let backend = trio.builder_at(url(), 2, PATIENCE).connect().await.unwrap();
    grant(&backend, "k").await;
}

// ---- Sentinel and Cluster ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_failover_counts_new_primary_replicas() {
    let mut set = SentinelSet::start();
    let one = NonZeroUsize::MIN;
    let builder = || RedisBackend::builder(set.url(set.service())).min_replicas(one, SECOND);
    let locks = LockManager::builder(connected(builder).await);
    let locks = locks.build().unwrap();
    let guard = locks.acquire("k").await.unwrap();
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    // Only acquires run during the failover, so they must find the new primary.
    let before = set.kill_primary();
    let (next, _) = join(
        locks.acquire("k").wait(PATIENCE).into_future(),
        set.failover(),
    )
    .await;
    let next = next.unwrap();
    assert!(next.fencing_token() > token);
    let primary = set.primary();
    assert_ne!(primary, before);
    let others = (0..3).filter(|node| *node != before);
    let holding = others.filter(|node| exists(set.node(*node), "k"));
    assert_eq!(holding.count(), 2, "the new primary, and its replica");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_grants_reach_replicas_after_slot_move() {
    let cluster = Cluster::start();
    let connect = || {
        let builder = RedisBackend::builder(cluster.url());
        let builder = builder.connect_timeout(PATIENCE).response_timeout(PATIENCE);
        builder.min_replicas(NonZeroUsize::MIN, PATIENCE).connect()
    };
    let (one, other) = (connect().await.unwrap(), connect().await.unwrap());
    conformance::all(&one, &other).await;

    let (slot, from) = (cluster.slot("{user}"), cluster.node_of("{user}"));
    let mut others = cluster.primaries().into_iter().filter(|it| *it != from);
    let to = others.next().unwrap();
    let on_replica_of = |primary: usize, key: &str| {
        let replica = cluster.node(cluster.replica_of(primary));
        let keys = replica.cli(&["KEYS", "*"]);
        keys.lines().any(|it| it == format!("lock:{key}"))
    };
    let counter = grant(&one, "{user}:1").await;
    assert!(on_replica_of(from, "{user}:1"));
    // ASK: the other node has the keys of the slot, but does not own the slot yet.
    cluster.begin_migration(slot, from, to);
    cluster.move_keys(slot, from, to);
    assert!(grant(&one, "{user}:1").await > counter);
    assert!(on_replica_of(to, "{user}:1"));
    let stranger = LeaseId::new(Uuid::new_v4(), 1);
    let key = LockKey::new("{user}:1");
    let busy = other
        .try_acquire(&AcquireRequest::new(key.clone(), stranger, TTL))
        .await;
    assert!(matches!(busy, Ok(Acquired::Busy { .. })), "{busy:?}");
    cluster.end_migration(slot, from, to).await;
    // MOVED: the slot map of the other backend is stale.
    grant(&other, "{user}:3").await;
    assert!(on_replica_of(to, "{user}:3"));
    assert_eq!(release(&other, "{user}:3").await, Released::Released);
    assert_eq!(release(&one, "{user}:1").await, Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_node_without_replicas_rejects_connect() {
    let cluster = Cluster::start();
    let mut replicas = (3..6).map(|node| cluster.node(node));
    replicas.next().unwrap().stop_process();
    let builder = RedisBackend::builder(cluster.url()).response_timeout(PATIENCE);
    let error = error_of(builder.min_replicas(NonZeroUsize::MIN, 300 * MS)).await;
    let address = cluster.node(0).address();
    assert!(error.contains(&address), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_transfer_requires_replicas() {
    let trio = Trio::start();
    let backend = trio.backend(300 * MS).await;
    let key = LockKey::new("transferred");
    let [holder, first, second] = [1, 2, 3].map(lease);
    let contend = async |lease| {
        let request = ContendRequest::new(key.clone(), lease, TTL, false);
        backend.contend(&request).await
    };
    let release = async |lease| {
        let release = [Release::new(key.clone(), lease)];
        backend.release(&release).await.remove(0).unwrap()
    };
    assert!(matches!(
        contend(holder).await,
        Ok(Contended::Granted { .. })
    ));
    for waiter in [first, second] {
        let waiting = contend(waiter).await;
        assert!(
            matches!(waiting, Ok(Contended::Waiting { .. })),
            "{waiting:?}"
        );
    }
    assert_eq!(release(holder).await, Released::Transferred);
    assert!(matches!(
        contend(first).await,
        Ok(Contended::Granted { .. })
    ));
    assert_eq!(release(first).await, Released::Transferred);
    trio.stop_replicas();
    // An earlier confirmation may have been granted, so only the caller can decide to leave.
    let error = contend(second).await.unwrap_err();
    assert!(error.may_have_taken_effect(), "{error:?}");
    trio.continue_replicas();
    let leaver = [Release::new(key.clone(), second)];
    let left = backend.leave(&leaver).await.remove(0).unwrap();
    assert_eq!(left, Released::Released);
    assert!(!trio.has("transferred"));
}
