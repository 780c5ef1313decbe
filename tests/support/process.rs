//! The server program: where it is, a port for it, and its process, gone when dropped.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How much of a log a panic shows.
const LAST_LINES: usize = 40;

/// `redis-server`, or what the variable `SERVER` names.
pub(crate) fn program() -> String {
    std::env::var("SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// The major version of the server program. Those of Redis end at 8, and those of Valkey begin at 8.
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

/// A port that nobody uses, and that this process has not given to anybody before: a server that
/// was killed finds its port free when it comes back.
pub(crate) fn free_port() -> u16 {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its number").port();
        if given.insert(port) {
            return port;
        }
    }
}

/// A process that does not outlive its owner, also when a test panics.
pub(crate) struct Process(Child);

impl Process {
    /// Starts the server program. What it says before it opens its log goes to a file `output`.
    pub(crate) fn start(dir: &Path, args: &[impl AsRef<OsStr>]) -> Self {
        let output = File::create(dir.join("output")).expect("a file for the output");
        let child = Command::new(program())
            .args(args)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("the same file"))
            .stderr(output)
            .spawn();
        Self(child.unwrap_or_else(|error| {
            panic!(
                "these tests need a Redis server: `{}` cannot be run ({error}); install it, or name another in the variable SERVER",
                program()
            )
        }))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("a child").is_some()
    }

    /// Ends the process as a crash does, also one that stands still.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("the server can be killed");
        self.0.wait().expect("the server has ended");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.0.id().to_string()])
            .status()
            .expect("`kill` runs");
        assert!(status.success(), "the server takes {signal}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped process takes the kill all the same; one that has ended needs none.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The end of what the server in `dir` has said.
pub(crate) fn log(dir: &Path) -> String {
    let read = |name| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let all = read("output") + &read("log");
    let lines: Vec<_> = all.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}
