//! Requests that run without their lock, because an option of the layer permits it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::mutex::Mutex;
use crate::observe::{self, Permit, Tally};
use crate::{Error, ErrorKind};

const TOWER_LOCK: HeaderName = HeaderName::from_static("tower-lock");

/// The treatment of a request whose lock cannot be acquired because the backend is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnUnavailable {
    /// The request is rejected with 503 `lock-unavailable`.
    #[default]
    Reject,
    /// The request runs without a lock, concurrently with others of the same key.
    ///
    /// It carries the extension [`Unlocked`], and the response the header `tower-lock: unlocked`.
    Pass,
}

/// An extension of a request that runs without its lock.
///
/// [`observe_only`](crate::LockLayer::observe_only) and [`OnUnavailable::Pass`] insert it. Such a request has
/// no [`Held`](crate::Held), also not that of an outer layer, so its handler must extract `Option<Held>`. A further layer
/// inside that locks adds its own [`Held`](crate::Held).
#[derive(Debug, Clone)]
pub struct Unlocked {
    error: Error,
}

impl Unlocked {
    pub(in crate::layer) fn new(error: Error) -> Self {
        Self { error }
    }

    /// Returns why the lock was not acquired.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }
}

/// Adds the header to the response of a request that passed an unavailable backend.
pub(in crate::layer) fn mark_unlocked(headers: &mut HeaderMap) {
    headers.insert(TOWER_LOCK, HeaderValue::from_static("unlocked"));
}

/// Which requests of a layer may run without their lock.
#[derive(Debug, Clone, Default)]
pub(in crate::layer) struct Passing {
    pub(in crate::layer) observe_only: bool,
    pub(in crate::layer) on_unavailable: OnUnavailable,
    reported: Arc<Reported>,
    /// Counts these requests.
    pub(in crate::layer) tally: Option<Arc<Tally>>,
}

/// Which requests that pass an unavailable backend are worth a warning: the first one of an outage. A part of the backend
/// can be unavailable while other requests are granted, so there is at most one warning in [`PAUSE`].
#[derive(Debug, Default)]
struct Reported {
    /// Whether a request that passed since the last grant was reported.
    since_grant: AtomicBool,
    last: Mutex<Option<Instant>>,
}

/// The shortest time between two warnings.
const PAUSE: Duration = Duration::from_secs(10);

impl Reported {
    /// Records a request that passed. Returns `true` if it is worth a warning.
    fn passed(&self, now: Instant) -> bool {
        if self.since_grant.swap(true, Ordering::Relaxed) {
            return false;
        }
        let mut last = self.last.lock();
        let is_due = last.is_none_or(|last| now.duration_since(last) >= PAUSE);
        if is_due {
            *last = Some(now);
        } else {
            // The first request after the pause reports this outage.
            self.since_grant.store(false, Ordering::Relaxed);
        }
        is_due
    }

    fn granted(&self) {
        if self.since_grant.load(Ordering::Relaxed) {
            self.since_grant.store(false, Ordering::Relaxed);
        }
    }
}

impl Passing {
    fn count(&self, permit: Permit) -> Permit {
        if let Some(tally) = &self.tally {
            tally.unlocked(permit);
        }
        permit
    }

    /// Returns the option by which the request runs despite this error, after it reported the request.
    pub(in crate::layer) fn pass(&self, error: &Error) -> Option<Permit> {
        if self.observe_only {
            observe::observed(error);
            return Some(self.count(Permit::ObserveOnly));
        }
        if self.on_unavailable == OnUnavailable::Pass && error.kind() == ErrorKind::Unavailable {
            let is_first = self.reported.passed(Instant::now());
            observe::passed(error, is_first);
            return Some(self.count(Permit::OnUnavailable));
        }
        None
    }

    /// Records a grant: the next outage is a new one.
    pub(in crate::layer) fn granted(&self) {
        if self.on_unavailable == OnUnavailable::Pass {
            self.reported.granted();
        }
    }
}
