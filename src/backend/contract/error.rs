//! The errors of commands.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The longest time after which a command without a reply takes effect: a server or a network that was stopped
/// continues with the commands in its buffers. If it was stopped for longer, a lease that it then grants expires.
pub(crate) const LATE: Duration = Duration::from_secs(60);

/// An error of a [`Backend`](super::Backend) command, which then has no outcome.
#[derive(Debug, Clone)]
pub struct BackendError {
    kind: BackendErrorKind,
    may_have_taken_effect: bool,
    source: Arc<dyn std::error::Error + Send + Sync>,
}

/// The kinds of [`BackendError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store is unreachable or cannot serve the command now. A retry can succeed.
    Unavailable,
    /// The store rejects this client. A retry cannot succeed.
    Misconfigured,
    /// The key holds a value that is not a lock.
    Conflict,
    /// The store has no such command.
    Unsupported,
}

impl BackendError {
    /// Creates an error of a command that did not and will not take effect.
    pub fn refused(
        kind: BackendErrorKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            kind,
            may_have_taken_effect: false,
            source: source.into().into(),
        }
    }

    /// Creates an error of a command without a reply, which may have taken effect.
    pub fn unknown(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            kind: BackendErrorKind::Unavailable,
            may_have_taken_effect: true,
            source: source.into().into(),
        }
    }

    /// Creates the error of a result that a backend owes and did not return.
    pub(in crate::backend) fn no_outcome() -> Self {
        Self::unknown("backend returned fewer results than requested")
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    /// Returns `true` if the command may have taken effect.
    #[must_use]
    pub fn may_have_taken_effect(&self) -> bool {
        self.may_have_taken_effect
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            BackendErrorKind::Unavailable if self.may_have_taken_effect => {
                "no usable reply from the lock backend"
            }
            BackendErrorKind::Unavailable => "lock backend cannot serve the command",
            BackendErrorKind::Misconfigured => "lock backend refuses this client",
            BackendErrorKind::Conflict => "key holds a value that is not a lock",
            BackendErrorKind::Unsupported => "lock backend does not support the command",
        })
    }
}

impl std::error::Error for BackendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_ref())
    }
}
