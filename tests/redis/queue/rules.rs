//! One test per rule of the order, on backends.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend as _, Contended, Hint, Hints, KeepRequest, LeaseId, Release,
    Released, ReleasedOrKept,
};
use tower_lock::{LockKey, RedisBackend};
use uuid::Uuid;

use super::scripts::{BODY, CHANNEL, QUEUE};
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(30);

fn key() -> LockKey {
    LockKey::new("a")
}

/// A process with a connection of its own.
struct Process {
    backend: RedisBackend,
    lease: LeaseId,
    hints: Hints,
}

impl Process {
    async fn start(server: &RedisServer) -> Self {
        let builder = RedisBackend::builder(server.url()).response_timeout(10 * SECOND);
        let backend = builder.connect().await.unwrap();
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        let mut hints = backend.watch(&key(), lease.manager());
        let confirmed = timeout(10 * SECOND, hints.next()).await;
        assert_eq!(confirmed.unwrap(), Hint::Released);
        Self {
            backend,
            lease,
            hints,
        }
    }

    async fn contend(&self) -> Contended {
        let request = AcquireRequest::new(key(), self.lease, TTL).with_listening(true);
        self.backend.contend(&request).await.unwrap()
    }

    async fn is_granted(&self) -> bool {
        matches!(self.contend().await, Contended::Granted { .. })
    }

