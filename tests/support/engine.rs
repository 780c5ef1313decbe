//! Managers on a real server, and how to hold them to their times on a machine that is busy.

use std::fmt::Debug;
use std::future::Future;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpStream};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::poll;
use tokio::time::{Instant, sleep, sleep_until};
use tower_lock::{Acquire, Error, Held, LockManager, RedisBackend, Snapshot};

use super::redis_server::RedisServer;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// For what has no time of its own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The one key that may stay.
pub(crate) const FENCE: &str = "lock:{fencing-token}%";

/// What a process of its own would be: own connections, own queue, own identity.
pub(crate) async fn manager(url: impl Into<String>, lease: Duration) -> LockManager {
    let backend = RedisBackend::builder(url).connect().await;
    LockManager::builder(backend.expect("the server is there"))
        .watchdog_timeout(lease)
        .max_waiters_per_key(20_000)
        .build()
        .expect("valid settings")
}

/// The outcome of `future`, which must be there at `deadline`.
///
/// The future is looked at before the clock, so a machine that stands still for a while is late with
/// both and fails nobody; a future that waits for something else than its own deadline does fail.
pub(crate) async fn by<F: Future>(deadline: Instant, what: &str, future: F) -> F::Output {
    tokio::select! {
        biased;
        outcome = future => outcome,
        () = sleep_until(deadline) => panic!("{what}: late"),
    }
}

/// Waits for the loss of a lock, which must be told when its time is over and at most 10 ms later.
pub(crate) async fn lost_at_its_deadline(held: &Held) {
    let overdue = async {
        loop {
            let end = Instant::now() + held.remaining();
            sleep_until(end + 10 * MS).await;
            // A renewal may have moved the end.
            if !held.is_held() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = held.lost() => assert!(!held.is_held()),
        () = overdue => panic!("the loss was told late"),
    }
}

/// The error of an acquire that must fail when its wait is over: not before, and at most 50 ms
/// after.
pub(crate) async fn fails_at_its_deadline(acquire: Acquire, wait: Duration) -> Error {
    let mut acquiring = pin!(acquire.wait(wait).into_future());
    let start = Instant::now();
    assert!(poll!(&mut acquiring).is_pending(), "nothing to wait for");
    // The wait counts from the first poll, which is over by now.
    let deadline = Instant::now() + wait + 50 * MS;
    let error = by(deadline, "the end of a wait", acquiring).await;
    let waited = start.elapsed();
    assert!(waited >= wait, "gave up after {waited:?}");
    error.expect_err("somebody else has it")
}

/// Asks until it is so.
pub(crate) async fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    within(PATIENCE, what, is_so).await;
}

/// Asks until it is so, for so long.
pub(crate) async fn within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    loop {
        // Time first: an answer that took long is still an answer.
        let late = Instant::now() > deadline;
        if is_so() {
            return;
        }
        assert!(!late, "not within {patience:?}: {what}");
        sleep(5 * MS).await;
    }
}

/// Nothing is left of any lock, in these managers and on the server, within `patience`.
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
            let queues = keys.lines().filter(|key| key.ends_with("%queue"));
            let members = |queue| server.cli(&["ZRANGE", queue, "0", "-1", "WITHSCORES"]);
            let queues: Vec<String> = queues.map(members).collect();
            panic!("{case:?}: left after {patience:?}: {snapshots:?}, {keys:?}, queues {queues:?}");
        }
        sleep(MS).await;
    }
}

/// The last subscription goes, too.
pub(crate) async fn no_subscription_is_left(server: &RedisServer) {
    within(5 * SECOND, "no subscription", || {
        server.cli(&["PUBSUB", "CHANNELS"]).is_empty()
    })
    .await;
}

/// How many subscribe to the releases of a key.
pub(crate) fn subscribers(server: &RedisServer, key: &str) -> u64 {
    let channel = format!("redisson_lock__channel:{{lock:{key}}}");
    let answer = server.cli(&["PUBSUB", "NUMSUB", &channel]);
    let count = answer.lines().last().and_then(|line| line.parse().ok());
    count.expect("a count")
}

/// How long the server keeps a key, in milliseconds; -2 for one that is not there.
pub(crate) fn pttl(server: &RedisServer, key: &str) -> i64 {
    let answer = server.cli(&["PTTL", &format!("lock:{key}")]);
    answer.parse().expect("a number")
}

/// Calls of `EVALSHA`, those included that the ACL refused.
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

/// Everything the server is sent, by whom, in order.
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
        reader.read_line(&mut ok).expect("an answer");
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

    /// Where the server is.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The server is gone, or has ended the connection.
    pub(crate) fn is_over(&self) -> bool {
        self.reader.is_finished()
    }

    /// What was sent so far, without the commands of scripts.
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = lines.iter().filter(|line| !line.contains(" lua] "));
        sent.cloned().collect()
    }

    /// What was sent so far, commands of scripts included.
    pub(crate) fn all_lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.clone()
    }

    /// What was sent before this call, and all of it.
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
