//! The time that a request waited for its lock, for its client and for other middleware.

use std::num::NonZeroU32;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response};

use super::form::{Form, RequestInfo};
use super::lock_rejection::LockRejection;
use crate::Held;
use crate::observe::{Outcome, Via};

pub(in crate::layer) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// How a request got its lock: an extension of the response, with
/// [`LockLayer::server_timing`](crate::LockLayer::server_timing). Of nested layers, the extension is that of the inner
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockTiming {
    /// How long the request waited for its lock.
    pub waited: Duration,
    /// How the lock was granted, also if it was lost later, or `None` if it was not.
    pub via: Option<Via>,
    /// The position of the request in the queue of this process when it joined it, or `None` if it did not queue. The
    /// next request has the position 1. Of several keys, the largest one.
    pub queue_position: Option<u32>,
}

impl LockTiming {
    pub(in crate::layer) fn granted(held: &Held) -> Self {
        Self {
            waited: held.waited(),
            via: Some(held.via()),
            queue_position: held.queue_position().map(NonZeroU32::get),
        }
    }

    /// Adds the timing to the response of a request that had its lock.
    pub(in crate::layer) fn add_to<B>(self, response: &mut Response<B>, request_info: RequestInfo) {
        let description = self.via.map_or("unlocked", Via::as_str);
        self.add(description, response, request_info);
    }

    /// Adds the timing to the response of a request that was rejected.
    pub(in crate::layer) fn add_rejected<B>(rejection: &LockRejection, response: &mut Response<B>) {
        let timing = rejection.lost_timing().unwrap_or_else(|| Self {
            waited: rejection.waited().unwrap_or_default(),
            via: None,
            queue_position: rejection.queue_position().map(NonZeroU32::get),
        });
        let description = Outcome::of(Err(rejection.error())).as_str();
        timing.add(description, response, rejection.request_info());
    }

    fn add<B>(self, description: &str, response: &mut Response<B>, request_info: RequestInfo) {
        // An inner layer may have set it.
        if response.extensions().get::<Self>().is_none() {
            response.extensions_mut().insert(self);
        }
        // A gRPC client reads no such header.
        if request_info.form == Form::Grpc {
            return;
        }
        let millis = self.waited.as_secs_f64() * 1000.0;
        let value = match self.waited.is_zero() {
            true => format!("lock;dur=0;desc={description}"),
            false => format!("lock;dur={millis:.1};desc={description}"),
        };
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().append(SERVER_TIMING, value);
        }
    }
}
