//! Managers on a real server, and what the server has of their locks.

use std::fmt::Debug;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::backend::Backend as _;
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::manager::Snapshot;
use tower_lock::{LockKey, LockManager, RedisBackend};

use super::{MS, PATIENCE, SECOND, within};
use crate::support::redis_server::RedisServer;

/// The only key that may remain.
pub(crate) const FENCE: &str = "lock:{fencing-token}%";

/// A manager as in a separate process: with its own connections, queue and identity.
///
/// On a busy machine, a healthy server replies after the default response timeout. See [`prompt_manager`].
pub(crate) async fn manager(url: impl Into<String>, lease: Duration) -> LockManager {
    let builder = RedisBackend::builder(url).response_timeout(PATIENCE);
    manager_from(builder, lease).await
}

/// A [`manager`] with the default response timeout, for servers that hang.
pub(crate) async fn prompt_manager(url: impl Into<String>, lease: Duration) -> LockManager {
    manager_from(RedisBackend::builder(url), lease).await
}

/// A [`manager`] whose backend has these settings.
pub(crate) async fn manager_from(builder: RedisBackendBuilder, lease: Duration) -> LockManager {
    let backend = builder.connect().await;
    LockManager::builder(backend.expect("the server is there"))
        .watchdog_timeout(lease)
        .max_waiters_per_key(20_000)
        .build()
        .expect("valid settings")
}

/// Two managers, as in two processes.
pub(crate) async fn managers(
    url: impl Into<String>,
    lease: Duration,
) -> (LockManager, LockManager) {
    let url = url.into();
    (manager(&*url, lease).await, manager(url, lease).await)
}

/// Two managers with the default response timeout.
pub(crate) async fn prompt_managers(
    url: impl Into<String>,
    lease: Duration,
) -> (LockManager, LockManager) {
    let url = url.into();
    (
        prompt_manager(&*url, lease).await,
        prompt_manager(url, lease).await,
    )
}

/// Expects that no lock is left in these managers and on the server within `patience`.
pub(crate) async fn nothing_is_left(
    server: &RedisServer,
    managers: &[&LockManager],
    patience: Duration,
    case: impl Debug,
) {
    let deadline = Instant::now() + patience;
    loop {
        let late = Instant::now() > deadline;
        let snapshots: Vec<Snapshot> = managers.iter().map(|locks| locks.snapshot()).collect();
        let keys = server.cli(&["KEYS", "*"]);
        if snapshots.iter().all(Snapshot::is_idle) && (keys == FENCE || keys.is_empty()) {
            return;
        }
        if late {
            let queues = keys
                .lines()
                .filter(|key| key.ends_with("%queue") || key.ends_with("%tagged-queue"));
            let members = |queue| server.cli(&["ZRANGE", queue, "0", "-1", "WITHSCORES"]);
            let queues: Vec<String> = queues.map(members).collect();
            panic!("{case:?}: left after {patience:?}: {snapshots:?}, {keys:?}, queues {queues:?}");
        }
        sleep(MS).await;
    }
}

/// The last subscription ends as well.
pub(crate) async fn no_subscription_is_left(server: &RedisServer) {
    within(5 * SECOND, "no subscription", || {
        server.cli(&["PUBSUB", "CHANNELS"]).is_empty()
    })
    .await;
}

/// Returns the number of subscribers to the releases of a key.
pub(crate) fn subscribers(server: &RedisServer, key: &str) -> u64 {
    let channel = format!("redisson_lock__channel:{{lock:{key}}}");
    let answer = server.cli(&["PUBSUB", "NUMSUB", &channel]);
    let count = answer.lines().last().and_then(|line| line.parse().ok());
    count.expect("a count")
}

/// Returns the remaining TTL of a key in milliseconds, or -2 if it does not exist.
pub(crate) fn pttl(server: &RedisServer, key: &str) -> i64 {
    let answer = server.cli(&["PTTL", &format!("lock:{key}")]);
    answer.parse().expect("a number")
}

/// Returns the calls of `EVALSHA`, including those that the ACL rejected.
pub(crate) fn scripts_called(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let field = |name: &str| -> u64 {
        let mut fields = line.unwrap_or_default().split(',');
        let value = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        value.map_or(0, |value| value.parse().expect("a count"))
    };
    field("calls") + field("rejected_calls")
}

/// A record of all commands that the server received, in order and with their clients.
pub(crate) struct Monitor {
    stream: TcpStream,
    lines: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
    port: u16,
}

impl Monitor {
    pub(crate) fn start(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server");
        stream.write_all(b"MONITOR\r\n").expect("it listens");
        let mut reader = BufReader::new(stream.try_clone().expect("the same socket"));
        let mut ok = String::new();
        reader.read_line(&mut ok).expect("a reply");
        assert_eq!(ok, "+OK\r\n");
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push(line);
            }
        });
        Self {
            stream,
            lines,
            reader,
            port: server.port(),
        }
    }

    /// Returns the address of the server.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns `true` if the server has ended or has closed the connection.
    pub(crate) fn is_over(&self) -> bool {
        self.reader.is_finished()
    }

    /// Returns the commands so far, without those of scripts.
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = lines.iter().filter(|line| !line.contains(" lua] "));
        sent.cloned().collect()
    }

    /// Returns the commands so far, including those of scripts.
    pub(crate) fn all_lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.clone()
    }

    /// Returns the commands so far that contain a text. A test that asks often copies only these.
    pub(crate) fn lines_with(&self, text: &str) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let with_text = lines.iter().filter(|line| line.contains(text));
        with_text.cloned().collect()
    }

    /// Returns all commands from before this call.
    pub(crate) async fn lines_until_now(&self, server: &RedisServer) -> Vec<String> {
        let mark = uuid::Uuid::new_v4().to_string();
        server.cli(&["ECHO", &mark]);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut lines = self.lines();
            if let Some(end) = lines.iter().position(|line| line.contains(&mark)) {
                lines.truncate(end);
                return lines;
            }
            assert!(Instant::now() < deadline, "the monitor went silent");
            sleep(MS).await;
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        drop(self.stream.shutdown(Shutdown::Both));
    }
}

/// Connects with timeouts that a busy machine can exceed, in a test with another subject.
pub(crate) async fn connected(builder: impl Fn() -> RedisBackendBuilder) -> RedisBackend {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match builder().connect().await {
            Ok(backend) => return backend,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

/// Waits for a connection: a dial that failed during a pause of the server rejects commands for a moment.
pub(crate) async fn reconnected(backend: &RedisBackend) {
    let (deadline, key) = (Instant::now() + PATIENCE, LockKey::new("any"));
    while let Err(error) = backend.inspect(&key).await {
        assert!(Instant::now() < deadline, "{error}");
        sleep(10 * MS).await;
    }
}
