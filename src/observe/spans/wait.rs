use std::num::NonZeroU32;
use std::time::Duration;

use crate::mode::Mode;
#[cfg(feature = "tracing")]
use crate::observe::millis::millis;
use crate::observe::outcome::Outcome;
use crate::observe::via::Via;

/// The span of an acquire that waits, a child of the span of its caller.
#[derive(Debug)]
pub(crate) struct WaitSpan {
    /// `None` if no subscriber records it. Boxed because thousands of acquires can wait at a time.
    #[cfg(feature = "tracing")]
    span: Option<Box<tracing::Span>>,
}

impl WaitSpan {
    /// Begins the span. `keys` is called only if a subscriber records it.
    pub(crate) fn begin<'a>(
        layer: impl FnOnce() -> Option<&'a str>,
        mode: impl FnOnce() -> Mode,
        keys: impl FnOnce() -> Option<String>,
    ) -> Self {
        #[cfg(feature = "tracing")]
        {
            use tracing::field::Empty;

            let span = tracing::debug_span!(
                target: "tower_lock",
                "lock.acquire",
                lock.layer = layer(),
                lock.mode = mode().as_str(),
                lock.keys = Empty,
                lock.queue_position = Empty,
                lock.via = Empty,
                lock.outcome = Empty,
                lock.wait_ms = Empty,
                "error.type" = Empty,
                otel.kind = "internal",
                otel.status_code = Empty,
            );
            if span.is_disabled() {
                return Self { span: None };
            }
            if let Some(keys) = keys() {
                span.record("lock.keys", keys);
            }
            Self {
                span: Some(Box::new(span)),
            }
        }
        #[cfg(not(feature = "tracing"))]
        Self {}
    }

    /// Runs a part of the acquire inside the span.
    #[inline]
    pub(crate) fn within<T>(&self, part: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.span {
            return span.in_scope(part);
        }
        part()
    }

    /// Records the end of the acquire.
    pub(crate) fn end(
        &self,
        outcome: Outcome,
        via: Option<Via>,
        waited: Duration,
        queue_position: Option<NonZeroU32>,
    ) {
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.span {
            span.record("lock.outcome", outcome.as_str());
            span.record("lock.wait_ms", millis(waited));
            if let Some(position) = queue_position {
                span.record("lock.queue_position", position.get());
            }
            match via {
                Some(via) => {
                    span.record("lock.via", via.as_str());
                }
                None if outcome == Outcome::Cancelled => {}
                None => {
                    span.record("error.type", outcome.as_str());
                    span.record("otel.status_code", "ERROR");
                }
            }
        }
    }
}
