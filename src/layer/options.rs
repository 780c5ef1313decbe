//! What every request through one layer has in common.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, HeaderValue};
use http::{Method, Response, StatusCode};

use super::body::{BoxedBody, LockBody};
use super::rejection::LockRejection;
use crate::{AcquireFuture, LockKeys, LockManager, Owner};

/// What happens to a request whose lock is lost while it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// The handler's future is dropped and the client gets a 500 `lock-lost`; a body that is
    /// already under way ends with an error. No success leaves that was made under a lost lock, but
    /// for a body without a length over HTTP/1.0, which has no way to end with an error.
    #[default]
    Abort,
    /// The handler goes on and its answer passes. It learns of the loss from
    /// [`Held`](crate::Held), and the storage from its fencing token.
    Continue,
}

type OnReject = dyn Fn(LockRejection) -> Response<BoxedBody> + Send + Sync;

#[derive(Clone)]
pub(super) struct Options {
    pub(super) wait: Wait,
    pub(super) lease: Option<Duration>,
    pub(super) max_hold: Duration,
    pub(super) writes_only: bool,
    pub(super) busy_status: StatusCode,
    pub(super) release_at_head: bool,
    pub(super) on_lost: OnLost,
    pub(super) on_reject: Option<Arc<OnReject>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    /// As long as the manager says.
    Default,
    For(Duration),
    No,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            wait: Wait::Default,
            lease: None,
            max_hold: Duration::from_secs(5 * 60),
            writes_only: false,
            busy_status: StatusCode::CONFLICT,
            release_at_head: false,
            on_lost: OnLost::Abort,
            on_reject: None,
        }
    }
}

impl Options {
    /// Whether the method alone says that the request needs no lock.
    pub(super) fn exempts(&self, method: &Method) -> bool {
        self.writes_only && method.is_safe()
    }

    pub(super) fn acquire(
        &self,
        locks: &LockManager,
        keys: LockKeys,
        owner: Owner,
    ) -> AcquireFuture {
        let mut acquire = locks.acquire(keys).owner(owner).max_hold(self.max_hold);
        acquire = match self.wait {
            Wait::Default => acquire,
            Wait::For(wait) => acquire.wait(wait),
            Wait::No => acquire.no_wait(),
        };
        if let Some(lease) = self.lease {
            acquire = acquire.lease(lease);
        }
        acquire.into_future()
    }

    /// The answer instead of the handler's, always with the reason in its extensions.
    pub(super) fn reject<B>(&self, rejection: LockRejection) -> Response<LockBody<B>> {
        let rejection = rejection.busy_status(self.busy_status);
        let Some(on_reject) = &self.on_reject else {
            return rejection.to_response().map(LockBody::text);
        };
        let mut response = on_reject(rejection.clone()).map(LockBody::boxed);
        response.extensions_mut().insert(rejection);
        let headers = response.headers_mut();
        let no_store = HeaderValue::from_static("no-store");
        headers.entry(CACHE_CONTROL).or_insert(no_store);
        response
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("wait", &self.wait)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("writes_only", &self.writes_only)
            .field("busy_status", &self.busy_status)
            .field("release_at_head", &self.release_at_head)
            .field("on_lost", &self.on_lost)
            .finish_non_exhaustive()
    }
}
