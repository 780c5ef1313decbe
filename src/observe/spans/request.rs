/// The span in which a caller acquires a lock, so that a later event belongs to its request.
///
/// An id, because a handle would delay the end of the span. An event for a span that has ended has no parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestSpan {
    #[cfg(feature = "tracing")]
    id: Option<std::num::NonZeroU64>,
}

impl RequestSpan {
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) const NONE: Self = Self {
        #[cfg(feature = "tracing")]
        id: None,
    };

    #[inline]
    pub(crate) fn current() -> Self {
        Self {
            #[cfg(feature = "tracing")]
            id: tracing::Span::current()
                .id()
                .map(|id| id.into_non_zero_u64()),
        }
    }

    #[cfg(feature = "tracing")]
    pub(in crate::observe) fn id(self) -> Option<tracing::span::Id> {
        self.id.map(tracing::span::Id::from_non_zero_u64)
    }
}
