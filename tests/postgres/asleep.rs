//! A server that is suspended while no statement runs, and started again for the next connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::{LockManager, PostgresBackend};

use super::LONG;
use super::support::postgres_server::PostgresServer;

/// The server is suspended after this time without a byte of a client.
const IDLE: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(9);

/// A server behind a proxy. It ends when dropped.
struct Suspended {
    port: u16,
    state: Arc<State>,
    tasks: [JoinHandle<()>; 2],
}

struct State {
    /// `true`: it runs.
    server: Mutex<(PostgresServer, bool)>,
    begun: Instant,
    /// The milliseconds from `begun` to the last byte of a client.
    last: AtomicU64,
    starts: AtomicU64,
}

impl State {
    fn is_used(&self) {
        let now = self.begun.elapsed().as_millis();
        self.last.store(now.try_into().unwrap(), Ordering::SeqCst);
    }

    fn is_idle(&self) -> bool {
        let last = Duration::from_millis(self.last.load(Ordering::SeqCst));
        self.begun.elapsed() > last + IDLE
    }

    /// Starts the server unless it runs, and returns its port.
    async fn wake(&self) -> u16 {
        let mut server = self.server.lock().await;
        if !server.1 {
            server.0.begin().await;
            server.1 = true;
            self.starts.fetch_add(1, Ordering::SeqCst);
        }
        self.is_used();
        server.0.port()
    }

    async fn suspend(&self) {
        let mut server = self.server.lock().await;
        if server.1 {
            server.0.end().await;
            server.1 = false;
        }
    }

    async fn forward(&self, mut client: TcpStream) -> std::io::Result<()> {
        let mut server = TcpStream::connect(("127.0.0.1", self.wake().await)).await?;
        let (mut from_client, mut to_client) = client.split();
        let (mut from_server, mut to_server) = server.split();
        let up = async {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                let length = from_client.read(&mut buffer).await?;
                if length == 0 {
                    return Ok(());
                }
                self.is_used();
                to_server.write_all(&buffer[..length]).await?;
            }
        };
        let down = async {
            tokio::io::copy(&mut from_server, &mut to_client)
                .await
                .map(drop)
        };
        tokio::select! { ended = up => ended, ended = down => ended }
    }
}

impl Suspended {
    async fn start() -> Self {
        let server = Mutex::new((PostgresServer::start(&[]).await, true));
        let state = Arc::new(State {
            server,
            begun: Instant::now(),
            last: AtomicU64::new(0),
            starts: AtomicU64::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepting = Arc::clone(&state);
        let accepts = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&accepting);
                tokio::spawn(async move { drop(state.forward(client).await) });
            }
        });
        let watching = Arc::clone(&state);
        let suspends = tokio::spawn(async move {
            loop {
                sleep(IDLE / 10).await;
                if watching.is_idle() {
                    watching.suspend().await;
                }
            }
        });
        Self {
            port,
            state,
            tasks: [accepts, suspends],
        }
    }

    async fn locks(&self) -> LockManager {
        let url = PostgresServer::url_of_hosts(&[self.port]) + "?connect_timeout=30";
        let builder = PostgresBackend::builder(url).response_timeout(LONG / 10);
        let backend = builder.connect().await.unwrap();
        LockManager::builder(backend)
            .watchdog_timeout(LEASE)
            .build()
            .unwrap()
    }

    fn starts(&self) -> u64 {
        self.state.starts.load(Ordering::SeqCst)
    }

    async fn is_asleep(&self) -> bool {
        !self.state.server.lock().await.1
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Returns when the server has slept for this time.
async fn sleeps_for(server: &Suspended, time: Duration) {
    let mut since = None;
    while since.is_none_or(|it: Instant| it.elapsed() < time) {
        match server.is_asleep().await {
            true => drop(since.get_or_insert_with(Instant::now)),
            false => since = None,
        }
        sleep(IDLE / 50).await;
    }
}

/// Once the process has not used a lock for a minute, it has no connection that would wake the server.
#[tokio::test]
async fn idle_process_lets_server_sleep() {
    let server = Suspended::start().await;
    let locks = server.locks().await;
    sleeps_for(&server, IDLE).await;
    assert_eq!(server.starts(), 0, "it has not listened");
    let guard = locks.acquire("k").wait(LONG).await.unwrap();
    let first = guard.fencing_token();
    guard.release().await.unwrap();
    // A self-test of LISTEN and a sweep are due before.
    timeout(4 * LONG, sleeps_for(&server, 7 * IDLE))
        .await
        .expect("the server sleeps");
    let woken = server.starts();
    let guard = locks.acquire("k").wait(LONG).await.unwrap();
    assert!(guard.fencing_token() > first);
    guard.release().await.unwrap();
    assert!(server.starts() > woken);
}

#[tokio::test]
async fn held_lock_keeps_server_awake() {
    let server = Suspended::start().await;
    let locks = server.locks().await;
    let guard = locks.acquire("k").await.unwrap();
    sleep(4 * IDLE).await;
    assert!(guard.is_held());
    assert_eq!(server.starts(), 0);
    // The listener or the next renewal starts it.
    server.state.suspend().await;
    sleep(2 * LEASE).await;
    assert_eq!(server.starts(), 1);
    assert!(guard.is_held());
    guard.release().await.unwrap();
}
