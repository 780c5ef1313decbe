//! Processes without messages beside processes with them: their turns, and what they cost.

use std::time::Duration;

use deadpool_redis::{Config, Runtime};
use futures_util::future::{join, join_all};
use redis::Connection;
use tokio::time::{Instant, sleep};
use tower_lock::{LockManager, RedisBackend};

use super::model::{Counted, Reply, lease, manager_name};
use super::scripts::{BODY, CHANNEL, Call};
use super::server::FrozenServer;
use crate::support::engine::{MS, SECOND, manager};
use crate::support::patience::wait_until;
use crate::support::redis_server::RedisServer;

const TTL: i64 = 30_000;

/// A server whose clock stands, and its clients.
struct Line {
    server: FrozenServer,
    connection: Connection,
    listeners: Vec<Connection>,
}

impl Line {
    /// `listening` managers are subscribed.
    fn new(listening: u64) -> Self {
        let server = FrozenServer::start();
        let listeners = (1..=listening).map(|number| {
            let mut connection = server.connect();
            let ours = [
                "".to_owned(),
                "%w".to_owned(),
                format!("%{}", manager_name(number)),
            ];
            let mut subscribe = redis::cmd("SUBSCRIBE");
            subscribe.arg(ours.map(|it| format!("{CHANNEL}{it}")).as_slice());
            connection
                .send_packed_command(&subscribe.get_packed_command())
                .unwrap();
            (0..3).for_each(|_| drop(connection.recv_response().unwrap()));
            connection
        });
        let listeners = listeners.collect();
        let connection = server.connect();
        Self {
            server,
            connection,
            listeners,
        }
    }

    fn run(&mut self, call: &Call) -> Reply {
        call.run(&mut self.connection, Counted::All).0
    }

    fn contend(&mut self, number: u64, listens: bool) -> Reply {
        let (lease, ttl) = (lease(number), TTL);
        self.run(&Call::Contend {
            lease,
            ttl,
            listens,
        })
    }

    /// Returns when a waiter that polls attempts again.
    fn poll(&mut self, number: u64) -> i64 {
        match self.contend(number, false) {
            Reply::Waiting(_, _, poll_after, _) => poll_after,
            other => panic!("{other:?}"),
        }
    }

    fn listen(&mut self, number: u64) {
        let reply = self.contend(number, true);
        assert!(matches!(reply, Reply::Waiting(_, _, 0, _)), "{reply:?}");
    }

    /// Releases the lock of one lease, which the other then holds.
    fn pass(&mut self, from: u64, to: u64) {
        assert_eq!(self.run(&Call::Release(lease(from))), Reply::Number(2));
        let confirmed = self.contend(to, to < POLLER);
        assert!(matches!(confirmed, Reply::Again(_)), "{to}: {confirmed:?}");
    }
}

/// It and those above poll.
const POLLER: u64 = 8;

/// The holder 1, the listener 2, the poller, and the listener 3.
fn line() -> Line {
    let mut line = Line::new(3);
    assert_eq!(line.contend(1, true), Reply::Granted(0));
    line.listen(2);
    assert_eq!(line.poll(POLLER), 6);
    line.listen(3);
    line.pass(1, 2);
    line
}

#[test]
fn sleeping_poller_keeps_place() {
    let mut line = line();
    line.pass(2, 3);
    line.listen(1);
    // Still asleep.
    line.server.advance(2);
    line.pass(3, 1);
    line.listen(2);
    line.server.advance(1);
    line.pass(1, POLLER);
    line.pass(POLLER, 2);
}

#[test]
fn poller_is_served_after_its_attempt() {
    let mut line = line();
    assert_eq!(line.poll(POLLER), 3);
    line.pass(2, POLLER);
    line.pass(POLLER, 3);
}

#[test]
fn first_of_sleeping_pollers_is_served() {
    let mut line = Line::new(1);
    assert_eq!(line.contend(1, true), Reply::Granted(0));
    for (ahead, poller) in (0..).zip(POLLER..POLLER + 40) {
        assert_eq!(line.poll(poller), 100.min(3 * (ahead + 1)));
    }
    let left = Call::Leave(lease(POLLER));
    assert_eq!(line.run(&left), Reply::Number(0));
    line.pass(1, POLLER + 1);
}

