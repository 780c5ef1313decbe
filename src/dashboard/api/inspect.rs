use std::sync::Arc;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::response::{bad_request, refuse, too_many};
use crate::dashboard::board::Board;
use crate::dashboard::readings::{held_by, owner, row};
use crate::error::with_causes;
use crate::lock::{HeldBy, LaneView};
use crate::{Error, LockKey};

/// The longest body. Each of the 512 bytes of a key takes up to 6 in JSON.
pub(super) const MAX_BODY: usize = 16 * 1024;

/// The most owners of one key that are listed.
const OWNERS: usize = 100;

/// Returns the holder of a key in the backend, and what this process knows about the key. If the backend is
/// unavailable, returns its error and only what this process knows.
pub(in crate::dashboard) async fn inspect(State(board): State<Arc<Board>>, body: Body) -> Response {
    if let Err(retry_after) = board.inspects.admit() {
        return too_many(retry_after);
    }
    let Some(key) = field(&object(body).await, "key") else {
        return bad_request("the body has no text `key`");
    };
    let key = LockKey::from_shown(&key);
    if let Err(invalid) = key.validate() {
        return bad_request(&invalid.to_string());
    }
    let reply = board.locks.inspect(&key).await;
    let here = board.locks.lane(&key);
    let info = reply.as_ref().ok().and_then(Option::as_ref);
    let has_several = (here.as_ref()).is_some_and(LaneView::may_have_several_owners);
    let owners = match has_several {
        true => board.locks.owners(&key, OWNERS),
        false => vec![],
    };
    let holds = here.as_ref().is_some_and(|here| here.lanes.hold.is_some());
    let held_by_lease = info.filter(|_| !holds).map(|info| {
        // A failed release is retried without its lane.
        match board.locks.own(&info.owner) {
            Some(_) if info.kept => HeldBy::Kept,
            Some(_) => HeldBy::Releasing,
            None => HeldBy::Elsewhere,
        }
    });
    let held_by_lane = || here.as_ref().map(|here| here.lanes.held_by());
    let holder = held_by_lease.or_else(held_by_lane);
    let status = match &reply {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let found = json!({
        "key": key.as_str(),
        "confirm": confirmation(&key),
        "error": reply.as_ref().err().map(|error| with_causes(error)),
        "held": reply.as_ref().ok().map(Option::is_some),
        "mode": info.map(|info| info.mode.as_str()),
        "holders": info.map(|info| info.holders),
        "owner": info.map(|info| &info.owner),
        "ttl_ms": info.map(|info| info.ttl.as_millis() as u64),
        "hold_count": info.map(|info| info.hold_count),
        "queued": reply.is_ok().then(|| info.map_or(0, |info| info.queued)),
        "waiters": here.as_ref().map_or(0, |here| here.lanes.waiters),
        "held_by": holder.map(held_by),
        // Owners of this process, if the key can have several.
        "owners": owners.iter().map(owner).collect::<Vec<_>>(),
        "here": here.filter(|here| here.lanes.hold.is_some()).as_ref().map(row),
    });
    (status, Json(found)).into_response()
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
    refuse(StatusCode::SERVICE_UNAVAILABLE, &with_causes(error))
}
