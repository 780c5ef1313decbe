use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::Extensions;
use serde_json::json;

use super::response::too_many;
use crate::dashboard::board::Board;
use crate::dashboard::operator::Operator;
use crate::dashboard::readings::millis;
use crate::lock::Order;

/// Returns the process, its settings and its totals.
pub(in crate::dashboard) async fn summary(
    State(board): State<Arc<Board>>,
    extensions: Extensions,
) -> Response {
    if let Err(retry_after) = board.walks.admit() {
        return too_many(retry_after);
    }
    let options = board.locks.options();
    let walk = board.locks.walk(Order::Waiters, 0).await;
    let counts = walk.counts;
    let operator = extensions.get::<Operator>().map(Operator::name);
    let peers = board.peers.iter();
    let peers: Vec<_> = peers
        .map(|peer| json!({ "name": peer.name, "url": peer.url }))
        .collect();
    Json(json!({
        "instance": board.instance,
        "pid": std::process::id(),
        "host": board.host,
        "version": env!("CARGO_PKG_VERSION"),
        "started": millis(board.started),
        "operator": operator,
        "peers": peers,
        "options": {
            "wait_ms": options.wait.as_millis() as u64,
            "watchdog_timeout_ms": options.watchdog_timeout.as_millis() as u64,
            "max_waiters_per_key": options.max_waiters_per_key,
            "max_waiters": options.max_waiters,
        },
        "totals": {
            "held": counts.snapshot.held,
            "exclusive": counts.snapshot.exclusive,
            "shared": counts.snapshot.shared,
            "permits": counts.snapshot.permits,
            "waiting": counts.snapshot.waiting,
            "queued": counts.snapshot.queued,
            "lanes": counts.snapshot.lanes,
            "unreleased": counts.snapshot.unreleased,
            "kept": counts.snapshot.kept,
        },
        "capabilities": { "force_release": board.audit.is_some() },
    }))
    .into_response()
}
