//! Processes of the example, and the faults that they meet.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::support::engine::PATIENCE;
use crate::support::example::program;
use crate::support::process::signal;
use crate::{LEASE, millis};

pub(crate) struct Orders {
    program: PathBuf,
    locks: String,
    database: PathBuf,
    /// The current or last address of each process.
    addresses: Mutex<Vec<SocketAddr>>,
    /// The writes and claims that a process reported as rejected.
    refused: AtomicU64,
}

impl Orders {
    pub(crate) fn new(locks: String, database: PathBuf) -> Self {
        Self {
            program: program("orders"),
            locks,
            database,
            addresses: Mutex::new(Vec::new()),
            refused: AtomicU64::new(0),
        }
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn address(&self, number: usize) -> SocketAddr {
        self.addresses.lock().unwrap()[number]
    }
}

/// A process that is killed when dropped.
pub(crate) struct Process {
    world: Arc<Orders>,
    number: usize,
    child: Child,
    /// Reads its errors to the end.
    complaints: JoinHandle<()>,
    /// It stays open for the last lines.
    _said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) async fn start(world: &Arc<Orders>, number: usize) -> Self {
        let mut child = Command::new(&world.program)
            .args(["--port", "0", "--lease", &LEASE.as_secs().to_string()])
            .args(["--locks", &world.locks])
            .arg("--database")
            .arg(&world.database)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut complaints = BufReader::new(child.stderr.take().unwrap()).lines();
        let counts = Arc::clone(world);
        let complaints = tokio::spawn(async move {
            while let Some(line) = complaints.next_line().await.unwrap() {
                if line.contains("stale holder") {
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                } else {
                    eprintln!("process {number}: {line}");
                }
            }
        });
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = timeout(PATIENCE, async {
            loop {
                let line = said.next_line().await.unwrap().expect("it starts");
                if let Some((_, url)) = line.split_once("http://") {
                    return url.split('/').next().unwrap().parse().unwrap();
                }
            }
        });
        let address = address.await.expect("it starts in time");
        let mut addresses = world.addresses.lock().unwrap();
        if number < addresses.len() {
            addresses[number] = address;
        } else {
            addresses.push(address);
        }
        drop(addresses);
        Self {
            world: Arc::clone(world),
            number,
            child,
            complaints,
            _said: said,
        }
    }

    fn signal(&self, name: &str) {
        signal(name, self.child.id().expect("it runs"));
    }

    /// Stops the process with the signal of Ctrl-C.
    pub(crate) async fn interrupt(mut self) {
        self.signal("-INT");
        let ended = timeout(PATIENCE, self.child.wait())
            .await
            .expect("it ends in time");
        assert!(ended.unwrap().success());
        self.complaints.await.unwrap();
    }
}

#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) kills: usize,
    pub(crate) stops: usize,
}

/// Kills and stops a process until the end. The process then runs.
pub(crate) async fn trouble(
    mut process: Process,
    mut random: Rng,
    end: Instant,
) -> (Process, Faults) {
    let mut faults = Faults::default();
    // A short run has a fault of each kind as well.
    let mut kills = process.number.is_multiple_of(2);
    loop {
        sleep(millis(&mut random, 500..3_000)).await;
        if Instant::now() >= end {
            return (process, faults);
        }
        if kills {
            process.child.kill().await.unwrap();
            faults.kills += 1;
            sleep(millis(&mut random, 0..1_000)).await;
            process.complaints.await.unwrap();
            process = Process::start(&process.world, process.number).await;
        } else {
            process.signal("-STOP");
            sleep(LEASE + millis(&mut random, 100..2_000)).await;
            process.signal("-CONT");
            faults.stops += 1;
        }
        kills = random.bool();
    }
}
