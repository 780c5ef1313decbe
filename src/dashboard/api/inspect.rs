use std::sync::Arc;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::response::{refuse, too_many};
use crate::dashboard::board::Board;
use crate::dashboard::frame::row;
use crate::{Error, LockKey};

/// The longest body. Each of the 512 bytes of a key takes up to 6 in JSON.
pub(super) const MAX_BODY: usize = 16 * 1024;

/// Returns the holder of a key in the backend, and what this process knows about the key.
pub(in crate::dashboard) async fn inspect(State(board): State<Arc<Board>>, body: Body) -> Response {
    if let Err(retry_after) = board.inspects.admit() {
        return too_many(retry_after);
    }
    let Some(key) = field(&object(body).await, "key") else {
        return refuse(StatusCode::BAD_REQUEST, "the body has no text `key`");
    };
    let key = LockKey::from_shown(&key);
    if let Err(invalid) = key.validate() {
        return refuse(StatusCode::BAD_REQUEST, &invalid.to_string());
    }
    let info = match board.locks.inspect(&key).await {
        Ok(info) => info,
        Err(error) => return failed(&error),
    };
    let here = board.locks.lane(&key);
    Json(json!({
        "key": key.as_str(),
        "confirm": confirmation(&key),
        "held": info.is_some(),
        "owner": info.as_ref().map(|info| &info.owner),
        "ttl_ms": info.as_ref().map(|info| info.ttl.as_millis() as u64),
        "hold_count": info.as_ref().map(|info| info.hold_count),
        "queued": info.as_ref().map_or(0, |info| info.queued),
        "waiters": here.as_ref().map_or(0, |here| here.waiters),
        "here": here.filter(|here| here.hold.is_some()).as_ref().map(row),
    }))
    .into_response()
}

/// Returns the digits that stand for a long key: the first 8 of its SHA-256.
fn confirmation(key: &LockKey) -> String {
    let digest = Sha256::digest(key.as_str());
    digest[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Reads an object, or nothing from any other body.
pub(super) async fn object(body: Body) -> Value {
    let bytes = to_bytes(body, MAX_BODY).await.unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

pub(super) fn field(object: &Value, name: &str) -> Option<String> {
    object.get(name)?.as_str().map(str::to_owned)
}

/// Creates the response to a failed command. The operator sees the causes, which contain no key.
pub(super) fn failed(error: &Error) -> Response {
    refuse(
        StatusCode::SERVICE_UNAVAILABLE,
        &crate::error::with_causes(error),
    )
}
