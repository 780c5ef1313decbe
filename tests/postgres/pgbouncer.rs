//! Locks behind PgBouncer in transaction mode: each statement may run in another session.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tower_lock::backend::{Backend as _, Renewal, Renewed, conformance};
use tower_lock::{LockKey, LockManager, PostgresBackend};

use super::support::patience::PATIENCE;
use super::support::postgres_server::{PostgresServer, user};
use super::support::process::{Process, free_port, log};
use super::support::proxy::Proxy;
use super::{LONG, acquire, backend, is_busy, lease, release};

/// A proxy in front of a server, with five sessions, of which it uses another one for each statement. Its program is
/// `pgbouncer`, or the one that the variable `PGBOUNCER` names.
struct PgBouncer {
    process: Process,
    port: u16,
    settings: String,
    dir: TempDir,
}

impl PgBouncer {
    async fn start(server: &PostgresServer) -> Self {
        Self::start_with(server, "").await
    }

    /// Starts with further settings, one a line.
    async fn start_with(server: &PostgresServer, further: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let to = server.port();
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={to} user=postgres min_pool_size=5 pool_size=5
            [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any
            pool_mode = transaction\nserver_round_robin = 1\nadmin_users = postgres\n"
        );
        let settings = settings.replace("  ", "") + further;
        std::fs::write(dir.path().join("settings"), &settings).unwrap();
        let output = std::fs::File::create(dir.path().join("output")).unwrap();
        // Other users than root may not have the folder of Debian's package in their path.
        let path = std::env::var("PATH").unwrap_or_default();
        let program = std::env::var_os("PGBOUNCER").unwrap_or("pgbouncer".into());
        let mut command = Command::new(program);
        command
            .env("PATH", path + ":/usr/sbin")
            .arg(dir.path().join("settings"))
            .uid(user(dir.path()))
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        let started = command.spawn().expect("PgBouncer: install it");
        let mut process = Process::of(started);
        let start = Instant::now();
        while tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .is_err()
        {
            assert!(
                !process.has_ended() && start.elapsed() < PATIENCE,
                "{}",
                log(dir.path())
            );
            sleep(Duration::from_millis(20)).await;
        }
        Self {
            process,
            port,
            settings,
            dir,
        }
    }