    async fn waits(&self) -> u32 {
        match self.contend().await {
            Contended::Waiting { queued, .. } => queued.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn release(&self) -> Released {
        let release = [Release::new(key(), self.lease)];
        self.backend.release(&release).await.remove(0).unwrap()
    }

    async fn leave(&self) -> Released {
        let release = [Release::new(key(), self.lease)];
        self.backend.leave(&release).await.remove(0).unwrap()
    }

    async fn acquire(&self) -> Acquired {
        let request = AcquireRequest::new(key(), self.lease, TTL);
        self.backend.try_acquire(&request).await.unwrap()
    }

    /// Completes when the key is transferred to this process.
    async fn transferred(&mut self) {
        let lease = self.lease;
        let is_transfer = |hint| matches!(hint, Hint::Transferred { lease: to, .. } if to == lease);
        let transferred = async { while !is_transfer(self.hints.next().await) {} };
        timeout(10 * SECOND, transferred).await.unwrap();
    }
}

/// Processes, of which the first holds the key and the others wait, in order.
async fn queue(server: &RedisServer, count: usize) -> Vec<Process> {
    let processes = (0..count).map(|_| Process::start(server));
    let processes = join_all(processes).await;
    assert!(processes[0].is_granted().await);
    for (before, process) in (0..).zip(&processes[1..]) {
        assert_eq!(process.waits().await, before + 1);
    }
    processes
}

fn holder(server: &RedisServer) -> String {
    server.cli(&["HKEYS", BODY])
}

/// Subscribes as Redisson does.
fn outsider(server: &RedisServer) -> redis::Connection {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut subscribe = redis::cmd("SUBSCRIBE");
    subscribe.arg(CHANNEL).exec(&mut connection).unwrap();
    connection
}

#[tokio::test]
async fn released_key_with_waiter_is_never_free() {
    let server = RedisServer::start();
    let mut processes = queue(&server, 4).await;
    let newcomer = Process::start(&server).await;
    for index in 0..3 {
        assert_eq!(processes[index].release().await, Released::Transferred);
        assert_eq!(holder(&server), processes[index + 1].lease.to_string());
        assert!(matches!(newcomer.acquire().await, Acquired::Busy { .. }));
        processes[index + 1].transferred().await;
        assert!(processes[index + 1].is_granted().await);
    }
    assert_eq!(processes[3].release().await, Released::Released);
    assert_eq!(server.cli(&["EXISTS", BODY, QUEUE]), "0");
}

#[tokio::test]
async fn waiters_of_ended_processes_are_passed_over_at_once() {
    let server = RedisServer::start();
    let mut processes = queue(&server, 6).await;
    let mut last = processes.pop().unwrap();
    let holder = processes.remove(0);
    // Their connections close, and their places stay.
    drop(processes);
    eventually("the connections are closed", || {
        server.cli(&["PUBSUB", "NUMSUB", CHANNEL]).ends_with('2')
    })
    .await;
    let released = Instant::now();
    assert_eq!(holder.release().await, Released::Transferred);
    last.transferred().await;
    assert!(last.is_granted().await);
    assert!(released.elapsed() < SECOND, "{:?}", released.elapsed());
}

#[tokio::test]
async fn contend_on_expired_key_serves_first_waiter() {
    let server = RedisServer::start();
    let mut processes = queue(&server, 3).await;
    server.cli(&["DEL", BODY]);
    let Contended::Waiting { queued, .. } = processes[2].contend().await else {
        panic!("it is second");
    };
    assert_eq!(queued, Some(1));
    processes[1].transferred().await;
    assert!(processes[1].is_granted().await);
}

#[tokio::test]
async fn only_own_lease_ends_hold() {
    let server = RedisServer::start();
    let processes = queue(&server, 2).await;
    let waiter = &processes[1];
    for _ in 0..2 {
        assert_eq!(waiter.release().await, Released::NotHeld);
        assert_eq!(waiter.leave().await, Released::NotHeld);
        assert_eq!(holder(&server), processes[0].lease.to_string());
    }
    assert_eq!(processes[0].release().await, Released::Released);
}

#[tokio::test]
async fn hung_processes_delay_others_by_at_most_4_5_s() {
    let server = RedisServer::start();
    let processes = queue(&server, 10).await;
    // All but the last hang with open connections: they neither refresh nor confirm.
    let last = &processes[9];
    let released = Instant::now();
    processes[0].release().await;
    while !last.is_granted().await {
        sleep(50 * MS).await;
    }
    // The places of 3 s, and one unconfirmed transfer of 1.5 s.
    assert!(released.elapsed() < 4_500 * MS, "{:?}", released.elapsed());
}

#[tokio::test]
async fn release_without_queue_leaves_no_key() {
    let server = RedisServer::start();
    let process = Process::start(&server).await;
    assert!(matches!(process.acquire().await, Acquired::Granted { .. }));
    assert_eq!(process.release().await, Released::Released);
    assert_eq!(server.cli(&["EXISTS", BODY, QUEUE]), "0");
}

/// A client outside the queue has a turn once a round, and no process of the queue takes it.
#[tokio::test]
async fn outsider_has_turn_in_each_round() {
    let server = RedisServer::start();
    let processes = queue(&server, 3).await;
    let _outsider = outsider(&server);
    let mut served = Vec::new();
    let mut holding = 0;
    for _ in 0..9 {
        match processes[holding].release().await {
            Released::Transferred => {}
            Released::LeftToOthers => {
                served.push(9);
                assert_eq!(server.cli(&["EXISTS", BODY]), "0");
                // The outsider does not take it.
                assert!(processes[holding].waits().await > 0);
                eventually("the turn is over", || {
                    let turn = server.cli(&["ZSCORE", QUEUE, "~!"]);
                    let now = server.cli(&["TIME"]);
                    let now: i64 = now.lines().next().unwrap().parse().unwrap();
                    turn.parse::<i64>().unwrap() < 1_000 * now
                })
                .await;
                processes[holding].waits().await;
            }
            other => panic!("{other:?}"),
        }
        let lease = holder(&server);
        let next = processes
            .iter()
            .position(|it| it.lease.to_string() == lease);
        let next = next.unwrap();
        assert!(processes[next].is_granted().await);
        if holding != next {
            processes[holding].waits().await;
        }
        served.push(next);
        holding = next;
    }
    let turns: Vec<_> = (0..).zip(&served).filter(|(_, it)| **it == 9).collect();
    assert!(turns.len() >= 2, "{served:?}");
    for pair in turns.windows(2) {
        assert!(pair[1].0 - pair[0].0 <= 5, "{served:?}");
    }
}

/// An older version, and Redisson, acquire in their turn.
#[tokio::test]
async fn turn_of_outsider_is_not_taken_by_contend() {
    let server = RedisServer::start();
    let process = Process::start(&server).await;
    let _outsider = outsider(&server);
    assert!(process.is_granted().await);
    assert_eq!(process.release().await, Released::LeftToOthers);
    let lease = format!("{}:1", Uuid::new_v4());
    match process.contend().await {
        Contended::Waiting { ttl, .. } => assert!(ttl <= 10 * MS, "{ttl:?}"),
        // The turn has passed on a busy machine.
        Contended::Granted { .. } => return,
        other => panic!("{other:?}"),
    }
    server.cli(&["HSET", BODY, &lease, "1"]);
    server.cli(&["PEXPIRE", BODY, "30000"]);
    sleep(20 * MS).await;
    assert_eq!(process.waits().await, 1);
    server.cli(&["DEL", BODY]);
    assert!(process.is_granted().await);
}

#[tokio::test]
async fn foreign_queue_key_is_no_queue() {
    let server = RedisServer::start();
    server.cli(&["SET", QUEUE, "something else"]);
    let processes = join_all((0..2).map(|_| Process::start(&server))).await;
    assert!(processes[0].is_granted().await);
    let waiting = processes[1].contend().await;
    assert!(
        matches!(waiting, Contended::Waiting { queued: None, .. }),
        "{waiting:?}"
    );
    assert_eq!(processes[0].release().await, Released::Released);
    assert!(processes[1].is_granted().await);
    assert_eq!(processes[1].leave().await, Released::Released);
    assert_eq!(server.cli(&["GET", QUEUE]), "something else");
}

#[tokio::test]
async fn full_memory_rejects_only_new_waiters() {
    let server = RedisServer::start();
    let mut processes = queue(&server, 2).await;
    let newcomer = Process::start(&server).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let waiting = newcomer.contend().await;
    assert!(
        matches!(waiting, Contended::Waiting { queued: None, .. }),
        "{waiting:?}"
    );
    assert_eq!(processes[0].release().await, Released::Transferred);
    processes[1].transferred().await;
    let request = AcquireRequest::new(key(), processes[1].lease, TTL).with_listening(true);
    let refused = processes[1].backend.contend(&request).await.unwrap_err();
    assert!(!refused.may_have_taken_effect(), "{refused:?}");
    assert_eq!(processes[1].leave().await, Released::Released);
}

#[tokio::test]
async fn released_or_kept_lease_counts_pollers() {
    let server = RedisServer::start();
    let builder = || RedisBackend::builder(server.url());
    let (one, other) = (
        builder().connect().await.unwrap(),
        builder().connect().await.unwrap(),
    );
    let [holder, poller, next] = [1, 2, 3].map(|_| LeaseId::new(Uuid::new_v4(), 1));
    let acquire = AcquireRequest::new(key(), holder, TTL);
    let acquired = one.try_acquire(&acquire).await.unwrap();
    assert!(matches!(acquired, Acquired::Granted { .. }));
    let keep = KeepRequest::new(key(), holder, TTL).with_next(next, false);
    let kept = one
        .release_or_keep(std::slice::from_ref(&keep))
        .await
        .remove(0)
        .unwrap();
    assert!(matches!(kept, ReleasedOrKept::Kept { .. }), "{kept:?}");
    let contend = AcquireRequest::new(key(), poller, TTL);
    let waiting = other.contend(&contend).await.unwrap();
    assert!(matches!(waiting, Contended::Waiting { .. }));
    let passed = one
        .release_or_keep(std::slice::from_ref(&keep))
        .await
        .remove(0)
        .unwrap();
    assert_eq!(
        passed,
        ReleasedOrKept::passed(Released::Transferred, 1, true)
    );
    assert_eq!(server.cli(&["ZRANGE", QUEUE, "0", "0"]), next.to_string());
}
