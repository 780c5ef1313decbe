//! The reason that a command has no usable reply.

use std::error::Error;
use std::time::Duration;

use deadpool_redis::{PoolError, TimeoutType};
use redis::{ServerError, Value};

use super::cause::{Cause, unavailable};
use super::rejection::{FOR_ALL_KEYS, server_error};
use super::server_error::{is_quoting, refusal};
use crate::backend::{BackendError, BackendErrorKind};

/// The reason that a command has no usable reply.
pub(crate) enum CommandError {
    /// The server rejected the command, which did not take effect.
    Refused(BackendError),
    /// No connection was available, so the command was not sent.
    Unsent(BackendError),
    /// The server does not have the script. The command did not take effect.
    NoScript,
    /// The node at this address serves the slot, or will serve it soon.
    Elsewhere { address: String, asking: bool },
    /// Some keys of the call are at another node, so each key needs a call of its own.
    Scattered(BackendError),
    /// No reply arrived within this time. The command or its reply may still be in flight.
    Unanswered(Duration),
    /// The connection ended while the command was in flight.
    Died(BackendError),
}

impl CommandError {
    /// Returns the error of a command that was sent before (`resent`), over a connection that
    /// ended: a rejection of the second attempt does not exclude that the first took effect.
    pub(crate) fn after(self, resent: bool) -> Self {
        match self {
            Self::Refused(error) | Self::Unsent(error) | Self::Scattered(error) if resent => {
                Self::Died(BackendError::unknown(error))
            }
            error => error,
        }
    }

    /// Returns `true` if the server may have rejected a call for only some of its keys, so that each key needs
    /// a call of its own.
    pub(crate) fn may_spare_keys(&self) -> bool {
        match self {
            Self::Scattered(_) => true,
            Self::Refused(error) => {
                server_error(error).is_some_and(|(code, _)| !FOR_ALL_KEYS.contains(&code))
            }
            _ => false,
        }
    }

    /// Returns `true` if the ACL denies one of the keys, and not a command. All versions word it like this:
    /// `NOPERM … to access a key`.
    pub(crate) fn is_denied(&self) -> bool {
        let Self::Refused(error) = self else {
            return false;
        };
        let says = |details: &str| details.contains(" access ") && details.contains(" key");
        error.kind() == BackendErrorKind::Misconfigured
            && server_error(error).is_some_and(|(_, details)| says(details))
    }

    /// Returns `true` if the command may succeed without the queue among its keys.
    pub(crate) fn excludes_queue(&self) -> bool {
        matches!(self, Self::Scattered(_)) || self.is_denied()
    }

    /// Returns `true` if the server rejects calls over several slots, and not only while one moves.
    pub(crate) fn spans_slots(&self) -> bool {
        let Self::Scattered(error) = self else {
            return false;
        };
        server_error(error).is_some_and(|(code, _)| code == "CROSSSLOT")
    }

    /// Returns `true` if the slot is moving to the node that the redirection names.
    pub(crate) fn is_ask(&self) -> bool {
        matches!(self, Self::Elsewhere { asking: true, .. })
    }

    /// Returns the error of a rejection by a wrong server. Its redirection to its own address leads nowhere.
    pub(crate) fn by_wrong_server(self) -> Self {
        match self {
            Self::Elsewhere { .. } => Self::unavailable(Cause::NotPrimary),
            error => error,
        }
    }

    /// Returns `true` if the server rejected the command, over a connection that is still usable.
    pub(crate) fn is_rejection(&self) -> bool {
        match self {
            Self::Refused(_) | Self::NoScript | Self::Elsewhere { .. } | Self::Scattered(_) => true,
            Self::Unsent(_) | Self::Unanswered(_) | Self::Died(_) => false,
        }
    }

    /// Returns `true` if another node may serve the slot now.
    pub(crate) fn is_topological(&self) -> bool {
        match self {
            Self::Refused(error) if matches!(Cause::behind(error), Some(Cause::NotPrimary)) => true,
            Self::Refused(error) => server_error(error).is_some_and(|(code, details)| {
                MOVED_SLOT.contains(&code) || (is_quoting(code) && details.contains("READONLY"))
            }),
            Self::Unsent(error) => {
                error.kind() == BackendErrorKind::Unavailable && !is_of_this_process(error)
            }
            Self::Died(_) | Self::Unanswered(_) => true,
            Self::NoScript | Self::Elsewhere { .. } | Self::Scattered(_) => false,
        }
    }

    /// Creates a rejection that a later attempt may not meet.
    pub(crate) fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Refused(unavailable(source))
    }
}

/// The codes of a server that serves no writes to the slot, which another node may do.
const MOVED_SLOT: [&str; 4] = ["CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"];

