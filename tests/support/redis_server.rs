//! A Redis server of the test, on a free port. It ends when dropped. Sentinels and Cluster nodes are such
//! servers as well.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{Connection, ConnectionLike as _, RedisError, RedisResult, Value};
use tempfile::TempDir;
use tokio::time::Instant;

use super::preloaded::Preloaded;
use super::process::{Process, free_port, log, program, version};

const PATIENCE: Duration = Duration::from_secs(20);

/// The configuration file in the server's directory. A Sentinel stores its state in it, and other servers
/// have none.
const CONFIGURATION: &str = "conf";

/// A placeholder for another port among the options. [`RedisServer::option`] returns the port.
pub(crate) const FREE_PORT: &str = "a free port";

/// The option of a node for a port of its own for connections between nodes. Redis 6 has no such option.
pub(crate) fn node_port() -> &'static [&'static str] {
    match version() {
        ..7 => &[],
        _ => &["--cluster-port", FREE_PORT],
    }
}

/// A running server. The program is `redis-server`, or the value of the variable `SERVER`.
pub(crate) struct RedisServer {
    process: Process,
    stopped: AtomicBool,
    port: u16,
    dir: TempDir,
    options: Vec<String>,
    clock: Option<Preloaded>,
    /// A connection over the Unix socket, opened before a test removes permissions.
    admin: Mutex<Option<Connection>>,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts with more options, such as `["--maxmemory", "3mb"]`.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        Self::try_start(None, options).unwrap_or_else(|log| {
            panic!("`{}` does not start: {log}", program());
        })
    }

    /// Starts with a wall clock of its own, for [`step_clock`](Self::step_clock).
    pub(crate) fn start_with_clock() -> Self {
        let clock = Preloaded::build("stepped", 0);
        let server = Self::launch(None, &[], Some(clock));
        server.unwrap_or_else(|log| panic!("`{}` does not start: {log}", program()))
    }

    /// Sets the wall clock ahead of the machine's by so many milliseconds.
    pub(crate) fn step_clock(&self, millis: i64) {
        let clock = self.clock.as_ref().expect("a clock of its own");
        clock.set(millis);
    }

    /// Starts with the text of a configuration file and more options. Returns the server's output if it
    /// rejects them.
    pub(crate) fn try_start(configuration: Option<&str>, options: &[&str]) -> Result<Self, String> {
        Self::launch(configuration, options, None)
    }

    fn launch(
        configuration: Option<&str>,
        options: &[&str],
        clock: Option<Preloaded>,
    ) -> Result<Self, String> {
        let dir = tempfile::tempdir().expect("a directory for the server");
        if let Some(text) = configuration {
            std::fs::write(dir.path().join(CONFIGURATION), text).expect("a file");
        }
        for _ in 0..10 {
            // Another process may take a port before the server binds it. The server then exits, and the
            // next ports are used.
            let port = free_port();
            let options: Vec<_> = options
                .iter()
                .map(|option| match *option {
                    FREE_PORT => free_port().to_string(),
                    option => option.to_owned(),
                })
                .collect();
            if let Some((process, admin)) = launch(&dir, port, &options, clock.as_ref()) {
                return Ok(Self {
                    process,
                    stopped: AtomicBool::new(false),
                    port,
                    dir,
                    options,
                    clock,
                    admin: Mutex::new(Some(admin)),
                });
            }
        }
        Err(log(dir.path()))
    }

    /// Returns the value of an option of the start.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        value(&self.options, name)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The port for connections between nodes of a cluster.
    pub(crate) fn node_port(&self) -> String {
        match self.option("--cluster-port") {
            Some(port) => port.to_owned(),
            None => (self.port + 10_000).to_string(),
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address())
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

    /// Kills the server.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
        self.stopped.store(false, Ordering::SeqCst);
        *self.admin() = None;
    }

    /// Kills the server and restarts it on the same port without any data.
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

    /// Saves, kills the server and restarts it on the same port with its data.
    pub(crate) fn restart_with_data(&mut self) {
        self.cli(&["SAVE"]);
        self.kill();
        self.launch_again();
    }

    /// Restarts a killed server on its port.
    pub(crate) fn launch_again(&mut self) {
        self.launch_again_with(&[]);
    }

    /// Restarts a killed server on its port with more options.
    pub(crate) fn launch_again_with(&mut self, more: &[&str]) {
        let more = more.iter().map(ToString::to_string);
        let options: Vec<_> = self.options.iter().cloned().chain(more).collect();
        let (process, admin) = launch(&self.dir, self.port, &options, self.clock.as_ref())
            .unwrap_or_else(|| panic!("no restart: {}", self.log()));
        self.process = process;
        *self.admin() = Some(admin);
    }

    /// Pauses the server. Its connections stay open.
    pub(crate) fn stop_process(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.process.signal("-STOP");
    }

    pub(crate) fn continue_process(&self) {
        self.process.signal("-CONT");
        self.stopped.store(false, Ordering::SeqCst);
    }

    /// Returns `true` if the server is neither killed nor stopped.
    pub(crate) fn runs(&self) -> bool {
        self.admin().is_some() && !self.stopped.load(Ordering::SeqCst)
    }

    /// Returns the end of its log.
    pub(crate) fn log(&self) -> String {
        log(self.dir.path())
    }

    /// Runs a command as administrator and returns its reply as text, with one array element per line and
    /// nil as an empty text.
    pub(crate) fn cli(&self, args: &[&str]) -> String {
        match self.command(args) {
            Ok(answer) => answer,
            Err(error) => panic!("{args:?}: {error}"),
        }
    }

    pub(crate) fn command(&self, args: &[&str]) -> RedisResult<String> {
        let mut command = redis::cmd(args[0]);
        command.arg(&args[1..]);
        let mut admin = self.admin();
        let connection = admin.as_mut().expect("the server runs");
        let mut answer = connection.req_command(&command);
        // A Sentinel that changes the role of a server closes its connections, idle ones included. The
        // command did not run.
        if answer
            .as_ref()
            .is_err_and(RedisError::is_connection_dropped)
        {
            *connection = connect(&self.dir, &self.options)?;
            answer = connection.req_command(&command);
        }
        Ok(text(&answer?.extract_error()?))
    }

    /// Returns the lines of `CLIENT LIST` of a type (`normal`, `pubsub`), without the administrator's.
    pub(crate) fn clients(&self, kind: &str) -> Vec<String> {
        let id = self.cli(&["CLIENT", "ID"]);
        let admin = format!("id={id} ");
        let list = self.cli(&["CLIENT", "LIST", "TYPE", kind]);
        let others = list.lines().filter(|line| !line.starts_with(&admin));
        others.map(ToOwned::to_owned).collect()
    }

    /// Returns the number of calls of a command (`evalsha`, `cluster|slots`) since the start. Redis 6
    /// counts all subcommands of a command as one.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let command = match (version(), command.split_once('|')) {
            (..7, Some((container, _))) => container,
            _ => command,
        };
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

