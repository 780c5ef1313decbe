//! Grants that count only when replicas have acknowledged them.
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
    AcquireRequest, Acquired, Backend as _, BackendError, BackendErrorKind, LeaseId, Release,
    Released, Renewal, Renewed, conformance,
};
use tower_lock::{ConnectError, ErrorKind, LockKey, LockManager, RedisBackend};
use uuid::Uuid;

use support::cluster::Cluster;
use support::engine::{FENCE, MS, Monitor, PATIENCE, SECOND, eventually};
use support::patience::wait_until;
use support::proxy::{Proxy, Swallow};
use support::redis_server::RedisServer;
use support::sentinel::SentinelSet;

const TTL: Duration = Duration::from_secs(30);
/// How many acquires may wait for replicas at a time.
const LENT: usize = 32;

/// A primary and two replicas in sync.
struct Trio {
    primary: RedisServer,
    replicas: Vec<RedisServer>,
}

impl Trio {
    fn start() -> Self {
        // The primary waits five seconds for more replicas before it sends its data, if it may.
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

    /// Patient with a busy machine, but for the replicas.
    fn builder(&self, replicas: usize, timeout: Duration) -> RedisBackendBuilder {
        self.builder_at(self.primary.url(), replicas, timeout)
    }

    fn builder_at(&self, url: String, replicas: usize, timeout: Duration) -> RedisBackendBuilder {
        RedisBackend::builder(url)
            .connect_timeout(PATIENCE)
            .response_timeout(PATIENCE)
            .min_replicas(NonZeroUsize::new(replicas).unwrap(), timeout)
    }

    /// Both replicas are asked for.
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

/// Connects as soon as the replicas are in time, which on a busy machine they may not be at first.
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

/// The replica has loaded what it was sent.
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

/// The counter of a grant.
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

/// Everything an error says, down to its last cause.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// A grant that too few acknowledged, and that is certainly given back.
fn is_short(error: &BackendError, acknowledged: &str) {
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(!error.may_have_taken_effect(), "{}", chain(error));
    let said = format!("{acknowledged} replicas acknowledged the grant");
    assert!(chain(error).contains(&said), "{}", chain(error));
}

/// `total_connections_received`.
fn connections(server: &RedisServer) -> usize {
    let stats = server.cli(&["INFO", "stats"]);
    let prefix = "total_connections_received:";
    let count = stats.lines().find_map(|line| line.strip_prefix(prefix));
    count.unwrap().trim().parse().unwrap()
}

// ---- grants ----

#[tokio::test]
async fn a_grant_is_on_the_replicas_when_it_is_answered() {
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
async fn renewals_releases_and_refusals_wait_for_nobody() {
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
async fn with_replicas_redis_keeps_the_contract() {
    let trio = Trio::start();
    let (one, other) = (trio.backend(PATIENCE).await, trio.backend(PATIENCE).await);
    conformance::all(&one, &other).await;
}

#[tokio::test]
async fn a_script_that_was_flushed_is_loaded_again() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    for _ in 0..3 {
        trio.primary.cli(&["SCRIPT", "FLUSH"]);
        grant(&backend, "k").await;
        release(&backend, "k").await;
    }
    // Known again from then on.
    let before = trio.primary.calls("eval");
    grant(&backend, "k").await;
    assert_eq!(trio.primary.calls("eval"), before);
}

// ---- too few ----

#[tokio::test]
async fn what_too_few_acknowledge_is_given_back_and_unavailable() {
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
async fn others_on_the_shared_connection_are_not_held_up_meanwhile() {
    let trio = Trio::start();
    let backend = trio.backend(SECOND).await;
    grant(&backend, "held").await;
    trio.stop_replicas();
    let mut acquiring = std::pin::pin!(acquire(&backend, "k"));
    let mut renewals = 0;
    let mut slowest = Duration::ZERO;
    let error = loop {
        let start = Instant::now();
        // Both side by side: were the renewal behind `WAIT`, only one would come through.
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
async fn replicas_that_are_back_are_found_within_the_wait() {
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
    // The longest pause of a waiter, and time for a busy machine.
    assert!(back.elapsed() < 5 * SECOND, "{:?}", back.elapsed());
    assert!(trio.replicas.iter().all(|replica| exists(replica, "k")));
    guard.release().await.unwrap();
}

/// A grant that is given back is told as a release, which every waiter takes for a reason to try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_without_replicas_make_no_storm() {
    let trio = Trio::start();
    let backends = [trio.backend(20 * MS).await, trio.backend(20 * MS).await];
    trio.stop_replicas();
    let managers = backends.map(|backend| LockManager::builder(backend).build().unwrap());
    let before = trio.primary.calls("wait");
    let start = Instant::now();
    let keys = (0..100).flat_map(|n| managers.iter().map(move |locks| (locks, n % 10)));
    let waits = keys.map(|(locks, n)| locks.acquire(format!("key {n}")).wait(3 * SECOND));
    for error in join_all(waits.map(IntoFuture::into_future)).await {
        // Busy for those who came while the others had it for a try of theirs.
        let kind = error.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Busy));
    }
    // After each backoff as many as come before the first of them has failed.
    let tries = trio.primary.calls("wait") - before;
    let steps = 5 + u64::try_from(start.elapsed().as_millis()).unwrap() / 300;
    assert!((4..=2 * 10 * steps).contains(&tries), "{tries} tries");
}

#[tokio::test]
async fn a_key_that_is_busy_waits_for_no_replica() {
    let mut trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    grant(&backend, "k").await;
    trio.replicas.iter_mut().for_each(RedisServer::kill);
    eventually("the primary knows", || online(&trio.primary) == 0).await;
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
async fn a_lease_that_was_granted_before_is_not_taken_back() {
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

// ---- answers that do not come ----

/// Stops what changes keys on the server, until it is told to go on.
fn pause(server: &RedisServer) {
    server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]);
}

/// The server holds a call of the acquire script back.
async fn acquire_is_held_up(server: &RedisServer) {
    eventually("the acquire is there", || {
        let clients = server.cli(&["INFO", "clients"]);
        clients.contains("blocked_clients:1")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_answer_is_lost_leaves_no_key_behind() {
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
    // Nobody but the backend itself gives it back.
    eventually("given back", || !trio.has("k")).await;
    proxy.heal();
    grant_again(&backend, "k").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_arrives_late_leaves_no_key_behind() {
    let trio = Trio::start();
    let builder = || trio.builder(2, 100 * MS).response_timeout(300 * MS);
    let backend = connected(builder).await;
    let granted = |n: u64| trio.primary.calls("hset") > n;
    let before = trio.primary.calls("hset");
    pause(&trio.primary);
    let error = acquire(&backend, "k").await.unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", chain(&error));
    trio.primary.cli(&["CLIENT", "UNPAUSE"]);
    eventually("granted and given back", || {
        granted(before) && !trio.has("k")
    })
    .await;
    grant_again(&backend, "k").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_that_is_lost_leaves_no_key_behind() {
    let trio = Trio::start();
    let proxy = Proxy::start(trio.primary.port()).await;
    let builder = || trio.builder_at(proxy.url(), 2, 500 * MS);
    let backend = connected(|| builder().response_timeout(500 * MS)).await;
    trio.stop_replicas();
    let unknown = join(acquire(&backend, "k"), async {
        eventually("granted", || trio.has("k")).await;
        // The grant is answered long ago, the count is not.
        sleep(100 * MS).await;
        proxy.swallow(Swallow::Answers);
    });
    let error = unknown.await.0.unwrap_err();
    assert!(error.may_have_taken_effect(), "{}", chain(&error));
    eventually("given back", || !trio.has("k")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_meanwhile_leaves_no_key_behind() {
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
    eventually("given back", || !trio.has("k")).await;
    trio.continue_replicas();
    let guard = locks.acquire("k").wait(PATIENCE).await.unwrap();
    guard.release().await.unwrap();
}

/// What the server has read and not executed yet must not come after what undoes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_connection_broke_a_release_goes_over_one_that_did_not_exist_then() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    // Who sent the last command for a key.
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

/// Once the trouble is over.
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
fn a_runtime_that_ends_meanwhile_leaves_the_lock_to_its_lease() {
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
    assert!(start.elapsed() < 5 * SECOND, "it ends at once");
    drop(waits);
    trio.continue_replicas();
    // The same backend on another runtime.
    runtime().block_on(async {
        eventually("over", || trio.primary.cli(&["KEYS", "*"]) == FENCE).await;
        grant_again(&backend, "k").await;
    });
}

// ---- connections ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_share_a_bounded_number_of_connections() {
    let trio = Trio::start();
    let backend = trio.backend(PATIENCE).await;
    let before = connections(&trio.primary);
    let keys: Vec<_> = (0..500).map(|n| format!("key {n}")).collect();
    join_all(keys.iter().map(|key| grant(&backend, key))).await;
    let opened = connections(&trio.primary) - before;
    assert!((2..=LENT).contains(&opened), "{opened} connections");
    join_all(keys.iter().map(|key| release(&backend, key))).await;
    // Used again, not opened again.
    join_all(keys.iter().map(|key| grant(&backend, key))).await;
    let opened = connections(&trio.primary) - before;
    assert!((2..=LENT).contains(&opened), "{opened} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_connections_taken_locks_are_renewed_and_released() {
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
        // The first answer spares the rest a try of their own.
        is_short(&outcome.unwrap_err(), "0 of 2");
    }
    assert_eq!(trio.primary.cli(&["KEYS", "*"]), FENCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_ones_own_is_never_used_up() {
    let trio = Trio::start();
    // A busy machine is not what this is about.
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
    assert!(connections(&trio.primary) - before <= 3, "one is left");
    // With all of them taken there is room for a shared one.
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
async fn a_server_without_enough_replicas_is_refused_at_once() {
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
    assert_eq!(server.cli(&["KEYS", "*"]), FENCE, "nothing of the trial");
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
async fn a_user_that_may_not_wait_is_told_so_when_it_connects() {
    let trio = Trio::start();
    let rules = "ACL SETUSER locker reset on >secret ~* &* +@all -wait";
    trio.primary
        .cli(&rules.split_ascii_whitespace().collect::<Vec<_>>());
    let url = || trio.primary.url_of("locker", "secret");
    let error = trio.builder_at(url(), 2, SECOND).connect().await;
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    assert_eq!(trio.primary.cli(&["KEYS", "*"]), FENCE, "given back");
    trio.primary.cli(&["ACL", "SETUSER", "locker", "+wait"]);
    let backend = trio.builder_at(url(), 2, PATIENCE).connect().await.unwrap();
    grant(&backend, "k").await;
}

// ---- Sentinel and Cluster ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_sentinel_the_replicas_of_the_next_primary_count() {
    let mut set = SentinelSet::start();
    let one = NonZeroUsize::MIN;
    let builder = || RedisBackend::builder(set.url(set.service())).min_replicas(one, SECOND);
    let locks = LockManager::builder(connected(builder).await);
    let locks = locks.build().unwrap();
    let guard = locks.acquire("k").await.unwrap();
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    // Nothing but acquires goes on meanwhile: they have to find the way by themselves.
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
async fn in_a_cluster_each_node_has_its_replicas_and_slots_may_move() {
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
    // ASK: the keys of the slot are at the other node already, and the slot itself is not.
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
    // MOVED: the map of the other backend is old.
    grant(&other, "{user}:3").await;
    assert!(on_replica_of(to, "{user}:3"));
    assert_eq!(release(&other, "{user}:3").await, Released::Released);
    assert_eq!(release(&one, "{user}:1").await, Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_a_node_without_replicas_is_refused() {
    let cluster = Cluster::start();
    let mut replicas = (3..6).map(|node| cluster.node(node));
    replicas.next().unwrap().stop_process();
    let builder = RedisBackend::builder(cluster.url()).response_timeout(PATIENCE);
    let error = error_of(builder.min_replicas(NonZeroUsize::MIN, 300 * MS)).await;
    let address = cluster.node(0).address();
    assert!(error.contains(&address), "{error}");
}
