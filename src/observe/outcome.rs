//! The labels of acquires and of replies.

use super::label::label;
use crate::{Error, ErrorKind};

/// Defines the outcomes of an acquire: the kinds of errors, and the two ends without an error.
macro_rules! outcomes {
    ($($kind:ident = $text:literal,)+) => {
        label! {
            /// The end of an acquire.
            pub(crate) enum Outcome {
                Granted = "granted",
                $($kind = $text,)+
                /// The caller dropped the acquire while it waited.
                Cancelled = "cancelled",
            }
        }

        impl Outcome {
            pub(crate) fn of(outcome: Result<(), &Error>) -> Self {
                match outcome.map_err(Error::kind) {
                    Ok(()) => Self::Granted,
                    $(Err(ErrorKind::$kind) => Self::$kind,)+
                }
            }
        }
    };
}

outcomes! {
    Busy = "busy",
    PermitsExhausted = "permits_exhausted",
    TooManyWaiters = "too_many_waiters",
    Overloaded = "overloaded",
    Unavailable = "unavailable",
    Refused = "refused",
    Lost = "lost",
    ShuttingDown = "shutting_down",
    InvalidKey = "invalid_key",
    Misconfigured = "misconfigured",
    NoRoute = "no_route",
    BodyTooLarge = "body_too_large",
    BodyTimeout = "body_timeout",
    BodyFailed = "body_failed",
    InvalidOption = "invalid_option",
    KeyConflict = "key_conflict",
    ReentrancyLimit = "reentrancy_limit",
    Upgrade = "upgrade",
    Unsupported = "unsupported",
}

label! {
    /// The reply to a renewal or a release.
    pub(crate) enum Reply {
        Done = "ok",
        NotHeld = "not_held",
        Failed = "failed",
    }
}

label! {
    /// The event after which the acquire loop was granted a lock that it waited for.
    pub(crate) enum WokenBy {
        Message = "message",
        Expiry = "expiry",
        Backstop = "backstop",
    }
}

label! {
    /// A command of a backend.
    pub(crate) enum Command {
        Acquire = "acquire",
        Contend = "contend",
        Leave = "leave",
        Renew = "renew",
        Release = "release",
        ReleaseOrKeep = "release_or_keep",
        Downgrade = "downgrade",
        Inspect = "inspect",
        ForceRelease = "force_release",
    }
}

label! {
    /// The end of a command, best first.
    #[derive(PartialOrd, Ord)]
    pub(crate) enum CommandOutcome {
        Done = "ok",
        /// It has not taken effect.
        Refused = "refused",
        /// It may have taken effect.
        Unknown = "unknown",
    }
}

label! {
    /// The end of a forced release.
    pub(crate) enum Forced {
        Released = "released",
        NotHeld = "not_held",
        Failed = "failed",
    }
}

label! {
    /// The option by which a request runs without its lock.
    pub(crate) enum Permit {
        ObserveOnly = "observe_only",
        OnUnavailable = "on_unavailable",
    }
}
