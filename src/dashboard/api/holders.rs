use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::response::{bad_request, too_many};
use crate::dashboard::board::Board;
use crate::dashboard::readings::row;
use crate::lock::Order;

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 500;

/// Returns the first keys by an order, or one page of all keys.
pub(in crate::dashboard) async fn holders(
    State(board): State<Arc<Board>>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    if let Err(retry_after) = board.walks.admit() {
        return too_many(retry_after);
    }
    let Some(limit) = limit(query.get("limit")) else {
        return bad_request("`limit` is not between 1 and 500");
    };
    if let Some(after) = query.get("after") {
        let Some(after) = cursor(after) else {
            return bad_request("`after` is no cursor of this process");
        };
        let page = board.locks.page(after, limit).await;
        let rows: Vec<_> = page.rows.iter().map(row).collect();
        let next = page.next.map(|(shard, hash)| format!("{shard:x}-{hash:x}"));
        return Json(json!({ "rows": rows, "next": next })).into_response();
    }
    let order = match query.get("sort").map(String::as_str) {
        None | Some("waiters") => Order::Waiters,
        Some("age") => Order::Age,
        Some("remaining") => Order::Remaining,
        Some(_) => {
            return bad_request("`sort` is not `waiters`, `age` or `remaining`");
        }
    };
    let walk = board.locks.walk(order, limit).await;
    let rows: Vec<_> = walk.top.iter().map(row).collect();
    Json(json!({
        "held": walk.counts.snapshot.held,
        "waiting": walk.counts.snapshot.waiting,
        "lanes": walk.counts.snapshot.lanes,
        "rows": rows,
    }))
    .into_response()
}

fn limit(value: Option<&String>) -> Option<usize> {
    let limit = value.map_or(Ok(DEFAULT_LIMIT), |value| value.parse());
    limit.ok().filter(|limit| (1..=MAX_LIMIT).contains(limit))
}

/// Parses a cursor, which contains no key: a shard, and the hash of the last key. The first page is after nothing.
fn cursor(value: &str) -> Option<(usize, Option<u64>)> {
    if value.is_empty() {
        return Some((0, None));
    }
    let (shard, hash) = value.split_once('-')?;
    let shard = usize::from_str_radix(shard, 16).ok()?;
    Some((shard, Some(u64::from_str_radix(hash, 16).ok()?)))
}
