//! Rejections of handlers that extract what no layer provides: mistakes of the program.

use axum::extract::MatchedPath;
use axum::response::{IntoResponse, Response};
use http::Extensions;

use crate::layer::{LockRejection, RequestInfo};
use crate::observe::{self, Mistake};
use crate::{Error, ErrorKind};

/// The rejection of [`LockScope`](crate::LockScope), [`Held`](crate::Held) and [`Owner`](crate::Owner) for a request whose
/// layer is missing. In the rejection of [`Locked`](crate::Locked), it is the source of the error.
///
/// The request is rejected with 500 `lock-misconfigured`; the log has the text of this error, which names the remedy.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", extractor.remedy())]
pub struct MissingLayer {
    extractor: Extractor,
    route: Option<MatchedPath>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Extractor {
    Scope,
    Held,
    Owner,
}

impl Extractor {
    fn remedy(self) -> &'static str {
        match self {
            Self::Scope => {
                "this request has no lock scope: add a `LockScopeLayer` to the route, or a `LockLayer`"
            }
            Self::Held => {
                "no lock is held for this request: put a `LockLayer` around the handler that locks this method \
                 (with `.all_methods()` for a GET), or take `Option<Held>`, or lock in the handler with `Locked`"
            }
            Self::Owner => {
                "this request has no lock owner: put a `LockLayer` around the handler that locks this method \
                 (with `.all_methods()` for a GET), or a `Locked` before `Owner` in its arguments, or take \
                 `Option<Owner>`, or make one with `LockManager::new_owner`"
            }
        }
    }

    fn mistake(self) -> &'static Mistake {
        static MISTAKES: [Mistake; 3] = [
            Mistake::of("LockScope"),
            Mistake::of("Held"),
            Mistake::of("Owner"),
        ];
        &MISTAKES[self as usize]
    }
}

impl MissingLayer {
    pub(super) fn of(extractor: Extractor, of_request: &Extensions) -> Self {
        let route = of_request.get().cloned();
        Self { extractor, route }
    }
}

impl IntoResponse for MissingLayer {
    fn into_response(self) -> Response {
        misconfigured(self.extractor.mistake(), self, RequestInfo::UNKNOWN).into_response()
    }
}

/// Returns the rejection of a request with `Locked` and without a scope.
pub(super) fn without_scope(of_request: &Extensions, request_info: RequestInfo) -> LockRejection {
    static MISTAKE: Mistake = Mistake::of("Locked");
    let missing = MissingLayer::of(Extractor::Scope, of_request);
    misconfigured(&MISTAKE, missing, request_info)
}

/// Returns the rejection that a layer gives for a mistake of the program. Each request is counted, and the first one of
/// a route is logged with the remedy.
fn misconfigured(
    mistake: &Mistake,
    missing: MissingLayer,
    request_info: RequestInfo,
) -> LockRejection {
    mistake.report(missing.route.as_ref().map(MatchedPath::as_str), &missing);
    let error = Error::new(ErrorKind::Misconfigured);
    observe::not_provided(&error);
    // The remedy is logged once, so it is no part of the event of each request.
    LockRejection::new(error.with_source(missing), request_info, None)
}
