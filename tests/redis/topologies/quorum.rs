//! A quorum of five real servers, of which two die or hang while it is in use.

use std::collections::HashMap;
use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tower_lock::backend::Backend;
use tower_lock::backend::{AcquireRequest, Acquired, Fence, LeaseId, Node, QuorumBuilder, Release};
use tower_lock::{ConnectError, ErrorKind, LockKey, LockManager, Quorum, RedisBackend};
use uuid::Uuid;

use crate::support::engine::{FENCE, MS, Monitor, SECOND, within};
use crate::support::errors::chain;
use crate::support::redis_server::RedisServer;
use crate::support::vip::Vip;

/// The counter that the nodes agree on.
const QUORUM_FENCE: &str = "lock:{fencing-token}%quorum";
const LEASE: Duration = Duration::from_secs(3);
const KEYS: [&str; 4] = ["a", "b", "c", "d"];

fn servers() -> Vec<RedisServer> {
    (0..5).map(|_| RedisServer::start()).collect()
}

/// Creates a manager that stands for a separate process.
async fn manager(servers: &[RedisServer]) -> LockManager {
    manager_with_lease(servers, LEASE).await
}

async fn manager_with_lease(servers: &[RedisServer], lease: Duration) -> LockManager {
    let mut quorum = Quorum::builder();
    for server in servers {
        let builder = || RedisBackend::builder(server.url());
        let node = match builder().connect().await {
            Err(ConnectError::Unreachable { .. }) => builder().connect_lazy().unwrap(),
            connected => connected.unwrap(),
        };
        quorum = quorum.node(node);
    }
    let builder = LockManager::builder(quorum.build().unwrap());
    builder.watchdog_timeout(lease).build().unwrap()
}

/// Workers of several processes that contend for a few keys and check mutual exclusion.
struct Load {
    stop: Arc<AtomicBool>,
    grants: Arc<AtomicU64>,
    workers: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(managers: &[LockManager]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let grants = Arc::new(AtomicU64::new(0));
        let seats = KEYS.map(|key| (key, Arc::new((AtomicBool::new(false), Mutex::new(None)))));
        let mut workers = Vec::new();
        for locks in managers {
            for (key, seat) in &seats {
                let (stop, grants) = (Arc::clone(&stop), Arc::clone(&grants));
                let (locks, key, seat) = (locks.clone(), *key, Arc::clone(seat));
                workers.push(tokio::spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let guard = locks.acquire(key).wait(20 * SECOND).await.unwrap();
                        let (taken, last) = &*seat;
                        assert!(!taken.swap(true, Ordering::SeqCst), "two hold {key}");
                        let token = Some(guard.fencing_token());
                        let before = std::mem::replace(&mut *last.lock().unwrap(), token);
                        assert!(token > before, "{key}: {token:?} after {before:?}");
                        sleep(MS).await;
                        assert!(guard.is_held(), "{key} was lost");
                        taken.store(false, Ordering::SeqCst);
                        drop(guard);
                        grants.fetch_add(1, Ordering::SeqCst);
                    }
                }));
            }
        }
        Self {
            stop,
            grants,
            workers,
        }
    }

    /// Waits for `more` grants.
    async fn goes_on(&self, more: u64) {
        let aim = self.grants.load(Ordering::SeqCst) + more;
        within(20 * SECOND, "grants go on", || {
            assert!(
                !self.workers.iter().any(JoinHandle::is_finished),
                "a worker failed"
            );
            self.grants.load(Ordering::SeqCst) >= aim
        })
        .await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for worker in self.workers {
            worker.await.unwrap();
        }
    }
}

/// Waits until only the counters are left.
async fn nothing_is_left<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) {
    for server in servers {
        within(5 * SECOND, "nothing is left", || is_empty(server)).await;
    }
}

fn is_empty(server: &RedisServer) -> bool {
    let keys = server.cli(&["KEYS", "*"]);
    keys.lines().all(|key| key == FENCE || key == QUORUM_FENCE)
}

