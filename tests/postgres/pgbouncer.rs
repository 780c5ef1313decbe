//! Locks behind PgBouncer in transaction mode: each statement may run in another session.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tower_lock::backend::conformance;
use tower_lock::{LockKey, PostgresBackend};

use super::support::patience::PATIENCE;
use super::support::postgres_server::{PostgresServer, user};
use super::support::process::{Process, free_port, log};
use super::{LONG, acquire, is_busy, lease, release};

/// A proxy in front of a server, with three sessions, of which it uses another one for each statement.
struct PgBouncer {
    _process: Process,
    port: u16,
    _dir: TempDir,
}

impl PgBouncer {
    async fn start(server: &PostgresServer) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let to = server.port();
        // With its default of 4 kB, version 1.18 once sent a part of a renewal of 100 locks as a message of its own.
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={to} user=postgres min_pool_size=3 pool_size=3
            [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any
            pool_mode = transaction\nserver_round_robin = 1\nadmin_users = postgres\npkt_buf = 65536\n"
        );
        std::fs::write(dir.path().join("settings"), settings.replace("  ", "")).unwrap();
        let output = std::fs::File::create(dir.path().join("output")).unwrap();
        // Other users than root may not have the folder of Debian's package in their path.
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("pgbouncer");
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
            _process: process,
            port,
            _dir: dir,
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

/// The second process finds the statements of the first one in some sessions, and in others none.
#[tokio::test]
async fn prepared_statement_may_be_missing_or_foreign() {
    let server = PostgresServer::start(&[]).await;
    let proxy = PgBouncer::start(&server).await;
    let one = proxy.backend(&server).await;
    let key = LockKey::new("k");
    acquire(&one, &key, lease(), LONG).await;
    let other = proxy.backend(&server).await;
    for number in 0..10 {
        let (free, lease) = (LockKey::new(format!("k{number}")), lease());
        acquire(&other, &free, lease, LONG).await;
        assert!(is_busy(&one, &free).await && is_busy(&other, &key).await);
        release(&other, &free, lease).await;
        assert!(!is_busy(&one, &free).await, "the release had an effect");
    }
}
