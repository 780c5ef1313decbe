//! The process that is suspended: this program, started again with a URL.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{ChildStderr, Command, Stdio};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout};
use tower_lock::LockGuard;

use crate::support::engine::{MS, PATIENCE, prompt_manager};
use crate::support::process::Process;
use crate::support::suspended_clock::SuspendedClock;

const URL: &str = "URL_FOR_THE_SUSPENDED_PROCESS";
const PREFIX: &str = "suspended: ";

/// One key has a fixed lease, and the watchdog renews the other. Both expire during the suspend.
pub(crate) const KEYS: [&str; 2] = ["leased", "renewed"];
/// The lease of this key outlasts the suspend, which exceeds its longest hold.
const LIMITED: &str = "limited";
pub(crate) const HELD: usize = KEYS.len() + 1;
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// Does nothing unless it is the suspended process.
#[test]
fn suspended_process() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (guards, lost) = runtime.block_on(async {
        let locks = prompt_manager(url, LEASE).await;
        let leased = locks.acquire(KEYS[0]).lease(LEASE);
        let renewed = locks.acquire(KEYS[1]);
        let limited = locks.acquire(LIMITED).lease(4 * LEASE).max_hold(LEASE);
        let guards: [LockGuard; HELD] = [
            leased.await.unwrap(),
            renewed.await.unwrap(),
            limited.await.unwrap(),
        ];
        let lost = guards.each_ref().map(|guard| tokio::spawn(guard.lost()));
        (guards, lost)
    });
    // A suspend can begin right after the report.
    let mut last_look = (SystemTime::now(), Instant::now());
    eprintln!("{PREFIX}holds");

    let look = || guards.each_ref().map(|it| (it.is_held(), it.remaining()));
    // A suspend can begin between any two of these lines, so the first look after it decides.
    let (seen, ran) = loop {
        std::thread::sleep(5 * MS);
        let this_look = (SystemTime::now(), Instant::now());
        let slept = last_look.0.elapsed().unwrap() > LEASE;
        let seen = look();
        if slept || seen.iter().any(|(is_held, _)| !is_held) {
            assert!(last_look.0.elapsed().unwrap() > LEASE, "lost: {seen:?}");
            break (seen, last_look.1.elapsed());
        }
        last_look = this_look;
    };
    eprintln!("{PREFIX}clock paused: {}", ran < LEASE / 3);
    eprintln!("{PREFIX}held, remaining: {seen:?}");
    let all_lost = async {
        for lost in lost {
            lost.await.unwrap();
        }
    };
    let resolved = runtime.block_on(async { timeout(100 * MS, all_lost).await.is_ok() });
    eprintln!("{PREFIX}lost() resolved: {resolved}");
    // The process stays until it is killed.
    std::thread::sleep(PATIENCE);
}

pub(crate) struct Child {
    process: Process,
    clock: SuspendedClock,
    output: Lines<BufReader<ChildStderr>>,
}

impl Child {
    pub(crate) fn start(url: &str) -> Self {
        let clock = SuspendedClock::new();
        let mut command = Command::new(std::env::current_exe().unwrap());
        clock.preload(&mut command);
        let mut process = command
            .args(["--exact", "child::suspended_process", "--nocapture"])
            .env(URL, url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stderr.take().unwrap()).lines();
        Self {
            process: Process::of(process),
            clock,
            output,
        }
    }

    /// Returns its next report.
    pub(crate) fn report(&mut self) -> String {
        let mut others = Vec::new();
        for line in &mut self.output {
            let line = line.unwrap();
            if let Some(report) = line.strip_prefix(PREFIX) {
                return report.to_owned();
            }
            others.push(line);
        }
        panic!("it has ended:\n{}", others.join("\n"));
    }

    pub(crate) fn suspend(&mut self) {
        self.process.signal("-STOP");
        self.clock.stop();
    }

    pub(crate) fn resume(&mut self) {
        self.clock.resume();
        self.process.signal("-CONT");
    }
}
