//! A PostgreSQL server of the test, on a free port and in a temporary folder. It ends when dropped.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, NoTls};

use super::patience::PATIENCE;
use super::preloaded::Preloaded;
use super::process::{Process, free_port, log};

const SUPERUSER: &str = "postgres";
/// A password costs an unoptimized client a tenth of a second, so the superuser has none.
const RULES: &str =
    "host all,replication postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
const NOBODY: u32 = 65534;

/// A running server. Its programs are in the newest folder of Debian's packages, or in the one that the variable
/// `POSTGRES_BIN` names.
pub(crate) struct PostgresServer {
    process: Process,
    port: u16,
    disk: Option<Disk>,
    dir: TempDir,
    options: Vec<String>,
    clock: Option<Preloaded>,
}

/// What of a server is on a small disk.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// All but its log of changes.
    Data,
    Log,
}

/// A file system of its own, in memory.
struct Disk(PathBuf);

impl Disk {
    const SIZE: u64 = 64 << 20;

    /// Mounts it as root, or by `sudo` without a password.
    fn mount(path: PathBuf) -> Self {
        std::fs::create_dir(&path).expect("a folder");
        let owner = user(&path);
        let options = format!("size={},mode=0700,uid={owner}", Self::SIZE);
        as_root(&["mount", "-t", "tmpfs", "-o", &options, "tmpfs"], &path);
        Self(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        as_root(&["umount", "-l"], &self.0);
    }
}

fn as_root(command: &[&str], path: &Path) {
    let mut all = Command::new("sudo");
    all.arg("-n").args(command);
    if std::fs::metadata("/proc/self").expect("a process").uid() == 0 {
        all = Command::new(command[0]);
        all.args(&command[1..]);
    }
    let status = all.arg(path).status().expect("it runs");
    assert!(status.success(), "root runs {command:?}");
}

fn programs() -> PathBuf {
    if let Some(folder) = std::env::var_os("POSTGRES_BIN") {
        return folder.into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let versions = versions.filter_map(|it| it.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let version = versions.max();
    let version = version.expect("PostgreSQL: install it, or name its folder in POSTGRES_BIN");
    format!("/usr/lib/postgresql/{version}/bin").into()
}

/// Returns the user of servers in the folder, which it then owns. It is not root: they reject it.
pub(crate) fn user(dir: &Path) -> u32 {
    let mut user = std::fs::metadata(dir).expect("a folder").uid();
    if user == 0 {
        user = NOBODY;
        chown(dir, Some(user), None).expect("a folder of the user");
    }
    user
}

fn command(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(programs().join(program));
    command.uid(user(dir)).current_dir(dir).stdin(Stdio::null());
    command
}

const OPTIONS: [&str; 10] = [
    "-D",
    "data",
    "-U",
    SUPERUSER,
    "-A",
    "trust",
    "-E",
    "UTF8",
    "--locale=C",
    "--no-sync",
];

fn initdb(dir: &Path, options: &[String]) {
    let created = command("initdb", dir)
        .args(OPTIONS)
        .args(options)
        .output()
        .expect("initdb runs");
    let errors = String::from_utf8_lossy(&created.stderr);
    assert!(created.status.success(), "{errors}");
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(status.expect("`cp` runs").success());
}

/// Creates the files of a server as copies of those of the first one of its version and options: `initdb` takes ten times as long.
fn create(dir: &Path) {
    // Only tests have this folder.
    let Some(all) = option_env!("CARGO_TARGET_TMPDIR") else {
        return initdb(dir, &[]);
    };
    let data = dir.join("data");
    let version = command("postgres", dir).arg("--version").output();
    let version = String::from_utf8(version.expect("postgres runs").stdout).expect("a version");
    let first = format!("{} {}", version.trim(), OPTIONS.join(" "));
    let first = Path::new(all).join(first.replace(['/', ' '], "-"));
    if first.exists() {
        copy(&first, &data);
    } else {
        initdb(dir, &[]);
        let own = tempfile::tempdir_in(all).expect("a folder");
        copy(&data, &own.path().join("data"));
        // Another test may have been faster.
        drop(std::fs::rename(own.path().join("data"), first));
    }
}

impl PostgresServer {
    /// Starts with settings, such as `["autovacuum=off"]`.
    pub(crate) async fn start(settings: &[&str]) -> Self {
        Self::launched(settings, &[], None, None).await
    }

    /// Starts with a part of its files on a small disk.
    pub(crate) async fn start_on_small_disk(part: Part) -> Self {
        Self::launched(&[], &[], None, Some(part)).await
    }

    /// Starts with a small queue of notifications. Returns `None` before version 17, in which each queue has 8 GB.
    pub(crate) async fn start_with_small_notify_queue() -> Option<Self> {
        let mut server = Self::start(&[]).await;
        let version = "SELECT current_setting('server_version_num')::int >= 170000";
        let row = server.client().await.query_one(version, &[]).await;
        if !row.expect("a row").get::<_, bool>(0) {
            return None;
        }
        let set = "ALTER SYSTEM SET max_notify_queue_pages = 64";
        server.run(set).await;
        server.restart().await;
        Some(server)
    }

    /// Fills the queue of notifications. The returned client listens, and stays in a transaction.
    pub(crate) async fn fill_notify_queue(&self) -> Client {
        let stopped = self.client().await;
        // The transaction begins after that of LISTEN.
        for statement in ["LISTEN stopped", "BEGIN; SELECT 1"] {
            stopped.batch_execute(statement).await.expect(statement);
        }
        let client = self.client().await;
        let fill =
            "SELECT pg_notify('stopped', repeat('a', 7000) || i) FROM generate_series(1, 8) i";
        while client.batch_execute(fill).await.is_ok() {}
        stopped
    }

    fn filler(&self) -> PathBuf {
        self.disk.as_ref().expect("a small disk").0.join("filler")
    }

    /// Leaves no space on the disk of the server.
    pub(crate) fn fill_disk(&self) {
        let mut file = std::fs::File::create(self.filler()).expect("a file");
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    pub(crate) fn free_disk(&self) {
        std::fs::remove_file(self.filler()).expect("a file");
    }

    /// Starts with a wall clock of its own.
    pub(crate) async fn start_with_clock() -> Self {
        Self::launched(&[], &[], Some(Preloaded::build("stepped", 0)), None).await
    }

    /// Sets the wall clock ahead of the machine's by so many milliseconds. A frozen clock then stands at this time.
    pub(crate) fn step_clock(&self, millis: i64) {
        let clock = self.clock.as_ref().expect("a clock of its own");
        clock.set(millis);
    }

    /// Starts with a wall clock that stands at this time in milliseconds, until `step_clock` sets another one.
    pub(crate) async fn start_with_frozen_clock(now: i64) -> Self {
        let clock = Some(Preloaded::build("frozen", now));
        Self::launched(&["autovacuum=off"], &[], clock, None).await
    }

    /// Starts with files in its folder of data, which only the server can read.
    pub(crate) async fn start_with_files(settings: &[&str], files: &[(&str, &str)]) -> Self {
        Self::launched(settings, files, None, None).await
    }

    async fn launched(
        settings: &[&str],
        files: &[(&str, &str)],
        clock: Option<Preloaded>,
        small: Option<Part>,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the server");
        let log = dir.path().join("log");
        let disk = small.map(|part| match part {
            Part::Data => Disk::mount(dir.path().join("data")),
            Part::Log => Disk::mount(log.clone()),
        });
        match small {
            None => create(dir.path()),
            Some(_) => initdb(dir.path(), &[format!("--waldir={}", log.display())]),
        }
        let data = dir.path().join("data");
        std::fs::write(data.join("pg_hba.conf"), RULES).expect("a file");
        for (name, content) in files {
            let path = data.join(name);
            std::fs::write(&path, content).expect("a file");
            let owner = std::fs::metadata(&data).expect("a folder").uid();
            chown(&path, Some(owner), None).expect("its file");
            let private = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&path, private).expect("its file");
        }
        let port = free_port();
        let options: Vec<_> = settings.iter().map(|it| (*it).to_owned()).collect();
        let process = launch(dir.path(), port, &options, clock.as_ref());
        let mut server = Self {
            process,
            port,
            disk,
            dir,
            options,
            clock,
        };
        server.ready().await;
        server
    }

    async fn ready(&mut self) {
        let start = Instant::now();
        while self.try_connect("postgres").await.is_none() {
            // After a kill, the memory of the last server may still be in use.
            if self.process.has_ended() {
                self.launch();
            }
            assert!(start.elapsed() < PATIENCE, "{}", log(self.dir.path()));
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts a standby of the server, which has received all of its changes. If it is `synchronous`, a durable commit
    /// waits for it from now on.
    pub(crate) async fn start_standby(&self, synchronous: bool) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the server");
        let source = format!("host=127.0.0.1 port={} user={SUPERUSER}", self.port);
        let copied = command("pg_basebackup", dir.path())
            .args(["-D", "data", "-d", &source, "-X", "stream", "-c", "fast"])
            .args(["-R", "--no-sync"])
            .output()
            .expect("pg_basebackup runs");
        let errors = String::from_utf8_lossy(&copied.stderr);
        assert!(copied.status.success(), "{errors}");
        let port = free_port();
        let process = launch(dir.path(), port, &self.options, None);
        let mut standby = Self {
            process,
            port,
            disk: None,
            dir,
            options: self.options.clone(),
            clock: None,
        };
        standby.ready().await;
        let mut expected = "async";
        if synchronous {
            expected = "sync";
            self.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
                .await;
            self.run("SELECT pg_reload_conf()").await;
        }
        let state = "SELECT EXISTS (SELECT FROM pg_stat_replication
            WHERE state = 'streaming' AND sync_state = $1 AND replay_lsn >= sent_lsn)";
        let client = self.client().await;
        let start = Instant::now();
        loop {
            let row = client.query_one(state, &[&expected]).await.expect("a row");
            if row.get(0) {
                return standby;
            }
            assert!(start.elapsed() < PATIENCE, "{}", log(standby.dir.path()));
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the processes that send changes to standbys.
    pub(crate) async fn senders(&self) -> Vec<i32> {
        let client = self.client().await;
        let rows = client
            .query("SELECT pid FROM pg_stat_replication", &[])
            .await;
        let rows = rows.expect("rows");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Makes a standby accept writes.
    pub(crate) async fn promote(&self) {
        let promoted = tokio::process::Command::from(command("pg_ctl", self.dir.path()))
            .args(["promote", "-w", "-D", "data"])
            .output();
        let promoted = promoted.await.expect("pg_ctl runs");
        let output = String::from_utf8_lossy(&promoted.stdout);
        assert!(promoted.status.success(), "{output}");
    }

    /// Kills the server and all sessions, for good.
    pub(crate) fn kill(&mut self) {
        self.process.kill_all();
    }

    /// Kills the server and starts it again.
    pub(crate) async fn crash(&mut self) {
        self.process.kill();
        self.launch();
        self.ready().await;
    }

    /// Ends the server and all sessions, and starts it again.
    pub(crate) async fn restart(&mut self) {
        self.end().await;
        self.begin().await;
    }

    /// Ends the server and all sessions.
    pub(crate) async fn end(&mut self) {
        self.process.signal("-INT");
        let start = Instant::now();
        while !self.process.has_ended() {
            assert!(start.elapsed() < PATIENCE, "{}", log(self.dir.path()));
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Starts the ended server again.
    pub(crate) async fn begin(&mut self) {
        self.launch();
        self.ready().await;
    }

    fn launch(&mut self) {
        let clock = self.clock.as_ref();
        self.process = launch(self.dir.path(), self.port, &self.options, clock);
    }

    /// Sends a signal to the server and all sessions.
    pub(crate) fn signal_all(&self, signal: &str) {
        self.process.signal_all(signal);
    }

    pub(crate) fn url(&self) -> String {
        self.url_in("postgres")
    }

    /// Returns the URL of a database for the superuser.
    pub(crate) fn url_in(&self, database: &str) -> String {
        self.url_of(SUPERUSER, "none", database)
    }

    pub(crate) fn url_of(&self, user: &str, password: &str, database: &str) -> String {
        format!(
            "postgres://{user}:{password}@127.0.0.1:{}/{database}",
            self.port
        )
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of the superuser behind a proxy.
    pub(crate) fn url_at(&self, port: u16) -> String {
        Self::url_of_hosts(&[port])
    }

    /// Returns the URL of the superuser at one of several servers or proxies.
    pub(crate) fn url_of_hosts(ports: &[u16]) -> String {
        let hosts = ports.iter().map(|port| format!("127.0.0.1:{port}"));
        let hosts = hosts.collect::<Vec<_>>().join(",");
        format!("postgres://{SUPERUSER}:none@{hosts}/postgres")
    }

    async fn try_connect(&self, database: &str) -> Option<Client> {
        let url = self.url_in(database);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
        tokio::spawn(async move { drop(connection.await) });
        Some(client)
    }

    /// Opens a connection of the superuser.
    pub(crate) async fn client(&self) -> Client {
        self.client_of("postgres").await
    }

    pub(crate) async fn client_of(&self, database: &str) -> Client {
        self.try_connect(database).await.expect("a connection")
    }

    /// Runs statements as the superuser.
    pub(crate) async fn run(&self, script: &str) {
        self.client()
            .await
            .batch_execute(script)
            .await
            .expect(script);
    }

    /// Returns the processes of the server whose last statement matches a regular expression.
    pub(crate) async fn sessions(&self, text: &str) -> Vec<i32> {
        let statement =
            "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query ~ $1";
        let client = self.client().await;
        let rows = client.query(statement, &[&text]).await.expect("rows");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Returns the end of the log.
    pub(crate) fn log(&self) -> String {
        log(self.dir.path())
    }
}

fn launch(dir: &Path, port: u16, settings: &[String], clock: Option<&Preloaded>) -> Process {
    let output = std::fs::File::create(dir.join("output")).expect("a file for the output");
    let mut command = command("postgres", dir);
    command
        .args([
            "-D",
            "data",
            "-p",
            &port.to_string(),
            "-c",
            "listen_addresses=127.0.0.1",
        ])
        .args([
            "-c",
            "shared_buffers=16MB",
            // No test crashes the machine.
            "-c",
            "fsync=off",
            "-c",
            // The default of version 13 is another one.
            "password_encryption=scram-sha-256",
            "-c",
            "unix_socket_directories=",
        ]);
    for setting in settings {
        command.args(["-c", setting]);
    }
    if let Some(clock) = clock {
        clock.preload(&mut command);
    }
    command
        .stdout(output.try_clone().expect("the same file"))
        .stderr(output);
    Process::of(command.spawn().expect("the server runs"))
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // Sessions end with it. A killed server leaves them for a moment.
        if !self.process.has_ended() {
            self.process.signal("-QUIT");
        }
        let start = Instant::now();
        while !self.process.has_ended() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
