//! What every request through one layer has in common.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body::Body;
use tower::BoxError;

use super::unlocked::Passing;
use crate::layer::rejection::LockRejection;
use crate::lock::{valid_keep, valid_lease, valid_wait};
use crate::{Acquire, ConfigError, LockKeys, LockManager};

/// The treatment of a request whose lock is lost while it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// Drops the future of the handler and responds with 500 `lock-lost`. A body that already streams ends with an
    /// error. A client thus receives no success under a lost lock, except with a body without a length over
    /// HTTP/1.0, which cannot end with an error.
    #[default]
    Abort,
    /// Lets the handler finish and passes its response. The handler can watch [`Held::lost`](crate::Held::lost), and
    /// the storage can check the fencing token.
    Continue,
}

pub(in crate::layer) type BoxedBody = Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>;

type OnReject = dyn Fn(LockRejection) -> Response<BoxedBody> + Send + Sync;

type LimitOf = dyn Fn(&Parts) -> u32 + Send + Sync;

type Skip = dyn Fn(&Parts) -> bool + Send + Sync;

#[derive(Clone)]
pub(crate) struct Options {
    /// `None` for the wait of the manager. Zero for a single attempt.
    pub(in crate::layer) wait: Option<Duration>,
    pub(in crate::layer) lease: Option<Duration>,
    pub(in crate::layer) max_hold: Duration,
    /// `None` for the time of the manager.
    pub(in crate::layer) keep_released: Option<Duration>,
    pub(in crate::layer) reads: Reads,
    /// The limit of permits for a request, if requests get those in place of locks.
    pub(in crate::layer) permits: Option<Arc<LimitOf>>,
    pub(in crate::layer) skip: Option<Arc<Skip>>,
    /// `None` for the status of each kind.
    pub(in crate::layer) busy_status: Option<StatusCode>,
    pub(in crate::layer) release_at_head: bool,
    pub(in crate::layer) on_lost: OnLost,
    pub(in crate::layer) passing: Passing,
    pub(in crate::layer) on_reject: Option<Arc<OnReject>>,
    pub(in crate::layer) name: Option<Arc<str>>,
}

/// How the requests with safe methods are locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::layer) enum Reads {
    /// They need no lock.
    Unlocked,
    /// GET and HEAD share their locks, OPTIONS and TRACE need none.
    Shared,
    /// As all others.
    Exclusive,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            wait: None,
            lease: None,
            max_hold: Duration::from_secs(5 * 60),
            keep_released: None,
            reads: Reads::Unlocked,
            skip: None,
            permits: None,
            busy_status: None,
            release_at_head: false,
            on_lost: OnLost::Abort,
            passing: Passing::default(),
            on_reject: None,
            name: None,
        }
    }
}

/// A layer is built at start-up. The setters panic, because a setting that no request can use must not wait for the
/// first one.
impl Options {
    #[track_caller]
    pub(in crate::layer) fn set_wait(&mut self, wait: Duration) {
        assert_valid(valid_wait("wait", wait));
        self.wait = Some(wait);
    }

    #[track_caller]
    pub(in crate::layer) fn set_lease(&mut self, lease: Duration) {
        assert_valid(valid_lease("lease", lease));
        self.lease = Some(lease);
    }

    #[track_caller]
    pub(in crate::layer) fn set_max_hold(&mut self, max_hold: Duration) {
        assert_valid(valid_lease("max_hold", max_hold));
        self.max_hold = max_hold;
    }

    #[track_caller]
    pub(in crate::layer) fn set_keep_released(&mut self, time: Duration) {
        assert_valid(valid_keep("keep_released", time));
        self.keep_released = Some(time);
    }

    #[track_caller]
    pub(in crate::layer) fn set_busy_status(&mut self, status: StatusCode) {
        assert!(
            status.is_client_error(),
            "invalid `status`: must be a client error (4xx), not {status}"
        );
        self.busy_status = Some(status);
    }
}

#[track_caller]
pub(in crate::layer) fn assert_valid(setting: Result<(), ConfigError>) {
    if let Err(invalid) = setting {
        panic!("{invalid}");
    }
}

impl Options {
    pub(in crate::layer) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns `true` if the method of this request needs no lock.
    pub(in crate::layer) fn exempts(&self, request: &Parts) -> bool {
        match self.reads {
            // A limit is about the load of all requests.
            _ if self.permits.is_some() => false,
            Reads::Unlocked => is_read(request),
            Reads::Shared => [Method::OPTIONS, Method::TRACE].contains(&request.method),
            Reads::Exclusive => false,
        }
    }

    /// Returns the limit of permits for a request.
    pub(in crate::layer) fn limit(&self, request: &Parts) -> Option<u32> {
        self.permits.as_ref().map(|limit_of| limit_of(request))
    }

    /// Returns `true` if this request gets a shared lock.
    pub(in crate::layer) fn shares(&self, request: &Parts) -> bool {
        self.reads == Reads::Shared && is_read(request)
    }

    /// Whether a request whose lock is lost is aborted.
    pub(in crate::layer) fn on_lost(&self) -> OnLost {
        match self.passing.observe_only {
            true => OnLost::Continue,
            false => self.on_lost,
        }
    }

    /// Returns `true` if the program passes this request without a lock.
    pub(in crate::layer) fn skips(&self, request: &Parts) -> bool {
        self.skip.as_ref().is_some_and(|skip| skip(request))
    }

    pub(in crate::layer) fn acquire(&self, locks: &LockManager, keys: LockKeys) -> Acquire {
        let acquire = self.acquire_in_scope(locks, keys);
        match self.passing.observe_only {
            true => acquire.no_wait(),
            false => acquire,
        }
    }

    /// The acquire of a `Locked`, which has no handler to run without its guard.
    pub(crate) fn acquire_in_scope(&self, locks: &LockManager, keys: LockKeys) -> Acquire {
        let mut acquire = locks.acquire(keys).max_hold(self.max_hold);
        if let Some(wait) = self.wait {
            acquire = acquire.wait(wait);
        }
        if let Some(lease) = self.lease {
            acquire = acquire.lease(lease);
        }
        if let Some(time) = self.keep_released {
            acquire = acquire.keep_released(time);
        }
        if let Some(name) = self.name() {
            acquire = acquire.name(name);
        }
        acquire
    }
}

/// Returns `true` if the method is safe (RFC 9110 §9.2.1), and the request does not ask for another protocol.
///
/// A WebSocket is a GET over HTTP/1.1 that asks for an upgrade, and a `CONNECT` over HTTP/2. Both are locked.
fn is_read(request: &Parts) -> bool {
    request.method.is_safe() && !(request.method == Method::GET && asks_for_upgrade(request))
}

fn asks_for_upgrade(request: &Parts) -> bool {
    let lines = request.headers.get_all(CONNECTION).iter();
    let mut options = lines
        .map(HeaderValue::as_bytes)
        .flat_map(|line| line.split(|&byte| byte == b','));
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("name", &self.name)
            .field("wait", &self.wait)
            .field("lease", &self.lease)
            .field("max_hold", &self.max_hold)
            .field("keep_released", &self.keep_released)
            .field("reads", &self.reads)
            .field("busy_status", &self.busy_status)
            .field("release_at_head", &self.release_at_head)
            .field("on_lost", &self.on_lost)
            .field("observe_only", &self.passing.observe_only)
            .field("on_unavailable", &self.passing.on_unavailable)
            .finish_non_exhaustive()
    }
}
