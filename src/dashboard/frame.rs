//! The data of one second, as JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::lock::{LaneView, Walk};

/// Returns a frame as a server-sent event. JSON escapes line breaks, so no key can end the event.
pub(super) fn event(instance: &str, at: SystemTime, walk: &Walk, unreleased: usize) -> Bytes {
    let top: Vec<_> = walk.top.iter().map(row).collect();
    let frame = json!({
        "instance": instance,
        "at": millis(at),
        "held": walk.held,
        "waiting": walk.waiting,
        "unreleased": unreleased,
        "lanes": walk.lanes,
        "sampled": walk.sampled,
        "oldest_hold_ms": walk.oldest_hold.map(in_millis),
        "top": top,
    });
    format!("event: frame\ndata: {frame}\n\n").into()
}

/// Returns one key. The token is text, because JavaScript rounds large numbers.
pub(super) fn row(view: &LaneView) -> Value {
    let hold = view.hold.as_ref();
    json!({
        "key": view.key.as_str(),
        "since_ms": hold.map(|hold| in_millis(hold.since)),
        "left_ms": hold.map(|hold| in_millis(hold.left)),
        "holds": hold.map(|hold| hold.holds),
        "token": hold.map(|hold| hold.token.to_string()),
        "waiters": view.waiters,
    })
}

/// Returns the milliseconds since 1970.
pub(super) fn millis(at: SystemTime) -> u64 {
    in_millis(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

pub(super) fn in_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
