//! Another process, which keeps the leases of keys that it repeats: this program, started again.

use std::io::{BufRead as _, BufReader, Write as _, stdin};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower_lock::backend::{Backend as _, Hints};
use tower_lock::{ErrorKind, LockGuard, LockManager, RedisBackend};

use crate::load::{millis, random};
use crate::referee::{Hold, StallDetector, silence};
use crate::run::Run;
use crate::support::engine::{MS, SECOND, eventually};
use crate::support::process::Process;

/// The environment variable with the URL for commands, the one for messages, the lease in milliseconds, and the keys.
const ORDER: &str = "KEYS_FOR_A_KEEPER";

/// The longest time.
pub(crate) const KEEP: Duration = Duration::from_millis(100);
/// The longest hold.
pub(crate) const HOLD: Duration = Duration::from_millis(3);

/// Runs the child process, if this is one. It prints one line per begin and end of a hold, and per recovery.
pub(crate) fn main() -> bool {
    let Ok(order) = std::env::var(ORDER) else {
        return false;
    };
    let mut order = order.split(' ');
    let urls = [(); 2].map(|()| order.next().expect("a URL"));
    let lease = order.next().and_then(|lease| lease.parse().ok());
    let lease = Duration::from_millis(lease.expect("a lease"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let stalls = StallDetector::start();
        let backend = RedisBackend::builder(urls[0]).notify(urls[1]);
        let backend = backend.connect().await.expect("the server is there");
        tokio::spawn(report_recoveries(backend.recoveries(), stalls.clone()));
        let locks = LockManager::builder(backend);
        let locks = locks.watchdog_timeout(lease).keep_released(KEEP).build();
        let locks = locks.expect("valid settings");
        println!("name {}", silence::identity(&locks));
        let mut repeats = JoinSet::new();
        for key in order {
            repeats.spawn(repeat(locks.clone(), key.to_owned()));
        }
        let end = tokio::task::spawn_blocking(|| stdin().lines().next());
        let end = end
            .await
            .expect("no panic")
            .expect("a word")
            .expect("a word");
        let begin = Instant::now();
        let is_idle = match end.as_str() {
            "shutdown" => locks.shutdown(SECOND).await.is_idle(),
            _ => {
                repeats.shutdown().await;
                drop(locks);
                true
            }
        };
        let took = begin.elapsed();
        let net = took.saturating_sub(stalls.delay(begin, Instant::now()));
        println!("ended {is_idle} {}", net.as_micros());
    });
    // The process stays until it is killed.
    std::thread::sleep(60 * SECOND);
    true
}

/// Reports for each recovery when the watchdog must have noticed it too.
async fn report_recoveries(mut recoveries: Hints, stalls: StallDetector) {
    const REACTION: Duration = Duration::from_millis(5);
    loop {
        recoveries.next().await;
        let (at, hint) = (micros_now(), Instant::now());
        // The stall detector looks at the thread of the watchdog every 20 ms.
        sleep(60 * MS).await;
        let stalled = stalls.delay(hint, Instant::now());
        println!("recovered {}", at + (REACTION + stalled).as_micros());
    }
}

/// Acquires the key again and again, mostly within the time for which its lease is kept.
async fn repeat(locks: LockManager, key: String) {
    loop {
        match locks.acquire(&*key).wait(3 * SECOND).await {
            Ok(guard) => {
                let held = Reported::begins(guard);
                sleep(millis(0..3)).await;
                drop(held);
            }
            Err(error) if error.kind() == ErrorKind::ShuttingDown => return,
            Err(_) => {}
        }
        let pause = match random(100) {
            0 => 8 * KEEP,
            _ => millis(0..20),
        };
        sleep(pause).await;
    }
}

/// A hold whose begin and end are reported.
struct Reported(LockGuard);

impl Reported {
    fn begins(guard: LockGuard) -> Self {
        say("took", &guard);
        Self(guard)
    }
}

impl Drop for Reported {
    fn drop(&mut self) {
        // The guard is dropped after this.
        say("left", &self.0);
    }
}

fn say(word: &str, guard: &LockGuard) {
    let (at, left) = (micros_now(), guard.remaining());
    let (key, token) = (guard.key().as_str(), guard.fencing_token());
    println!("{word} {key} {token} {at} {}", left.as_micros());
}