fn value<'a>(options: &'a [String], name: &str) -> Option<&'a str> {
    let at = options.iter().rposition(|option| option == name)?;
    options.get(at + 1).map(String::as_str)
}

fn socket(dir: &TempDir) -> PathBuf {
    dir.path().join("redis.sock")
}

/// Returns `None` if the server exits, as it does when its port is in use.
fn launch(
    dir: &TempDir,
    port: u16,
    options: &[String],
    clock: Option<&Preloaded>,
) -> Option<(Process, Connection)> {
    let (socket, path) = (socket(dir), dir.path());
    drop(std::fs::remove_file(&socket));
    let configuration = Some(path.join(CONFIGURATION)).filter(|file| file.exists());
    let mut args: Vec<OsString> = configuration.map(Into::into).into_iter().collect();
    args.extend(["--port", &port.to_string(), "--bind", "127.0.0.1"].map(Into::into));
    args.extend([OsStr::new("--unixsocket"), socket.as_os_str()].map(Into::into));
    args.extend([OsStr::new("--dir"), path.as_os_str()].map(Into::into));
    // Redis 6 opens the log before it enters its directory.
    args.extend([OsStr::new("--logfile"), path.join("log").as_os_str()].map(Into::into));
    args.extend(["--save", "", "--appendonly", "no"].map(Into::into));
    args.extend(options.iter().map(Into::into));
    let mut process = Process::start(path, &args, clock);
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if process.has_ended() {
            return None;
        }
        if let Ok(mut connection) = connect(dir, options)
            && connection.check_connection()
        {
            return Some((process, connection));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let log = log(path);
    panic!("the server does not reply within {PATIENCE:?}: {log}");
}

fn connect(dir: &TempDir, options: &[String]) -> RedisResult<Connection> {
    let mut url = format!("redis+unix://{}", socket(dir).display());
    if let Some(password) = value(options, "--requirepass") {
        url = format!("{url}?pass={password}");
    }
    redis::Client::open(url)?.get_connection()
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
