//! An HTTP server of its own process, with or without a lock for each request.

use axum::Router;
use axum::routing::put;
use tokio::net::TcpListener;
use tower_lock::{LockLayer, LockManager};

use crate::work::Failure;

/// `none`, or where the locks are.
pub(crate) async fn serve(locks: &str) -> Result<(), Failure> {
    let app = Router::new().route("/orders/{id}", put("written"));
    let app = match locks {
        "none" => app,
        "memory" => app.route_layer(LockLayer::by_path(LockManager::in_memory())),
        url => app.route_layer(LockLayer::by_path(LockManager::connect(url).await?)),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("ready http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
