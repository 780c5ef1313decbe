//! A service with a dashboard, on a port of the loopback interface.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tower_lock::LockManager;
use tower_lock::dashboard::Dashboard;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) locks: LockManager,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(LockManager::in_memory(), Dashboard::unprotected, 0).await
    }

    /// Starts on a port, or on any free one if it is 0.
    pub(crate) async fn with(
        locks: LockManager,
        settings: impl FnOnce(Dashboard) -> Dashboard,
        port: u16,
    ) -> Self {
        let board = settings(Dashboard::new(locks.clone())).router();
        let app = Router::new().nest("/ops/locks", board);
        Self::serve(locks, app, port).await
    }

    pub(crate) async fn serve(locks: LockManager, app: Router, port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopping = locks.clone();
        let serve = axum::serve(listener, app).with_graceful_shutdown(async move {
            drop(stopped.await);
            stopping.shutdown(Duration::ZERO).await;
        });
        let serving = tokio::spawn(async { serve.await.unwrap() });
        Self {
            address,
            locks,
            stop,
            serving,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/ops/locks", self.address)
    }

    /// Shuts down gracefully, and returns the time that it took.
    pub(crate) async fn stop(self) -> Duration {
        let start = Instant::now();
        drop(self.stop);
        timeout(Duration::from_secs(30), self.serving)
            .await
            .unwrap()
            .unwrap();
        start.elapsed()
    }
}
