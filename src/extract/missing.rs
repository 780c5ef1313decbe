//! Rejections of handlers that extract what no layer provides: mistakes of the program.

use std::error::Error as StdError;

use axum::extract::MatchedPath;
use axum::response::{IntoResponse, Response};
use http::Extensions;

use crate::layer::{LockRejection, RequestInfo};
use crate::observe::{self, Mistake};
use crate::{Error, ErrorKind};

/// The rejection of [`LockScope`](crate::LockScope) for a request without a scope. In the rejection of
/// [`Locked`](crate::Locked), it is the source of the error.
///
/// The request is rejected with 500 `lock-misconfigured`; the log has this text.
#[derive(Debug, Clone, thiserror::Error)]
#[error("this request has no lock scope: add a `LockScopeLayer` to the route, or a `LockLayer`")]
pub struct LockScopeRejection(Option<MatchedPath>);

/// The rejection of [`Held`](crate::Held) for a request without a lock held by a layer.
///
/// The request is rejected with 500 `lock-misconfigured`; the log has this text.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "no lock is held for this request: put a `LockLayer` around the handler that locks this method \
     (with `.all_methods()` for a GET), or take `Option<Held>`, or lock in the handler with `Locked`"
)]
pub struct HeldRejection(Option<MatchedPath>);

/// The rejection of [`Owner`](crate::Owner) for a request without an owner.
///
/// The request is rejected with 500 `lock-misconfigured`; the log has this text.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "this request has no lock owner: put a `LockLayer` around the handler that locks this method \
     (with `.all_methods()` for a GET), or a `Locked` before `Owner` in its arguments, or take `Option<Owner>`, \
     or make one with `LockManager::new_owner`"
)]
pub struct OwnerRejection(Option<MatchedPath>);

macro_rules! rejects {
    ($($rejection:ident of $extractor:literal),*) => {$(
        impl $rejection {
            pub(super) fn new(of_request: &Extensions) -> Self {
                Self(of_request.get().cloned())
            }
        }

        impl IntoResponse for $rejection {
            fn into_response(self) -> Response {
                static MISTAKE: Mistake = Mistake::of($extractor);
                misconfigured(&MISTAKE, self.0.clone(), self, RequestInfo::UNKNOWN).into_response()
            }
        }
    )*};
}

rejects!(LockScopeRejection of "LockScope", HeldRejection of "Held", OwnerRejection of "Owner");

/// Returns the rejection of a request with `Locked` and without a scope.
pub(super) fn without_scope(of_request: &Extensions, request_info: RequestInfo) -> LockRejection {
    static MISTAKE: Mistake = Mistake::of("Locked");
    let mistake = LockScopeRejection::new(of_request);
    misconfigured(&MISTAKE, mistake.0.clone(), mistake, request_info)
}

/// Returns the rejection that a layer gives for a mistake of the program. Each request is counted, and the first one of
/// a route is logged with the remedy.
fn misconfigured(
    mistake: &Mistake,
    route: Option<MatchedPath>,
    remedy: impl StdError + Send + Sync + 'static,
    request_info: RequestInfo,
) -> LockRejection {
    mistake.report(route.as_ref().map(MatchedPath::as_str), &remedy);
    let error = Error::new(ErrorKind::Misconfigured);
    observe::not_provided(&error);
    // The remedy is logged once, so it is no part of the event of each request.
    LockRejection::new(error.with_source(remedy), request_info, None)
}
