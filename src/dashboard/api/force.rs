use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{Extensions, StatusCode};
use serde_json::json;

use super::inspect::{failed, field, object};
use super::response::{bad_request, refuse, too_many};
use crate::dashboard::board::Board;
use crate::dashboard::force_release::ForceRelease;
use crate::dashboard::operator::Operator;
use crate::task::{spawn_here, with_caller_context, with_output};
use crate::{LockKey, LockManager, observe};

/// The length of a reason in characters.
const REASON: std::ops::RangeInclusive<usize> = 8..=500;

/// Releases the lock of the owner that the operator has seen.
pub(in crate::dashboard) async fn force_release(
    State(board): State<Arc<Board>>,
    extensions: Extensions,
    body: Body,
) -> Response {
    // The server decides, not the page.
    let Some(audit) = &board.audit else {
        return refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "this dashboard is read-only",
        );
    };
    if let Err(retry_after) = board.forces.admit() {
        return too_many(retry_after);
    }
    let body = object(body).await;
    let fields = ["key", "owner", "reason"].map(|name| field(&body, name));
    let [Some(key), Some(owner), Some(reason)] = fields else {
        return bad_request("the body has no text `key`, `owner` or `reason`");
    };
    let reason = reason.trim().to_owned();
    if !REASON.contains(&reason.chars().count()) {
        return bad_request("the reason has fewer than 8 or more than 500 characters");
    }
    let key = LockKey::from_shown(&key);
    if let Err(invalid) = key.validate() {
        return bad_request(&invalid.to_string());
    }
    let request = ForceRelease {
        operator: extensions.get::<Operator>().cloned(),
        key,
        owner,
        reason,
    };
    if let Err(veto) = audit(&request) {
        report(&request, "vetoed");
        return refuse(StatusCode::FORBIDDEN, &veto.to_string());
    }
    // A client that hangs up ends this handler, but neither the release nor its event.
    let release = async move { release(&board.locks, &request).await };
    let (release, released) = with_output(with_caller_context(release));
    spawn_here(release);
    let stopped = || {
        refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "the release ended without an outcome",
        )
    };
    released.await.unwrap_or_else(stopped)
}

async fn release(locks: &LockManager, request: &ForceRelease) -> Response {
    match (locks.force_release_held_by(&request.key, &request.owner)).await {
        Ok(true) => {
            report(request, "released");
            Json(json!({ "released": true })).into_response()
        }
        Ok(false) => {
            report(request, "not_held");
            refuse(
                StatusCode::CONFLICT,
                "another owner holds the key now, or none",
            )
        }
        Err(error) => {
            report(request, "failed");
            failed(&error)
        }
    }
}

fn report(request: &ForceRelease, outcome: &'static str) {
    let operator = request.operator.as_ref().map(Operator::name);
    observe::force_released(operator, &request.reason, outcome);
}