/// A release looks at 32 places, so a longer list of unreachable ones ends the order.
#[test]
fn release_passes_over_31_unreachable_waiters() {
    for (unreachable, freed) in [(31, 2), (32, 1)] {
        let (holder, reachable) = (0, unreachable + 1);
        let mut line = Line::new(reachable);
        assert_eq!(line.contend(holder, false), Reply::Granted(0));
        (1..=reachable).for_each(|number| line.listen(number));
        let mut last = line.listeners.pop().unwrap();
        line.listeners.clear();
        let mut subscribers = redis::cmd("CLIENT");
        subscribers.arg("LIST").arg("TYPE").arg("pubsub");
        wait_until("one subscriber", String::new, || {
            let clients: String = subscribers.query(&mut line.connection).unwrap();
            clients.lines().count() == 1
        });
        let mut counted = redis::cmd("PUBSUB");
        counted.arg("NUMSUB").arg(CHANNEL);
        let is_counted = counted.query(&mut line.connection) == Ok((CHANNEL.to_owned(), 1));
        let released = line.run(&Call::Release(lease(holder)));
        if freed == 1 && !is_counted {
            // Valkey 9.1.2 counts wrongly, so others may wait outside the queue.
            assert_eq!(released, Reply::Number(3));
            continue;
        }
        assert_eq!(released, Reply::Number(freed), "{unreachable}");
        let message = last.recv_response().unwrap();
        let (_, channel, _): (String, String, String) = redis::from_redis_value(message).unwrap();
        let granted = line.contend(reachable, true);
        if freed == 2 {
            assert_eq!(channel, format!("{CHANNEL}%{}", manager_name(reachable)));
            assert_eq!(granted, Reply::Again(Some(0)));
        } else {
            assert_eq!(channel, CHANNEL, "a release that all can hear");
            assert_eq!(granted, Reply::Granted(0));
        }
    }
}

#[test]
fn attempt_on_expired_lock_skips_sleeping_poller() {
    let mut line = line();
    redis::cmd("DEL")
        .arg(BODY)
        .exec(&mut line.connection)
        .unwrap();
    assert_eq!(line.contend(3, true), Reply::Granted(0));
    line.pass(3, POLLER);
}

/// A process that subscribes at this server. Without one, it cannot subscribe: a pool does not name its server.
pub(crate) async fn pooled(server: &RedisServer, notify: Option<&RedisServer>) -> LockManager {
    let pool = Config::from_url(server.url());
    let pool = pool.create_pool(Some(Runtime::Tokio1)).unwrap();
    let mut builder = RedisBackend::from_pool(pool);
    if let Some(notify) = notify {
        builder = builder.notify(notify.url());
    }
    LockManager::builder(builder.connect().await.unwrap())
        .build()
        .unwrap()
}

/// Returns the number of grants, and the longest wait.
async fn hold_again_and_again(locks: LockManager, end: Instant) -> (u32, Duration) {
    let mut served = (0, Duration::ZERO);
    loop {
        let asked = Instant::now();
        if asked >= end {
            return served;
        }
        let guard = locks.acquire("a").wait_forever().await.unwrap();
        served = (served.0 + 1, served.1.max(asked.elapsed()));
        sleep(5 * MS).await;
        guard.release().await.unwrap();
    }
}

/// Returns the number of grants of all managers, and the longest wait of one of them.
async fn window(managers: &[LockManager], length: Duration) -> (u32, Duration) {
    let end = Instant::now() + length;
    let managers = managers.iter().cloned();
    let served = join_all(managers.map(|it| hold_again_and_again(it, end))).await;
    let longest = served.iter().map(|it| it.1).max();
    (served.iter().map(|it| it.0).sum(), longest.unwrap())
}

/// With 100 ms between the attempts of a poller, the lock is idle for two thirds of the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pollers_among_listeners_idle_lock_rarely() {
    const WINDOW: Duration = Duration::from_millis(400);
    let server = RedisServer::start();
    let lease = Duration::from_secs(30);
    let listening = join_all((0..8).map(|_| manager(server.url(), lease))).await;
    let mut mixed = listening[..4].to_vec();
    mixed.extend(join_all((0..4).map(|_| pooled(&server, None))).await);
    let (mut without, mut with, mut longest) = (0, 0, Duration::ZERO);
    // In turns, because the machine may be busy.
    for _ in 0..4 {
        without += window(&listening, WINDOW).await.0;
        let served = window(&mixed, WINDOW).await;
        with += served.0;
        longest = longest.max(served.1);
    }
    assert!(
        10 * with >= 6 * without,
        "{with} grants instead of {without}"
    );
    let round = 8 * 4 * WINDOW / with;
    // Half a second more for a busy machine, where a round takes long as well.
    assert!(
        longest <= 3 * round + 500 * MS,
        "{longest:?}, a round takes {round:?}"
    );
}

/// The primary does not count the subscription at its replica, so the waiter polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_at_replica_is_served_beside_others() {
    const WINDOW: Duration = Duration::from_secs(2);
    let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let port = primary.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    let listening = join_all((0..4).map(|_| manager(primary.url(), 30 * SECOND))).await;
    let apart = pooled(&primary, Some(&replica)).await;
    let served = hold_again_and_again(apart, Instant::now() + WINDOW);
    let (others, (grants, longest)) = join(window(&listening, WINDOW), served).await;
    let round = 5 * WINDOW / (others.0 + grants);
    assert!(
        longest <= 3 * round + 500 * MS,
        "{longest:?}, a round takes {round:?}, {grants} grants"
    );
}
