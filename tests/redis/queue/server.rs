//! A Redis server whose wall clock moves only when the test says so.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use redis::{Client, Connection};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::support::preloaded::Preloaded;
use crate::support::process::{Process, program, version};

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct FrozenServer {
    _process: Process,
    dir: TempDir,
    clock: Preloaded,
    now: i64,
}

impl FrozenServer {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = i64::try_from(since_epoch.unwrap().as_millis()).unwrap();
        let clock = Preloaded::build("frozen", now);
        // Older versions allow it, and do not know the option.
        let debug = ["--enable-debug-command", "yes"];
        let debug = debug.iter().filter(|_| version() >= 7);
        let mut command = Command::new(program());
        command
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .args(["--unixsocket", "socket", "--dir", "."])
            .args(debug)
            .current_dir(dir.path())
            .stdout(Stdio::null());
        clock.preload(&mut command);
        let server = Self {
            _process: Process::of(command.spawn().unwrap()),
            dir,
            clock,
            now,
        };
        let deadline = Instant::now() + PATIENCE;
        while server.client().get_connection().is_err() {
            assert!(Instant::now() < deadline, "the server does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        // In the background, Redis 8.2 deletes a key in its last millisecond, which commands still find. This
        // millisecond lasts as long as the clock stands.
        let mut active_expiry = redis::cmd("DEBUG");
        active_expiry.arg("SET-ACTIVE-EXPIRE").arg(0);
        active_expiry.exec(&mut server.connect()).unwrap();
        server
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn client(&self) -> Client {
        Client::open(format!("redis+unix://{}", self.socket().display())).unwrap()
    }

    pub(crate) fn connect(&self) -> Connection {
        self.client().get_connection().unwrap()
    }

    /// Opens a connection that has subscribed to these channels.
    pub(crate) fn subscribe(&self, channels: &[String]) -> Connection {
        self.subscribe_by(&["SUBSCRIBE"], channels)
    }

    /// As [`subscribe`](Self::subscribe), by each of these commands.
    pub(crate) fn subscribe_by(&self, commands: &[&str], channels: &[String]) -> Connection {
        let mut connection = self.connect();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        for command in commands {
            let mut subscribe = redis::cmd(command);
            let subscribe = subscribe.arg(channels).get_packed_command();
            connection.send_packed_command(&subscribe).unwrap();
            for _ in channels {
                connection.recv_response().unwrap();
            }
        }
        connection
    }

    /// Returns the server's time in milliseconds.
    pub(crate) fn now(&self) -> i64 {
        self.now
    }

    pub(crate) fn advance(&mut self, millis: i64) {
        self.now += millis;
        self.clock.set(self.now);
        self.await_clock();
    }

    /// Waits until the server has read its clock. Valkey 9.1 reads it once per millisecond of the processor's
    /// counter, and adds the counter's progress in between.
    fn await_clock(&self) {
        let mut connection = self.connect();
        let deadline = Instant::now() + PATIENCE;
        let mut time = || {
            let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(&mut connection).unwrap();
            seconds * 1_000 + micros / 1_000
        };
        while time() != self.now {
            assert!(Instant::now() < deadline, "the clock of the server stands");
        }
    }
}
