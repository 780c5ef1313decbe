//! Rejections of handlers that extract what no layer provides: mistakes of the program.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::response::{IntoResponse, Response};

use crate::layer::{LockRejection, RequestInfo};
use crate::{Error, ErrorKind, observe};

/// The rejection of [`LockScope`](crate::LockScope) for a request without a scope. In the rejection of
/// [`Locked`](crate::Locked), it is the source of the error.
///
/// The request is rejected with 500 `lock-misconfigured`; the log has this text.
#[derive(Debug, Clone, thiserror::Error)]
#[error("this request has no lock scope: add a `LockScopeLayer` to the route, or a `LockLayer`")]
pub struct LockScopeRejection(());

/// The rejection of [`Held`](crate::Held) for a request without a lock held by a layer.
///
/// The request is rejected with 500 `lock-misconfigured`; the log has this text.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "no lock is held for this request: put a `LockLayer` around the handler that locks this method \
     (not `.writes_only()` for a GET), or take `Option<Held>`, or lock in the handler with `Locked`"
)]
pub struct HeldRejection(());

/// The rejection of [`Owner`](crate::Owner) for a request without an owner.
///
/// The request is rejected with 500 `lock-misconfigured`; the log has this text.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "this request has no lock owner: put a `LockLayer` around the handler that locks this method, \
     or a `Locked` before `Owner` in its arguments, or take `Option<Owner>`, or make one with \
     `LockManager::new_owner`"
)]
pub struct OwnerRejection(());

impl LockScopeRejection {
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl HeldRejection {
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl OwnerRejection {
    pub(super) fn new() -> Self {
        Self(())
    }
}

impl IntoResponse for LockScopeRejection {
    fn into_response(self) -> Response {
        static IS_LOGGED: AtomicBool = AtomicBool::new(false);
        misconfigured("LockScope", self, &IS_LOGGED, RequestInfo::UNKNOWN).into_response()
    }
}

impl IntoResponse for HeldRejection {
    fn into_response(self) -> Response {
        static IS_LOGGED: AtomicBool = AtomicBool::new(false);
        misconfigured("Held", self, &IS_LOGGED, RequestInfo::UNKNOWN).into_response()
    }
}

impl IntoResponse for OwnerRejection {
    fn into_response(self) -> Response {
        static IS_LOGGED: AtomicBool = AtomicBool::new(false);
        misconfigured("Owner", self, &IS_LOGGED, RequestInfo::UNKNOWN).into_response()
    }
}

/// Returns the rejection of a request with `Locked` and without a scope.
pub(super) fn without_scope(request_info: RequestInfo) -> LockRejection {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    misconfigured("Locked", LockScopeRejection(()), &IS_LOGGED, request_info)
}

/// Returns the rejection that a layer gives for a mistake of the program. Each request is counted, and the first one
/// is logged with the remedy.
fn misconfigured(
    extractor: &'static str,
    mistake: impl StdError + Send + Sync + 'static,
    is_logged: &AtomicBool,
    request_info: RequestInfo,
) -> LockRejection {
    if !is_logged.swap(true, Ordering::Relaxed) {
        observe::misconfigured(extractor, &mistake);
    }
    let error = Error::new(ErrorKind::InvalidSetup);
    observe::not_provided(&error);
    // The remedy is logged once, so it is no part of the event of each request.
    LockRejection::new(error.with_source(mistake), request_info, None)
}
