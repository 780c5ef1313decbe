//! A rejected request, and its response.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::form::{Form, RequestInfo};
use super::problem::{PROBLEMS, Problem};
use crate::jitter::shortened;
use crate::{Error, ErrorKind, LostReason};

/// The reason why a request was rejected, or why its handler was stopped.
///
/// The response has it in its extensions, so that an outer layer can read the reason and replace the response.
/// [`LockLayer::on_reject`](crate::LockLayer::on_reject) receives it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the request was rejected with status {status}")]
pub struct LockRejection {
    #[source]
    error: Error,
    status: StatusCode,
    waited: Option<Duration>,
    retry_after: Option<Duration>,
    request_info: RequestInfo,
    applied: Applied,
    /// The handler returned the error, and may have done a part of its work before.
    is_in_handler: bool,
    lost_reason: Option<LostReason>,
}

/// What the layers and scopes around the source of a rejection have applied. The innermost setting counts.
#[derive(Debug, Clone, Copy, Default)]
struct Applied {
    /// The first of them has rendered the rejection for its client.
    response: bool,
    status: bool,
    on_reject: bool,
}

/// The `Retry-After` if the engine has no estimate.
const FALLBACK_RETRY_AFTER: Duration = Duration::from_secs(3);

/// <https://github.com/grpc/proposal/blob/master/A6-client-retries.md#pushback>
const RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

impl LockRejection {
    /// `waited` is the time that the request waited for the lock, if it did.
    pub(crate) fn new(error: Error, request_info: RequestInfo, waited: Option<Duration>) -> Self {
        let problem = Problem::of(error.kind());
        let retry_after = problem
            .temporary
            // Shorter only: the header is rounded up.
            .then(|| shortened(error.retry_after().unwrap_or(FALLBACK_RETRY_AFTER)))
            .map(rounded_up);
        Self {
            error,
            status: problem.status,
            waited: waited.filter(|_| problem.temporary),
            retry_after,
            request_info,
            applied: Applied::default(),
            is_in_handler: false,
            lost_reason: None,
        }
    }

    /// The rejection of a request whose handler returned `error`. A retry could repeat a part of its work.
    #[cfg(feature = "axum")]
    pub(crate) fn in_handler(error: Error) -> Self {
        Self {
            is_in_handler: true,
            retry_after: None,
            ..Self::from(error)
        }
    }

    fn problem(&self) -> Problem {
        let problem = Problem::of(self.kind());
        match self.is_in_handler {
            true => problem.in_handler(),
            false => problem,
        }
    }

    /// The rejection of a request that lost a lock.
    pub(in crate::layer) fn lost(reason: Option<LostReason>, request_info: RequestInfo) -> Self {
        Self {
            lost_reason: reason,
            ..Self::new(Error::new(ErrorKind::Lost), request_info, None)
        }
    }

    /// Returns `true` before a layer or scope has rendered the rejection.
    pub(in crate::layer) fn is_fresh(&self) -> bool {
        !self.applied.response
    }

    /// Returns the rejection as a layer or scope renders it.
    pub(in crate::layer) fn into_rendered(mut self, with_on_reject: bool) -> Self {
        self.applied.response = true;
        self.applied.on_reject |= with_on_reject;
        self
    }

    /// Returns the rejection from a handler, an extractor or a layer inside, to be rendered again for the
    /// client. Returns `None` for a response with another status, which the handler chose, and after an `on_reject`.
    pub(in crate::layer) fn of_handler<B>(
        response: &Response<B>,
        request_info: RequestInfo,
    ) -> Option<Self> {
        let rejection = response.extensions().get::<Self>()?;
        let is_unchanged =
            response.status() == rejection.status || rejection.request_info.form == Form::Grpc;
        (!rejection.applied.on_reject && is_unchanged).then(|| Self {
            request_info,
            ..rejection.clone()
        })
    }

    /// Returns `true` if a status for a busy resource, or for one without a free permit, is due. Other kinds keep their own.
    pub(in crate::layer) fn takes_busy_status(&self) -> bool {
        !self.applied.status && matches!(self.kind(), ErrorKind::Busy | ErrorKind::PermitsExhausted)
    }

    /// Sets the status for a busy resource, unless a layer or scope inside has set it.
    pub(in crate::layer) fn busy_status(mut self, status: Option<StatusCode>) -> Self {
        if let Some(status) = status.filter(|_| self.takes_busy_status()) {
            self.status = status;
            self.applied.status = true;
        }
        self
    }

    /// Returns the error of the acquire, or of the loss.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the kind of [`error`](Self::error).
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// Returns the HTTP status of the response. A gRPC client receives 200 and a `grpc-status` instead.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the `type` of the problem details: the address of a section of
    /// [`guide::problems`](crate::guide::problems), which ends in `#resource-busy` and the like. The type is
    /// `about:blank` for a body that is too large, late or incomplete.
    #[must_use]
    pub fn problem_type(&self) -> String {
        match self.problem().name {
            Some(name) => format!("{PROBLEMS}#{name}"),
            None => "about:blank".to_owned(),
        }
    }

    /// Returns the time that the request waited for the lock, or `None` if a wait could not have helped.
    #[must_use]
    pub fn waited(&self) -> Option<Duration> {
        self.waited
    }