/// Returns `true` if no connection was available for a reason that no server has.
fn is_of_this_process(error: &BackendError) -> bool {
    let pool = Error::source(error).and_then(|source| source.downcast_ref());
    matches!(pool, Some(PoolError::Timeout(TimeoutType::Wait)))
        || matches!(
            Cause::behind(error),
            Some(Cause::Crowded | Cause::NoCredentials(_) | Cause::NoRuntime)
        )
}

impl From<CommandError> for BackendError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Refused(error)
            | CommandError::Unsent(error)
            | CommandError::Scattered(error)
            | CommandError::Died(error) => error,
            CommandError::NoScript => unavailable(Cause::ScriptLost),
            CommandError::Elsewhere { .. } => unavailable(Cause::Elsewhere),
            CommandError::Unanswered(waited) => Self::unknown(Cause::NoReply(waited)),
        }
    }
}

/// Turns an error reply into an error.
pub(crate) fn check(reply: Value) -> Result<Value, CommandError> {
    match reply {
        Value::ServerError(error) => Err(match error.code() {
            "NOSCRIPT" => CommandError::NoScript,
            "TRYAGAIN" | "CROSSSLOT" => CommandError::Scattered(refusal(error)),
            code @ ("MOVED" | "ASK") => match elsewhere(&error) {
                Some(address) => CommandError::Elsewhere {
                    address,
                    asking: code == "ASK",
                },
                None => CommandError::Refused(refusal(error)),
            },
            _ => CommandError::Refused(refusal(error)),
        }),
        reply => Ok(reply),
    }
}

/// Returns the address in `MOVED <slot> <host>:<port>`.
fn elsewhere(error: &ServerError) -> Option<String> {
    let address = error.details()?.split_ascii_whitespace().nth(1)?;
    Some(address.to_owned())
}

#[cfg(test)]
mod tests {
    use redis::make_extension_error;

    use super::*;

    fn refused(code: &str, detail: &str) -> BackendError {
        let error = make_extension_error(code.to_owned(), Some(detail.to_owned()));
        BackendError::refused(BackendErrorKind::Unavailable, error)
    }

    #[test]
    fn only_other_nodes_are_topological() {
        use CommandError::{Died, Elsewhere, NoScript, Refused, Scattered, Unanswered, Unsent};
        let wait = Duration::ZERO;
        let elsewhere = Elsewhere {
            address: String::new(),
            asking: false,
        };
        let full = PoolError::Timeout(TimeoutType::Wait);
        let unconnected = PoolError::Timeout(TimeoutType::Create);
        let denied = BackendError::refused(BackendErrorKind::Misconfigured, Cause::NoTtl);
        let rejection = |code, detail| Refused(refused(code, detail));
        for (error, expected) in [
            (Unsent(unavailable(Cause::NoConnection(wait))), true),
            (Unsent(unavailable(Cause::HungUp)), true),
            (Unsent(unavailable(Cause::NotPrimary)), true),
            (Unsent(unavailable(Cause::Nowhere)), true),
            (Unsent(unavailable(unconnected)), true),
            (Unsent(unavailable(full)), false),
            (Unsent(unavailable(Cause::Crowded)), false),
            (Unsent(unavailable(Cause::NoRuntime)), false),
            (
                Unsent(unavailable(Cause::NoCredentials("no".into()))),
                false,
            ),
            (Unsent(denied), false),
            (Died(BackendError::unknown(Cause::HungUp)), true),
            (Unanswered(wait), true),
            (NoScript, false),
            (elsewhere, false),
            (Scattered(refused("TRYAGAIN", "")), false),
            (rejection("CLUSTERDOWN", "Hash slot not served"), true),
            (rejection("LOADING", ""), true),
            (rejection("MASTERDOWN", ""), true),
            (rejection("READONLY", ""), true),
            (rejection("ERR", "-READONLY You can't write"), true),
            (rejection("OOM", ""), false),
            (rejection("ERR", "-OOM"), false),
            (rejection("BUSY", ""), false),
            (rejection("MISCONF", ""), false),
            (rejection("NOREPLICAS", ""), false),
            (rejection("NOPERM", ""), false),
            (Refused(unavailable(Cause::Quarantine(wait))), false),
        ] {
            let topological = error.is_topological();
            let error = BackendError::from(error);
            assert_eq!(topological, expected, "{error:?}");
        }
    }

    #[test]
    fn only_calls_over_slots_show_slots() {
        let rejection = |text: &str| check(redis::parse_redis_value(text.as_bytes()).unwrap());
        let over_slots = rejection("-CROSSSLOT Keys in request don't hash to the same slot\r\n");
        assert!(over_slots.unwrap_err().spans_slots());
        let moving = rejection("-TRYAGAIN Multiple keys request during rehashing of slot\r\n");
        assert!(!moving.unwrap_err().spans_slots());
    }
}