    /// Passes sessions on after each transaction from now on.
    async fn leave_session_mode(&self) {
        let settings = self.settings.replace("pool_mode = session\n", "");
        std::fs::write(self.dir.path().join("settings"), settings).unwrap();
        self.process.signal("-HUP");
        let start = Instant::now();
        while !log(self.dir.path()).contains("re-reading config") {
            assert!(start.elapsed() < PATIENCE, "{}", log(self.dir.path()));
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn backend(&self, server: &PostgresServer) -> PostgresBackend {
        let builder = PostgresBackend::builder(server.url_at(self.port)).listen(server.url());
        builder.response_timeout(LONG / 10).connect().await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pgbouncer_in_transaction_mode_passes_conformance() {
    let server = PostgresServer::start(&[]).await;
    let proxy = PgBouncer::start(&server).await;
    let [one, other] = [proxy.backend(&server).await, proxy.backend(&server).await];
    conformance::all(&one, &other).await;
}

/// Before 1.21, it keeps no session for a client that sends a command before the reply to its last one.
#[tokio::test]
async fn pgbouncer_splits_no_command() {
    let server = PostgresServer::start(&[]).await;
    // With 14 ms, its pool grows while `connect` looks for it, on most machines.
    for delay in [0, 12, 14, 16] {
        let pgbouncer = PgBouncer::start(&server).await;
        let network = Proxy::start(pgbouncer.port).await;
        network.delay(Duration::from_millis(delay));
        let builder = PostgresBackend::builder(server.url_at(network.port()));
        let backend = builder.response_timeout(LONG / 6).connect().await.unwrap();
        let holds = (0..300).map(async |number| {
            let (key, lease) = (LockKey::new(format!("k{delay}:{number}")), lease());
            acquire(&backend, &key, lease, LONG).await;
            Renewal::new(key, lease, LONG)
        });
        let renewals = join_all(holds).await;
        // Several commands of about 6 kB each.
        network.split(1000, Duration::from_millis(2));
        for round in 0..5 {
            for outcome in backend.renew(&renewals).await {
                assert_eq!(
                    outcome.unwrap(),
                    Renewed::Renewed,
                    "{delay} ms, round {round}"
                );
            }
        }
    }
}

/// Returns whether notifications reach a waiter, and how long a release takes to serve it. Without either of them, the attempt
/// after the TTL of the holder would be the next one.
async fn served(server: &PostgresServer, backends: [PostgresBackend; 2]) -> (bool, Duration) {
    let [one, other] = backends.map(|it| LockManager::builder(it).build().unwrap());
    let guard = one.acquire("queue").await.unwrap();
    let waiter = tokio::spawn(async move {
        let _guard = other.acquire("queue").wait(LONG).await.unwrap();
        Instant::now()
    });
    // The self-test of LISTEN takes a second at most.
    sleep(Duration::from_secs(3)).await;
    let listens = "SELECT count(*) FROM tower_lock.waiter WHERE channel IS NOT NULL";
    let row = server.client().await.query_one(listens, &[]).await.unwrap();
    let released = Instant::now();
    guard.release().await.unwrap();
    let granted = waiter.await.unwrap();
    (
        row.get::<_, i64>(0) == 1,
        granted.saturating_duration_since(released),
    )
}

#[tokio::test]
async fn waiter_behind_pgbouncer_polls_or_listens() {
    let server = PostgresServer::start(&[]).await;
    let proxy = PgBouncer::start(&server).await;
    let url = server.url_at(proxy.port);
    let deaf = PostgresBackend::builder(url).response_timeout(LONG / 10);
    let deaf = deaf.connect().await.unwrap();
    for (waiter, expected) in [(deaf, false), (proxy.backend(&server).await, true)] {
        let holder = backend(&server).await;
        let (listens, took) = served(&server, [holder, waiter]).await;
        assert_eq!(listens, expected);
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}

/// The second process finds the statements of the first one in some sessions, and in others none.
#[tokio::test]
async fn prepared_statement_may_be_missing_or_foreign() {
    let server = PostgresServer::start(&[]).await;
    // Each process finds the mode at its connect. Both have prepared statements when it changes.
    let proxy = PgBouncer::start_with(&server, "pool_mode = session\n").await;
    let one = proxy.backend(&server).await;
    let key = LockKey::new("k");
    acquire(&one, &key, lease(), LONG).await;
    let other = proxy.backend(&server).await;
    assert!(is_busy(&other, &key).await);
    proxy.leave_session_mode().await;
    for number in 0..10 {
        let (free, lease) = (LockKey::new(format!("k{number}")), lease());
        acquire(&other, &free, lease, LONG).await;
        assert!(is_busy(&one, &free).await && is_busy(&other, &key).await);
        release(&other, &free, lease).await;
        assert!(!is_busy(&one, &free).await, "the release had an effect");
    }
}

/// A session that another client has left with its statements.
#[tokio::test]
async fn session_with_foreign_statements_serves() {
    let server = PostgresServer::start(&[]).await;
    let settings = "pool_mode = session\nserver_reset_query =\n";
    let proxy = PgBouncer::start_with(&server, settings).await;
    let key = LockKey::new("k");
    for _ in 0..5 {
        let (backend, lease) = (proxy.backend(&server).await, lease());
        acquire(&backend, &key, lease, LONG).await;
        release(&backend, &key, lease).await;
    }
}

/// Each statement finds a session without any.
#[tokio::test]
async fn reset_after_each_transaction_changes_nothing() {
    let server = PostgresServer::start(&[]).await;
    let settings = "server_reset_query = DISCARD ALL\nserver_reset_query_always = 1\n";
    let proxy = PgBouncer::start_with(&server, settings).await;
    let backend = proxy.backend(&server).await;
    let key = LockKey::new("k");
    for _ in 0..10 {
        let lease = lease();
        acquire(&backend, &key, lease, LONG).await;
        assert!(is_busy(&backend, &key).await);
        release(&backend, &key, lease).await;
    }
}