    /// Returns why the lock was lost, for a rejection of the kind [`Lost`](ErrorKind::Lost) of a request that lost it.
    #[must_use]
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.lost_reason
    }

    /// Returns the time after which a retry can succeed, or `None` if a retry cannot. It includes its jitter, so it is
    /// the value in the response.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the default response, in a form that this client accepts, with this rejection in its extensions.
    ///
    /// [`on_reject`](crate::LockLayer::on_reject) can change it.
    #[must_use]
    pub fn to_response(&self) -> Response<String> {
        let problem = self.problem();
        let body = match self.request_info.form {
            Form::Problem => self.problem_json(&problem),
            Form::Text => format!("{}: {}\n", problem.title, self.detail(&problem)),
            Form::Grpc => String::new(),
        };
        let length = body.len();
        let is_head = self.request_info.head;
        let mut response = Response::new(if is_head { String::new() } else { body });
        let headers = response.headers_mut();
        if is_head {
            // The length that the response to a `GET` would have, RFC 9110 §8.6.
            headers.insert(CONTENT_LENGTH, length.into());
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.request_info.form == Form::Grpc {
            self.put_grpc_trailers(&problem, headers);
        } else {
            headers.insert(CONTENT_TYPE, self.content_type());
            self.put_retry_after(headers);
            *response.status_mut() = self.status;
        }
        response.extensions_mut().insert(self.clone());
        response
    }

    /// Adds when a retry can succeed, unless the headers state it.
    pub(in crate::layer) fn put_retry_after(&self, headers: &mut HeaderMap) {
        let Some(retry_after) = self.retry_after else {
            return;
        };
        let (name, value) = match self.request_info.form {
            Form::Grpc => (RETRY_PUSHBACK, whole_millis(retry_after)),
            Form::Problem | Form::Text => (RETRY_AFTER, whole_seconds(retry_after)),
        };
        headers.entry(name).or_insert(value.into());
    }

    fn content_type(&self) -> HeaderValue {
        HeaderValue::from_static(match self.request_info.form {
            Form::Problem => "application/problem+json",
            Form::Text => "text/plain; charset=utf-8",
            Form::Grpc => "application/grpc",
        })
    }

    /// RFC 9457.
    fn problem_json(&self, problem: &Problem) -> String {
        let mut members = serde_json::json!({
            "type": self.problem_type(),
            "title": problem.title,
            "status": self.status.as_u16(),
            "detail": self.detail(problem),
        });
        if let Some(waited) = self.waited {
            members["waited_ms"] = whole_millis(waited).into();
        }
        if let Some(retry_after) = self.retry_after {
            members["retry_after_ms"] = whole_millis(retry_after).into();
        }
        members.to_string()
    }

    /// A response without messages is one block of headers that also holds the trailers, with
    /// status 200: <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>.
    fn put_grpc_trailers(&self, problem: &Problem, headers: &mut HeaderMap) {
        const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');
        headers.insert(CONTENT_TYPE, self.content_type());
        headers.insert("grpc-status", (problem.grpc as u16).into());
        let detail = self.detail(problem);
        let message = utf8_percent_encode(&detail, ESCAPED).to_string();
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert("grpc-message", message);
        }
        self.put_retry_after(headers);
    }

    /// What an invalid key lacks is known only to its error, which never holds the key.
    fn detail(&self, problem: &Problem) -> String {
        match std::error::Error::source(&self.error) {
            Some(invalid) if self.kind() == ErrorKind::InvalidKey && !self.is_in_handler => {
                invalid.to_string()
            }
            _ => problem.detail.to_owned(),
        }
    }
}

/// The rejection of a request that has not begun. Its response has a `Retry-After` if a retry can succeed, so the client
/// sends the request again.
///
/// A handler that has not worked yet, and an extractor of the program, can return it. A handler that may have worked
/// returns the [`Error`], whose response is `lock-failed-in-handler`. Inside a [`LockLayer`](crate::LockLayer) or a
/// [`LockScopeLayer`](crate::LockScopeLayer), each response is rendered for the client of the request, with the settings
/// of the layer.
impl From<Error> for LockRejection {
    fn from(error: Error) -> Self {
        Self::new(error, RequestInfo::UNKNOWN, None)
    }
}

/// Rounds up to whole milliseconds, at least 1. After 0, a client would retry at once, in a loop.
fn rounded_up(retry_after: Duration) -> Duration {
    let millis = retry_after.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX).max(1))
}

/// Rounded up, at least 1.
fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_millis()
        .div_ceil(1000)
        .clamp(1, u128::from(u64::MAX)) as u64
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_and_at_least_one() {
        for (micros, millis, seconds) in [
            (0, 1, 1),
            (300, 1, 1),
            (1_000, 1, 1),
            (1_001, 2, 1),
            (1_000_000, 1_000, 1),
            (1_000_001, 1_001, 2),
            (29_500_000, 29_500, 30),
        ] {
            let retry_after = rounded_up(Duration::from_micros(micros));
            assert_eq!(whole_millis(retry_after), millis, "{micros}");
            assert_eq!(whole_seconds(retry_after), seconds, "{micros}");
        }
    }

    #[test]
    fn short_estimate_is_not_zero_for_client() {
        let busy = Error::new(ErrorKind::Busy).with_retry_after(Duration::from_micros(300));
        let rejection = LockRejection::new(busy, RequestInfo::UNKNOWN, None);
        let body: serde_json::Value = serde_json::from_str(rejection.to_response().body()).unwrap();
        assert_eq!(body["retry_after_ms"], 1);
    }
}
