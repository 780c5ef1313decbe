//! Another process: this program, started again to hold locks until it is stopped or killed.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime};

use tokio::time::timeout;
use tower_lock::{LockManager, Quorum, RedisBackend};

use crate::support::engine::{MS, manager};
use crate::support::process::Process;
use crate::support::suspended_clock::SuspendedClock;

/// The environment variable with the URL or those of a quorum, the lease in milliseconds, and the keys.
const ORDER: &str = "LOCKS_FOR_ANOTHER_PROCESS";

/// Precedes a key that the process acquires as a reader.
pub(crate) const READING: &str = "reading:";

/// Precedes a key of which the process acquires one of two permits.
pub(crate) const PERMIT: &str = "permit:";

/// Runs the child process, if this is one. Each line that it prints begins with a word that names its
/// content.
pub(crate) fn main() -> bool {
    let Ok(order) = std::env::var(ORDER) else {
        return false;
    };
    let mut order = order.split(' ');
    let url = order.next().expect("a URL").to_owned();
    let lease = order.next().and_then(|lease| lease.parse().ok());
    let lease = Duration::from_millis(lease.expect("a lease"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let guards: Vec<_> = runtime.block_on(async {
        let locks = match url.contains(',') {
            true => manager_of_quorum(&url, lease).await,
            false => manager(url, lease).await,
        };
        let mut guards = Vec::new();
        for key in order {
            let acquire = match (key.strip_prefix(READING), key.strip_prefix(PERMIT)) {
                (Some(key), _) => locks.acquire(key).shared(),
                (_, Some(key)) => locks.acquire(key).permits(2),
                (None, None) => locks.acquire(key),
            };
            let guard = acquire.wait_forever().await.expect("a lock");
            let key = guard.key().as_str();
            println!("holds {key} {} {}", guard.fencing_token(), guard.owner());
            guards.push(guard);
        }
        guards
    });
    println!("holds all");
    let held = || guards.iter().filter(|guard| guard.is_held()).count();
    // The loop checks every 5 ms.
    loop {
        // The monotonic clock does not show that the machine was suspended.
        let before = SystemTime::now();
        std::thread::sleep(5 * MS);
        let now_held = held();
        if before.elapsed().is_ok_and(|slept| slept > lease) {
            // The stop may have come in the middle of the count.
            println!("woke {}", held());
            break;
        }
        if now_held < guards.len() {
            println!("lost {}", guards.len() - now_held);
            break;
        }
    }
    for guard in guards {
        let reported = runtime.block_on(async { timeout(50 * MS, guard.lost()).await.is_ok() });
        let refused = runtime
            .block_on(guard.release())
            .is_err_and(|error| error.is_lost());
        println!("reported {reported} {refused}");
    }
    println!("done");
    // The process stays until it is killed.
    std::thread::sleep(Duration::from_secs(60));
    true
}

async fn manager_of_quorum(urls: &str, lease: Duration) -> LockManager {
    let mut quorum = Quorum::builder();
    for url in urls.split(',') {
        let node = RedisBackend::builder(url).connect().await;
        quorum = quorum.node(node.expect("the server is there"));
    }
    let quorum = quorum.build().expect("valid settings");
    let builder = LockManager::builder(quorum).watchdog_timeout(lease);
    builder.build().expect("valid settings")
}

pub(crate) struct Child {
    process: Process,
    /// A clock that excludes the time for which the process is stopped.
    clock: Option<SuspendedClock>,
    says: Lines<BufReader<ChildStdout>>,
}

/// The locks of the other process.
pub(crate) struct Holds {
    pub(crate) key: String,
    pub(crate) token: i64,
    /// The name of its manager, which is the prefix of all its leases.
    pub(crate) manager: String,
}

impl Child {
    /// `url`: one, or those of a quorum with commas between them.
    pub(crate) fn start(
        url: &str,
        lease: Duration,
        keys: &[String],
        clock: Option<SuspendedClock>,
    ) -> Self {
        let order = format!("{url} {} {}", lease.as_millis(), keys.join(" "));
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        if let Some(clock) = &clock {
            clock.preload(&mut command);
        }
        let mut process = command
            .env(ORDER, order)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started again");
        let out = process.stdout.take().expect("piped");
        Self {
            process: Process::of(process),
            clock,
            says: BufReader::new(out).lines(),
        }
    }

    /// Returns the rest of its next line behind `word`, or `None` if the line begins with another word.
    pub(crate) fn says(&mut self, word: &str) -> Option<String> {
        let line = self.says.next().expect("it is alive").expect("a line");
        let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
        (first == word).then(|| rest.to_owned())
    }

    /// Returns the next lock that it holds, or `None` after the last one.
    pub(crate) fn holds(&mut self) -> Option<Holds> {
        let said = self.says("holds").expect("it holds");
        let mut said = said.split(' ');
        Some(Holds {
            key: said.next()?.to_owned(),
            token: said.next()?.parse().ok()?,
            manager: said.next()?.split(':').next()?.to_owned(),
        })
    }

    pub(crate) fn stop(&mut self) {
        self.process.signal("-STOP");
        if let Some(clock) = &mut self.clock {
            clock.stop();
        }
    }

    pub(crate) fn resume(&mut self) {
        if let Some(clock) = &mut self.clock {
            clock.resume();
        }
        self.process.signal("-CONT");
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }
}
