use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};

use super::response::bad_request;
use crate::dashboard::board::Board;
use crate::dashboard::readings::Range;

/// Returns the plots of the last 15 minutes, or of the last day.
pub(in crate::dashboard) async fn history(
    State(board): State<Arc<Board>>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let range = match query.get("range").map(String::as_str) {
        None | Some("15m") => Range::Seconds,
        Some("24h") => Range::Minutes,
        Some(_) => return bad_request("`range` is not `15m` or `24h`"),
    };
    Json(board.publisher.history().columns(range)).into_response()
}

/// Returns all incidents that are remembered, the oldest first.
pub(in crate::dashboard) async fn incidents(State(board): State<Arc<Board>>) -> Response {
    Json(board.publisher.incidents().all()).into_response()
}
