//! A Redis server of one's own, on a free port, gone when dropped.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{Connection, ConnectionLike as _, Value};
use tempfile::TempDir;
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(20);

/// A running server. The program is `redis-server`, or what the variable `SERVER` names.
pub(crate) struct RedisServer {
    child: Reaped,
    port: u16,
    dir: TempDir,
    options: Vec<String>,
    /// Over the Unix socket, opened before any test takes permissions away.
    admin: Mutex<Option<Connection>>,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts with more options, such as `["--maxmemory", "3mb"]`.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the server");
        let options: Vec<_> = options.iter().map(ToString::to_string).collect();
        for _ in 0..10 {
            // Between here and the server's bind another process may take the port: then the
            // server exits, and the next one is tried.
            let port = free_port();
            if let Some((child, admin)) = launch(&dir, port, &options) {
                return Self {
                    child,
                    port,
                    dir,
                    options,
                    admin: Mutex::new(Some(admin)),
                };
            }
        }
        panic!("`{}` does not start: {}", program(), log(&dir));
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn url_of(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket(&self.dir)
    }

    pub(crate) fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Ends the server as a crash does.
    pub(crate) fn kill(&mut self) {
        self.continue_process();
        self.child.0.kill().expect("the server can be killed");
        self.child.0.wait().expect("the server has ended");
        *self.admin() = None;
    }

    /// Kills the server and starts it on the same port without any data.
    pub(crate) fn restart_empty(&mut self) {
        self.kill();
        for entry in std::fs::read_dir(self.dir.path()).expect("the server's directory") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "rdb") {
                std::fs::remove_file(path).expect("the data can be removed");
            }
        }
        self.launch_again();
    }

    /// Saves, kills the server and starts it on the same port with what it had.
    pub(crate) fn restart_with_data(&mut self) {
        self.cli(&["SAVE"]);
        self.kill();
        self.launch_again();
    }

    /// Starts a killed server on its port again.
    pub(crate) fn launch_again(&mut self) {
        let (child, admin) = launch(&self.dir, self.port, &self.options)
            .unwrap_or_else(|| panic!("no restart: {}", log(&self.dir)));
        self.child = child;
        *self.admin() = Some(admin);
    }

    /// The server stands still; its connections stay open.
    pub(crate) fn stop_process(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn continue_process(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.child.0.id().to_string()])
            .status()
            .expect("`kill` runs");
        assert!(status.success(), "the server takes {signal}");
    }

    /// Runs a command as administrator and returns its answer as text: elements of arrays on lines
    /// of their own, nil as nothing.
    pub(crate) fn cli(&self, args: &[&str]) -> String {
        match self.command(args) {
            Ok(answer) => answer,
            Err(error) => panic!("{args:?}: {error}"),
        }
    }

    pub(crate) fn command(&self, args: &[&str]) -> redis::RedisResult<String> {
        let mut command = redis::cmd(args[0]);
        command.arg(&args[1..]);
        let mut admin = self.admin();
        let connection = admin.as_mut().expect("the server runs");
        let answer = connection.req_command(&command)?.extract_error()?;
        Ok(text(&answer))
    }

    /// The lines of `CLIENT LIST` of a type (`normal`, `pubsub`), without the administrator's.
    pub(crate) fn clients(&self, kind: &str) -> Vec<String> {
        let id = self.cli(&["CLIENT", "ID"]);
        let admin = format!("id={id} ");
        let list = self.cli(&["CLIENT", "LIST", "TYPE", kind]);
        let others = list.lines().filter(|line| !line.starts_with(&admin));
        others.map(ToOwned::to_owned).collect()
    }

    /// How often a command (`evalsha`, `script|load`) was called since the start.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let stats = self.cli(&["INFO", "commandstats"]);
        let prefix = format!("cmdstat_{command}:calls=");
        stats
            .lines()
            .find_map(|line| line.strip_prefix(&prefix)?.split(',').next()?.parse().ok())
            .unwrap_or(0)
    }

    fn admin(&self) -> std::sync::MutexGuard<'_, Option<Connection>> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process that does not outlive its owner, also when a test panics.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // A stopped process takes the kill all the same; one that has ended needs none.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn program() -> String {
    std::env::var("SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

fn socket(dir: &TempDir) -> PathBuf {
    dir.path().join("redis.sock")
}

fn log(dir: &TempDir) -> String {
    std::fs::read_to_string(dir.path().join("log")).unwrap_or_default()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its number").port()
}

/// `None` when the server exits, as it does when its port is taken.
fn launch(dir: &TempDir, port: u16, options: &[String]) -> Option<(Reaped, Connection)> {
    drop(std::fs::remove_file(socket(dir)));
    let mut child = Reaped(Command::new(program())
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .arg("--unixsocket")
        .arg(socket(dir))
        .arg("--dir")
        .arg(dir.path())
        .args(["--logfile", "log", "--save", "", "--appendonly", "no"])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!(
                "these tests need a Redis server: `{}` cannot be run ({error}); install it, or name another in the variable SERVER",
                program()
            )
        }));
    let url = format!("redis+unix://{}", socket(dir).display());
    let client = redis::Client::open(url).expect("a socket's URL");
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if child.0.try_wait().expect("a child").is_some() {
            return None;
        }
        if let Ok(mut connection) = client.get_connection()
            && connection.check_connection()
        {
            return Some((child, connection));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!(
        "the server does not answer within {PATIENCE:?}: {}",
        log(dir)
    );
}

fn text(value: &Value) -> String {
    match value {
        Value::Nil => String::new(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join("\n"),
        other => format!("{other:?}"),
    }
}