/// Checks for each lease at a node that no vote arrived after its release.
fn in_order(lines: &[String]) {
    let mut released: HashMap<&str, bool> = HashMap::new();
    let mut votes = 0;
    for line in lines.iter().filter(|line| line.contains("\"EVALSHA\"")) {
        // A vote names the quorum's counter, and a release names a release channel.
        let is_vote = line.contains("{fencing-token}%quorum");
        let is_release = line.contains("redisson_lock__channel");
        for word in line
            .split('"')
            .filter(|word| word.len() > 37 && word.as_bytes()[36] == b':')
        {
            if is_vote {
                votes += 1;
                assert!(
                    !released.contains_key(word),
                    "a vote after its release: {line}"
                );
            } else if is_release {
                released.insert(word, true);
            }
        }
    }
    assert!(votes > 10, "only {votes} votes were seen");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_survives_two_killed_nodes() {
    let mut servers = servers();
    let monitors: Vec<_> = servers[2..].iter().map(Monitor::start).collect();
    let managers = [
        manager(&servers).await,
        manager(&servers).await,
        manager(&servers).await,
    ];
    let holder = managers[0].acquire("held throughout").await.unwrap();
    let load = Load::start(&managers);
    load.goes_on(100).await;
    servers[0].kill();
    load.goes_on(100).await;
    servers[1].kill();
    load.goes_on(100).await;
    sleep(2 * LEASE).await;
    load.goes_on(100).await;
    assert!(holder.is_held(), "renewed by three of five");
    load.end().await;
    holder.release().await.unwrap();
    nothing_is_left(&servers[2..]).await;
    for (monitor, server) in monitors.iter().zip(&servers[2..]) {
        in_order(&monitor.lines_until_now(server).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_survives_two_paused_nodes() {
    let servers = servers();
    let managers = [
        manager(&servers).await,
        manager(&servers).await,
        manager(&servers).await,
    ];
    let holder = managers[0].acquire("held throughout").await.unwrap();
    let load = Load::start(&managers);
    load.goes_on(100).await;
    servers[..2].iter().for_each(RedisServer::stop_process);
    load.goes_on(100).await;
    sleep(2 * LEASE).await;
    load.goes_on(100).await;
    assert!(holder.is_held(), "renewed by three of five");
    servers[..2].iter().for_each(RedisServer::continue_process);
    load.goes_on(100).await;
    load.end().await;
    holder.release().await.unwrap();
    // The resumed nodes have run the queued commands, including the releases.
    nothing_is_left(&servers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_tokens_increase_after_two_empty_restarts() {
    let mut servers = servers();
    let locks = manager(&servers).await;
    let first = locks.acquire("a").await.unwrap();
    let token = first.fencing_token();
    for server in &mut servers[..2] {
        server.restart_empty();
    }
    sleep(LEASE).await;
    assert!(first.is_held(), "renewed by three of five");
    for server in &servers[..2] {
        assert_eq!(server.cli(&["EXISTS", "lock:a"]), "0", "recreated");
    }
    first.release().await.unwrap();
    // After the end of an old node, the majority needs the empty nodes. Their votes carry the counter.
    servers[2].kill();
    for _ in 0..5 {
        locks.acquire("a").await.unwrap().release().await.unwrap();
    }
    servers[3].kill();
    let last = locks.acquire("a").await.unwrap();
    assert!(last.fencing_token() > token);
    drop(last);
    nothing_is_left(servers[..2].iter().chain(&servers[4..])).await;
}

/// A node is stopped for longer than the lease. Its votes are in its buffers, more than it reads at once, and it
/// finds the connection closed before it reads their releases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_votes_of_stopped_node_are_released() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let locks = manager_with_lease(&servers, 6 * SECOND).await;
    locks.acquire("k").await.unwrap().release().await.unwrap();
    servers[0].stop_process();
    let keys = (0..500).map(|key| locks.acquire(format!("k:{key}")).into_future());
    for guard in join_all(keys).await {
        guard.unwrap().release().await.unwrap();
    }
    sleep(13 * SECOND).await;
    servers[0].continue_process();
    sleep(3 * SECOND).await;
    assert!(servers.iter().all(is_empty), "held without an owner");
}

/// The watchdog would renew only after 10 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_restart_of_majority_notifies_idle_holder() {
    let mut servers = servers();
    let locks = manager_with_lease(&servers, 30 * SECOND).await;
    let guard = locks.acquire("k").await.unwrap();
    for server in &mut servers[..3] {
        server.restart_empty();
    }
    let lost = timeout(5 * SECOND, guard.lost()).await;
    lost.expect("the holder is notified");
}

#[tokio::test]
async fn vote_returns_zero_before_confirmed_counter() {
    let server = RedisServer::start();
    let node = RedisBackend::builder(server.url()).connect().await.unwrap();
    let key = LockKey::new("a");
    let [one, other] = [1, 2].map(|number| LeaseId::new(Uuid::new_v4(), number));
    let vote = |lease, fence| {
        let (node, key) = (&node, &key);
        async move {
            node.vote(&AcquireRequest::new(key.clone(), lease, LEASE), fence)
                .await
                .unwrap()
        }
    };
    assert_eq!(vote(one, Fence::Propose(700)).await, Acquired::granted(0));
    assert_eq!(server.cli(&["EXISTS", "lock:a", QUORUM_FENCE]), "1");
    match vote(other, Fence::Confirm(900)).await {
        Acquired::Busy { ttl, .. } => assert!(ttl <= LEASE && ttl > LEASE / 2, "{ttl:?}"),
        granted => panic!("{granted:?}"),
    }
    let large = (1 << 52) + 1;
    for (fence, counter) in [
        (Fence::Propose(800), 0),
        (Fence::Confirm(500), 500),
        (Fence::Confirm(600), 600),
        (Fence::Propose(600), 601),
        (Fence::Propose(3), 602),
        (Fence::Confirm(603), 603),
        (Fence::Confirm(4), 604),
        (Fence::Propose(large), large),
        (Fence::Propose(1), large + 1),
    ] {
        assert_eq!(
            vote(one, fence).await,
            Acquired::granted(counter),
            "{fence:?}"
        );
    }
    assert_eq!(server.cli(&["HGETALL", "lock:a"]), format!("{one}\n1"));
    node.release(&[Release::new(key.clone(), one)])
        .await
        .remove(0)
        .unwrap();
    assert_eq!(
        vote(other, Fence::Propose(2)).await,
        Acquired::granted(large + 2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_down_at_start_join_quorum_later() {
    let mut servers = servers();
    servers[0].kill();
    servers[1].kill();
    let locks = manager(&servers).await;
    let first = locks.acquire("k").wait(5 * SECOND).await.unwrap();
    let token = first.fencing_token();
    first.release().await.unwrap();
    servers[0].launch_again();
    servers[1].launch_again();
    servers[2].kill();
    servers[3].kill();
    let second = locks.acquire("k").wait(10 * SECOND).await.unwrap();
    assert!(second.fencing_token() > token);
}

/// Without the quarantine, the vote of a node that lost its data could form a second majority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_node_in_quarantine_casts_no_vote() {
    let mut server = RedisServer::start();
    let builder = RedisBackend::builder(server.url());
    let node = builder.quarantine(SECOND).connect().await.unwrap();
    let key = LockKey::new("k");
    let vote = async |number| {
        let lease = LeaseId::new(Uuid::from_u128(7), number);
        node.vote(
            &AcquireRequest::new(key.clone(), lease, 5 * SECOND),
            Fence::Propose(1),
        )
        .await
    };
    // The first start looks like a loss.
    assert!(vote(1).await.is_err());
    // The uptime of the server is in full seconds.
    sleep(2 * SECOND).await;
    assert!(matches!(vote(2).await, Ok(Acquired::Granted { .. })));
    assert!(matches!(vote(3).await, Ok(Acquired::Busy { .. })));
    server.restart_empty();
    let back = tokio::time::Instant::now();
    let first = loop {
        match vote(4).await {
            Ok(Acquired::Granted { counter, .. }) => break counter,
            _ => sleep(20 * MS).await,
        }
    };
    assert!(
        back.elapsed() > 900 * MS,
        "granted after {:?}",
        back.elapsed()
    );
    assert_eq!(first, 0, "the quarantine must not restore the lost counter");
}

async fn nodes(urls: [String; 3]) -> QuorumBuilder {
    let mut quorum = Quorum::builder();
    for url in urls {
        quorum = quorum.node(RedisBackend::builder(url).connect().await.unwrap());
    }
    quorum
}

#[tokio::test]
async fn quorum_with_one_server_twice_is_rejected() {
    let [one, other] = [RedisServer::start(), RedisServer::start()];
    let by_socket = format!("redis+unix://{}", one.socket().display());
    let quorum = nodes([one.url(), other.url(), by_socket]).await;
    let error = quorum.build().unwrap_err();
    assert_eq!(error.field(), "node");
    assert!(error.to_string().contains("nodes 1 and 3"), "{error}");
}

/// The address of the third node leads to the first one from some time on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_finds_server_twice_later() {
    let servers: [_; 3] = std::array::from_fn(|_| RedisServer::start());
    let vip = Vip::start(servers[2].port()).await;
    let third = format!("redis://{}", vip.address());
    let quorum = nodes([servers[0].url(), servers[1].url(), third]).await;
    let locks = LockManager::builder(quorum.build().unwrap())
        .watchdog_timeout(LEASE)
        .build()
        .unwrap();
    let held = locks.acquire("held").await.unwrap();
    vip.lead_to(servers[0].port());
    servers[2].cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    // The next connection of the third node shows it.
    let refused = async {
        loop {
            match locks.acquire("k").wait(SECOND).await {
                Err(error) if error.kind() == ErrorKind::Refused => break error,
                outcome => drop(outcome),
            }
            sleep(20 * MS).await;
        }
    };
    let error = timeout(10 * SECOND, refused).await.expect("a refusal");
    assert!(
        chain(&error).contains("nodes 1 and 3 are one server"),
        "{error:?}"
    );
    sleep(LEASE).await;
    assert!(held.is_held(), "{:?}", held.lost_reason());

    vip.lead_to(servers[2].port());
    servers[0].cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let granted = async {
        while locks.acquire("k").wait(SECOND).await.is_err() {
            sleep(20 * MS).await;
        }
    };
    timeout(10 * SECOND, granted).await.expect("a grant");
}
