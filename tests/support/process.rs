//! Processes that end when dropped, and the server program: its path, a free port, its log.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::preloaded::Preloaded;

/// The length of the log in a panic message.
const LAST_LINES: usize = 40;

/// Returns `redis-server`, or the value of the variable `SERVER`.
pub(crate) fn program() -> String {
    std::env::var("SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// Returns the major version of the server program. Redis versions end at 8, and Valkey versions begin at
/// 8.
pub(crate) fn version() -> u32 {
    static VERSION: OnceLock<u32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let said = Command::new(program()).arg("--version").output();
        let said = said.expect("the server program runs").stdout;
        let said = String::from_utf8_lossy(&said);
        let version = said.split_whitespace().find_map(|it| it.strip_prefix("v="));
        let major = version.and_then(|version| version.split('.').next()?.parse().ok());
        major.unwrap_or_else(|| panic!("no version: {said}"))
    })
}

/// Returns a free port that nothing else is given while its server is down, so that a killed server finds it free at its
/// restart: systems give ports from 32768 on, and another process of tests begins elsewhere.
pub(crate) fn free_port() -> u16 {
    const PORTS: u32 = 22_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 499 + GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + u16::try_from(number % PORTS).expect("less than 22,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A process that ends with its owner, even if a test panics.
pub(crate) struct Process(Child);

impl Process {
    /// Starts the server program. Its output before it opens its log goes to the file `output`.
    pub(crate) fn start(dir: &Path, args: &[impl AsRef<OsStr>], clock: Option<&Preloaded>) -> Self {
        let output = File::create(dir.join("output")).expect("a file for the output");
        let mut command = Command::new(program());
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("the same file"))
            .stderr(output);
        if let Some(clock) = clock {
            clock.preload(&mut command);
        }
        Self::of(command.spawn().unwrap_or_else(|error| {
            panic!(
                "these tests need a Redis server: `{}` cannot be run ({error}); install it, or name another in the variable SERVER",
                program()
            )
        }))
    }

    /// Takes a process over.
    pub(crate) fn of(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("a child").is_some()
    }

    /// Kills the process, even if it is stopped.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("it can be killed");
        self.0.wait().expect("it has ended");
    }

    /// Kills the process and its children, even if they are stopped, unless it has ended.
    pub(crate) fn kill_all(&mut self) {
        if self.has_ended() {
            return;
        }
        // Then it has no new ones.
        self.signal("-STOP");
        let children = self.children();
        self.kill();
        signal_each("-KILL", &children);
    }

    /// Signals the process and then its children.
    pub(crate) fn signal_all(&self, signal: &str) {
        self.signal(signal);
        signal_each(signal, &self.children());
    }

    fn children(&self) -> String {
        let id = self.0.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        children.expect("a process")
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.0.id());
    }
}

/// Sends a signal, such as `-STOP`, to a process.
pub(crate) fn signal(name: &str, process: impl Display) {
    let status = Command::new("kill")
        .args([name, &process.to_string()])
        .status()
        .expect("`kill` runs");
    assert!(status.success(), "the process takes {name}");
}

fn signal_each(signal: &str, processes: &str) {
    // Some may have ended.
    let output = Command::new("kill")
        .arg(signal)
        .args(processes.split_whitespace())
        .output();
    drop(output.expect("`kill` runs"));
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process also accepts the kill. A process that has ended needs none.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns the end of the output of the server in `dir`.
pub(crate) fn log(dir: &Path) -> String {
    let read = |name| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let all = read("output") + &read("log");
    let lines: Vec<_> = all.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}