fn micros_now() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_micros()
}

pub(crate) struct Keeper {
    process: Process,
    input: ChildStdin,
    seen: Arc<Mutex<Seen>>,
}

/// The lines of the process.
#[derive(Default)]
struct Seen {
    name: String,
    holds: Vec<Hold>,
    recoveries: Vec<Instant>,
    /// Whether nothing was left, and the time that this took.
    ended: Option<(bool, Duration)>,
}

impl Keeper {
    /// Starts a process that the referee knows by this number.
    pub(crate) async fn start(run: &mut Run, url: &str, keys: &[&str], number: usize) -> Self {
        let (lease, messages) = (run.row.lease, run.server().url());
        let lease_ms = lease.as_millis();
        let order = format!("{url} {messages} {lease_ms} {}", keys.join(" "));
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .env(ORDER, order)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started again");
        let input = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let keeper = Self {
            process: Process::of(process),
            input,
            seen: Arc::default(),
        };
        let (seen, begin) = (Arc::clone(&keeper.seen), run.referee.start);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let moment = |at: Duration| {
                    let since = (UNIX_EPOCH + at).duration_since(begin.1);
                    begin.0 + since.unwrap_or_default()
                };
                let hold = |key: &str, token| Hold::begins(key, number, token, (lease, true));
                of(&seen).hears(&line, moment, hold);
            }
        });
        eventually("it connects", || !keeper.name().is_empty()).await;
        keeper
    }

    /// Returns the name of its manager, which is the prefix of all its leases.
    pub(crate) fn name(&self) -> String {
        of(&self.seen).name.clone()
    }

    /// Returns its holds.
    pub(crate) fn holds(&self) -> Vec<Hold> {
        of(&self.seen).holds.clone()
    }

    /// Returns when it noticed a recovery of its connection, if that was after `moment`.
    pub(crate) fn recovered_after(&self, moment: Instant) -> Option<Instant> {
        let seen = of(&self.seen);
        seen.recoveries.iter().copied().find(|at| *at > moment)
    }

    pub(crate) fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Returns `true` if it has neither been killed nor ended its manager.
    pub(crate) fn runs(&mut self) -> bool {
        !self.process.has_ended() && of(&self.seen).ended.is_none()
    }

    /// Ends the manager: `shutdown`, or `drop` of the last handle. Returns whether it was idle, and the time that this took.
    pub(crate) async fn end(&mut self, how: &str) -> (bool, Duration) {
        writeln!(self.input, "{how}").expect("it listens");
        eventually("it ends", || of(&self.seen).ended.is_some()).await;
        of(&self.seen).ended.expect("it has ended")
    }
}

impl Seen {
    fn hears(
        &mut self,
        line: &str,
        moment: impl Fn(Duration) -> Instant,
        hold: impl Fn(&str, i64) -> Hold,
    ) {
        let words: Vec<_> = line.split(' ').collect();
        let micros = |word: &str| Duration::from_micros(word.parse().expect("a number"));
        match words[..] {
            ["name", name] => name.clone_into(&mut self.name),
            ["recovered", at] => self.recoveries.push(moment(micros(at))),
            ["ended", is_idle, took] => self.ended = Some((is_idle == "true", micros(took))),
            [word, key, token, at, left] => {
                let mut said = hold(key, token.parse().expect("a token"));
                let (now, left) = (moment(micros(at)), micros(left));
                (said.asked, said.granted, said.confirmed) = (now, now, now);
                let is_held = !left.is_zero();
                said.deadlines.push(now + left);
                let is_same = |it: &&mut Hold| it.key == key && it.token == said.token;
                match self.holds.iter_mut().rev().find(is_same) {
                    Some(hold) => {
                        hold.released = Some(now);
                        if is_held {
                            hold.confirmed = now;
                            hold.deadlines.append(&mut said.deadlines);
                        }
                    }
                    // A process that was stopped after the grant has lost the lock already.
                    None if word == "took" && is_held => self.holds.push(said),
                    None => {}
                }
            }
            _ => panic!("it said: {line}"),
        }
    }
}

fn of(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
