//! What every request through one layer has in common.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};

use super::body::{BoxedBody, LockBody};
use super::prefer::{PreferredWait, confirm};
use super::rejection::LockRejection;
use super::unlocked::Passing;
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
    pub(super) honors_preferred_wait: bool,
    pub(super) lease: Option<Duration>,
    pub(super) max_hold: Duration,
    pub(super) writes_only: bool,
    pub(super) busy_status: StatusCode,
    pub(super) release_at_head: bool,
    pub(super) on_lost: OnLost,
    pub(super) passing: Passing,
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
            honors_preferred_wait: false,
            lease: None,
            max_hold: Duration::from_secs(5 * 60),
            writes_only: false,
            busy_status: StatusCode::CONFLICT,
            release_at_head: false,
            on_lost: OnLost::Abort,
            passing: Passing::default(),
            on_reject: None,
        }
    }
}

impl Options {
    /// Whether the method alone says that the request needs no lock.
    pub(super) fn exempts(&self, method: &Method) -> bool {
        self.writes_only && method.is_safe()
    }

    /// Whether a request whose lock is lost is aborted.
    pub(super) fn on_lost(&self) -> OnLost {
        if self.passing.observe_only {
            OnLost::Continue
        } else {
            self.on_lost
        }
    }

    /// Returns the wait that the client prefers, if the layer honors that.
    pub(super) fn preferred_wait(
        &self,
        locks: &LockManager,
        headers: &HeaderMap,
    ) -> Option<PreferredWait> {
        if !self.honors_preferred_wait {
            return None;
        }
        let limit = match self.wait {
            Wait::Default => locks.default_wait(),
            Wait::For(wait) => wait,
            Wait::No => Duration::ZERO,
        };
        PreferredWait::read(headers, limit)
    }

    pub(super) fn acquire(
        &self,
        locks: &LockManager,
        keys: LockKeys,
        owner: Owner,
        preferred: Option<Duration>,
    ) -> AcquireFuture {
        let mut acquire = locks.acquire(keys).owner(owner).max_hold(self.max_hold);
        acquire = match (preferred, self.wait) {
            _ if self.passing.observe_only => acquire.no_wait(),
            (Some(wait), _) | (None, Wait::For(wait)) => acquire.wait(wait),
            (None, Wait::Default) => acquire,
            (None, Wait::No) => acquire.no_wait(),
        };
        if let Some(lease) = self.lease {
            acquire = acquire.lease(lease);
        }
        acquire.into_future()
    }

    /// The answer instead of the handler's, always with the reason in its extensions.
    pub(super) fn reject<B>(&self, rejection: LockRejection) -> Response<LockBody<B>> {
        let rejection = rejection.busy_status(self.busy_status);
        let applied_wait = rejection.applied_wait();
        let Some(on_reject) = &self.on_reject else {
            let mut response = rejection.to_response().map(LockBody::text);
            confirm(response.headers_mut(), applied_wait);
            return response;
        };
        let mut response = on_reject(rejection.clone()).map(LockBody::boxed);
        response.extensions_mut().insert(rejection);
        let headers = response.headers_mut();
        confirm(headers, applied_wait);
        let no_store = HeaderValue::from_static("no-store");
        headers.entry(CACHE_CONTROL).or_insert(no_store);
        response
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("wait", &self.wait)
            .field("honors_preferred_wait", &self.honors_preferred_wait)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("writes_only", &self.writes_only)
            .field("busy_status", &self.busy_status)
            .field("release_at_head", &self.release_at_head)
            .field("on_lost", &self.on_lost)
            .field("observe_only", &self.passing.observe_only)
            .field("on_unavailable", &self.passing.on_unavailable)
            .finish_non_exhaustive()
    }
}
