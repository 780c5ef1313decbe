//! An HTTP server in its own process, with or without a lock per request.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::routing::put;
use tokio::net::TcpListener;
use tower_lock::{LockLayer, LockManager};

use crate::contenders::set::SetLayer;
use crate::contenders::{bare, rslock, together};
use crate::work::{Failure, Locks};

const PATH: &str = "/orders/{id}";

/// The locks that a handler acquires for its request.
pub(crate) trait PerRequest: Clone + Send + Sync + 'static {
    type Held: Send;

    fn lock(&self, key: &str) -> impl Future<Output = Result<Self::Held, Failure>> + Send;

    /// Releases without waiting for the server.
    fn unlock_behind(&self, held: Self::Held);
}

impl<L: Locks<Held: 'static>> PerRequest for L {
    type Held = L::Held;

    async fn lock(&self, key: &str) -> Result<L::Held, Failure> {
        Locks::lock(self, key).await
    }

    fn unlock_behind(&self, held: L::Held) {
        let locks = self.clone();
        tokio::spawn(async move {
            if let Err(failure) = locks.unlock(held).await {
                fail(&format!("a lock was not released: {failure}"));
            }
        });
    }
}

/// Ends the server, because locks that are not released cost less than released ones.
pub(crate) fn fail(reason: &str) -> ! {
    eprintln!("{reason}");
    std::process::exit(1)
}

/// Serves with this kind of locks. Locks in Redis are at `url`.
pub(crate) async fn serve(locks: &str, url: &str) -> Result<(), Failure> {
    let app = Router::new().route(PATH, put("written"));
    let app = match locks {
        "none" => app,
        "set" => app.route_layer(SetLayer::default()),
        "memory" => app.route_layer(LockLayer::by_path(LockManager::in_memory())),
        "redis" => app.route_layer(LockLayer::by_path(LockManager::connect(url).await?)),
        "rslock" => locked_by(rslock::connect(url)?),
        "bare" => locked_by(bare::connect(url, bare::Token::Ours).await?),
        "together" => locked_by(together::connect(url).await?),
        other => {
            let kept = other.strip_prefix("kept-").ok_or("no such locks")?;
            let layer = LockLayer::by_path(LockManager::connect(url).await?);
            app.route_layer(layer.keep_released(Duration::from_millis(kept.parse()?)))
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("ready http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

fn locked_by<L: PerRequest>(locks: L) -> Router {
    Router::new()
        .route(PATH, put(handle::<L>))
        .with_state(locks)
}

/// The handler acquires the lock, which is the cheapest place: there is no layer, and the response does not
/// wait for the release.
async fn handle<L: PerRequest>(
    State(locks): State<L>,
    uri: Uri,
) -> Result<&'static str, StatusCode> {
    let held = locks.lock(uri.path()).await;
    let held = held.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    locks.unlock_behind(held);
    Ok("written")
}
