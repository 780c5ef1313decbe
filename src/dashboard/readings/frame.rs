//! The data of one second, as JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value, json};

use super::backend::Servers;
use super::figures::{Figures, Reading};
use crate::lock::{HeldBy, HotKey, LaneView, OwnerView, Walk};

/// The content of a frame.
pub(super) struct Frame<'a> {
    pub(super) instance: &'a str,
    pub(super) at: u64,
    /// The time of the tick that counted the rates and percentiles. The point of that tick in the history has the same.
    pub(super) counted_at: u64,
    pub(super) walk: &'a Walk,
    pub(super) reading: &'a Reading,
    pub(super) figures: &'a Figures,
    pub(super) servers: &'a Servers,
    pub(super) hot: (Vec<HotKey>, u64),
}

impl Frame<'_> {
    /// Returns a server-sent event. JSON escapes line breaks, so no key can end the event.
    pub(super) fn event(&self) -> Bytes {
        let (walk, (hot, missed)) = (self.walk, &self.hot);
        let counts = self.reading.counts();
        let hot = hot.iter().map(|hot| {
            json!({
                "key": hot.key.as_str(),
                "waits": hot.waits,
                "waited_ms": in_millis(hot.waited),
            })
        });
        let frame = json!({
            "instance": self.instance,
            "at": self.at,
            "counted_at": self.counted_at,
            "held": walk.counts.snapshot.held,
            "exclusive": walk.counts.snapshot.exclusive,
            "shared": walk.counts.snapshot.shared,
            "permits": walk.counts.snapshot.permits,
            "waiting": walk.counts.snapshot.waiting,
            "unreleased": walk.counts.snapshot.unreleased,
            "kept": walk.counts.snapshot.kept,
            "lanes": walk.counts.snapshot.lanes,
            "shown": walk.counts.shown,
            "oldest_hold_ms": walk.counts.oldest_hold.map(in_millis),
            "oldest_wait_ms": walk.counts.oldest_wait.map(in_millis),
            "top": walk.top.iter().map(row).collect::<Vec<_>>(),
            "hot": hot.collect::<Vec<_>>(),
            "hot_missed": missed,
            "rates": self.figures.rates(),
            "wait": self.figures.wait.json(),
            "hold": self.figures.hold.json(),
            "lost": counts["lost"],
            "rejected": counts["rejected"],
            "renewals": counts["renewals"],
            "servers": self.servers.servers(),
            "incidents": self.servers.incidents(),
        });
        format!("event: frame\ndata: {frame}\n\n").into()
    }
}

/// Returns one key. The token is text, because JavaScript rounds large numbers. It is missing if owners have different
/// ones.
pub(in crate::dashboard) fn row(view: &LaneView) -> Value {
    let hold = view.lanes.hold;
    json!({
        "key": view.key.as_str(),
        "held_by": held_by(view.lanes.held_by()),
        "layer": view.layer.as_deref(),
        "since_ms": hold.map(|hold| in_millis(hold.since)),
        "left_ms": hold.map(|hold| in_millis(hold.left)),
        "mode": hold.map(|hold| hold.mode.as_str()),
        "owners": hold.map(|hold| hold.owners),
        "holds": hold.map(|hold| hold.holds),
        "token": hold.and_then(|hold| hold.token).map(|token| token.to_string()),
        "waiters": view.lanes.waiters,
    })
}

/// Returns one owner of a key.
pub(in crate::dashboard) fn owner(view: &OwnerView) -> Value {
    json!({
        "owner": view.owner.to_string(),
        "layer": view.layer.as_deref(),
        "since_ms": in_millis(view.since),
        "left_ms": in_millis(view.left),
        "holds": view.holds,
        "token": view.token.to_string(),
    })
}

pub(in crate::dashboard) fn held_by(it: HeldBy) -> &'static str {
    match it {
        HeldBy::Here => "here",
        HeldBy::Kept => "kept",
        HeldBy::Releasing => "releasing",
        HeldBy::Elsewhere => "elsewhere",
        HeldBy::Unavailable => "unavailable",
        HeldBy::Unknown => "unknown",
    }
}

/// Returns the milliseconds since 1970.
pub(in crate::dashboard) fn millis(at: SystemTime) -> u64 {
    in_millis(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

pub(super) fn in_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
