use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use serde_json::json;

/// Creates an error response with a reason for the operator.
pub(in crate::dashboard) fn refuse(status: StatusCode, reason: &str) -> Response {
    (status, Json(json!({ "error": reason }))).into_response()
}

/// Creates the response to a request that the page does not send.
pub(super) fn bad_request(reason: &str) -> Response {
    refuse(StatusCode::BAD_REQUEST, reason)
}

/// Creates the response to a request above a rate limit.
pub(super) fn too_many(retry_after: Duration) -> Response {
    let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, "too many requests");
    let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    response
}

pub(in crate::dashboard) async fn not_found() -> Response {
    refuse(StatusCode::NOT_FOUND, "the dashboard has no such route")
}
