//! What a command can run into, and what the engine needs to know of it.

use std::time::Duration;

use redis::{RedisError, ServerError, Value};

use crate::backend::redis::connection::Unanswered;
use crate::backend::{BackendError, BackendErrorKind};

/// Why a command has no answer that can be used.
pub(crate) enum CommandError {
    /// It was refused, and did not take effect.
    Refused(BackendError),
    /// There was no connection for it.
    Unsent(BackendError),
    /// The server does not know the script (any more). It did not take effect.
    NoScript { resent: bool },
    /// Another node of the cluster has the slot, at this address, or will have it soon.
    Elsewhere {
        address: String,
        asking: bool,
        resent: bool,
    },
    /// The keys of the call are partly here and partly at another node: each may go by itself.
    Scattered(BackendError),
    /// No answer in time. It may still be on its way: what undoes it must go behind it.
    NoAnswer(Unanswered),
    /// The connection broke with the command on it.
    Died(BackendError),
}

/// A refusal of our own, without a server behind it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    #[error("no connection within {0:?}")]
    NoConnection(Duration),
    #[error("the server closed the connection")]
    HungUp,
    #[error("the runtime was shut down")]
    NoRuntime,
    #[error("the server lost the script while it was called")]
    ScriptLost,
    #[error("the server answered with {0}, which no command of this crate expects")]
    Answer(&'static str),
    #[error("the slot of the key is at another node of the cluster")]
    Elsewhere,
    #[error("no node of the cluster serves the slot of the key")]
    Nowhere,
    #[error("the key holds a hash without an end")]
    NoEnd,
    #[error("the key is empty")]
    EmptyKey,
    #[error("the sentinels do not know the service {0:?}")]
    UnknownService(String),
    #[error("no sentinel could be asked for the primary")]
    SentinelsFail(#[source] RedisError),
    #[error("no sentinel named the primary within {0:?}")]
    SentinelsSilent(Duration),
    #[error("the server is a node of a cluster: the URL must begin with `redis+cluster`")]
    ClusterNode,
    #[error("the server is a sentinel: the URL must begin with `redis+sentinel`")]
    Sentinel,
    #[error("the primary {address} cannot be used")]
    Primary {
        address: String,
        source: BackendError,
    },
    #[error("the server is not the primary")]
    NotPrimary,
    #[error("{acknowledged} of {asked} replicas acknowledged the grant")]
    TooFewReplicas { acknowledged: i64, asked: usize },
    #[error("the server came back without its data; no lock is granted for another {0:?}")]
    Quarantine(Duration),
    #[error("too many acquires wait for replicas")]
    Crowded,
}

impl Cause {
    /// An answer by its kind alone: it may hold keys, owners, or what belongs to somebody else.
    pub(crate) fn answer(answer: &Value) -> Self {
        Self::Answer(match answer {
            Value::Nil => "nothing",
            Value::Int(_) => "a number",
            Value::BulkString(_) | Value::SimpleString(_) => "a text",
            Value::Array(_) => "a list",
            Value::Push { .. } => "a message",
            _ => "something",
        })
    }
}

impl CommandError {
    /// What it means for a command that was sent before, over a connection that broke (`resent`):
    /// what is refused now may have been done then.
    pub(crate) fn after(self, resent: bool) -> Self {
        match self {
            fault if !resent => fault,
            Self::Refused(error) | Self::Unsent(error) | Self::Scattered(error) => {
                Self::Died(BackendError::unknown(error))
            }
            Self::NoScript { .. } => Self::NoScript { resent: true },
            Self::Elsewhere {
                address, asking, ..
            } => Self::Elsewhere {
                address,
                asking,
                resent: true,
            },
            Self::NoAnswer(_) | Self::Died(_) => self,
        }
    }

    pub(crate) fn unavailable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Refused(BackendError::refused(BackendErrorKind::Unavailable, source))
    }
}

impl Cause {
    /// The trouble behind an error, if it is one of ours.
    pub(crate) fn behind(error: &BackendError) -> Option<&Self> {
        std::error::Error::source(error)?.downcast_ref()
    }
}

impl From<CommandError> for BackendError {
    fn from(fault: CommandError) -> Self {
        match fault {
            CommandError::Refused(error)
            | CommandError::Unsent(error)
            | CommandError::Scattered(error)
            | CommandError::Died(error) => error,
            CommandError::NoScript { .. } => {
                Self::refused(BackendErrorKind::Unavailable, Cause::ScriptLost)
            }
            CommandError::Elsewhere { .. } => {
                Self::refused(BackendErrorKind::Unavailable, Cause::Elsewhere)
            }
            CommandError::NoAnswer(silence) => Self::unknown(Cause::NoAnswer(silence.waited())),
        }
    }
}

/// An answer this crate's scripts do not give: a proxy, or somebody else's script under the hash.
pub(crate) fn unexpected(answer: &Value) -> BackendError {
    // What was done is anybody's guess.
    BackendError::unknown(Cause::answer(answer))
}

pub(crate) fn no_end() -> BackendError {
    BackendError::refused(BackendErrorKind::Conflict, Cause::NoEnd)
}

/// Takes the server's errors out of an answer.
pub(crate) fn check(answer: Value) -> Result<Value, CommandError> {
    match answer {
        Value::ServerError(error) => Err(match error.code() {
            "NOSCRIPT" => CommandError::NoScript { resent: false },
            "TRYAGAIN" => CommandError::Scattered(refusal(error)),
            code @ ("MOVED" | "ASK") => match elsewhere(&error) {
                Some(address) => CommandError::Elsewhere {
                    address,
                    asking: code == "ASK",
                    resent: false,
                },
                None => CommandError::Refused(refusal(error)),
            },
            _ => CommandError::Refused(refusal(error)),
        }),
        answer => Ok(answer),
    }
}

/// `MOVED <slot> <host>:<port>`.
fn elsewhere(error: &ServerError) -> Option<String> {
    let address = error.details()?.split_ascii_whitespace().nth(1)?;
    Some(address.to_owned())
}

/// Whether the server says that it may not be written to, since it became a replica.
pub(crate) fn is_demoted(answer: &Value) -> bool {
    let error = match answer {
        // Each key of a call has an answer of its own.
        Value::Array(answers) => return answers.iter().any(is_demoted),
        Value::ServerError(error) => error,
        _ => return false,
    };
    let details = || error.details().unwrap_or_default();
    // `MASTERDOWN`: a replica out of touch that may not answer from what it has.
    matches!(error.code(), "READONLY" | "MASTERDOWN")
        || (error.code() == "ERR" && details().contains("READONLY"))
}

/// An error the server answered with: the command did not take effect.
pub(crate) fn refusal(error: ServerError) -> BackendError {
    if error.code() == "QUARANTINE" {
        let left = error.details().and_then(|left| left.trim().parse().ok());
        let left = Duration::from_millis(left.unwrap_or(0));
        return BackendError::refused(BackendErrorKind::Unavailable, Cause::Quarantine(left));
    }
    BackendError::refused(
        kind_of(error.code(), error.details().unwrap_or_default()),
        RedisError::from(error),
    )
}

/// The kind of an error of the connection's handshake or of a server.
pub(crate) fn kind_of_connecting(error: &RedisError) -> BackendErrorKind {
    use redis::ErrorKind;
    match error.kind() {
        ErrorKind::AuthenticationFailed
        | ErrorKind::InvalidClientConfig
        | ErrorKind::RESP3NotSupported => BackendErrorKind::Misconfigured,
        #[cfg(feature = "redis-tls")]
        ErrorKind::Io if crate::backend::redis::connection::is_disagreement(error) => {
            BackendErrorKind::Misconfigured
        }
        ErrorKind::Io | ErrorKind::Parse => BackendErrorKind::Unavailable,
        _ => kind_of(
            error.code().unwrap_or_default(),
            error.detail().unwrap_or_default(),
        ),
    }
}

fn kind_of(code: &str, details: &str) -> BackendErrorKind {
    /// `CROSSSLOT`: a node of a cluster was given as if it were alone.
    const CODES: [&str; 4] = ["NOPERM", "NOAUTH", "WRONGPASS", "CROSSSLOT"];
    const SENTENCES: [&str; 11] = [
        // Somebody else's under the name of a counter: of ours, of Redisson.
        "FENCE",
        "value is not an integer",
        // redis-rs loses the code when the handshake is refused.
        "has no permissions",
        "Authentication required",
        "cluster support disabled",
        "NOPERM",
        "The user executing the script can't",
        "ACL failure in script",
        "DB index is out of range",
        "nknown command",
        "nknown Redis command",
    ];
    // Since 7.0 the error of a command inside a script keeps its code; before, it arrives as an
    // `ERR` that quotes it.
    let says = |what: &str| code == "ERR" && details.contains(what);
    if code == "WRONGTYPE" || says("WRONGTYPE") {
        BackendErrorKind::Conflict
    } else if CODES.contains(&code) || SENTENCES.into_iter().any(says) {
        BackendErrorKind::Misconfigured
    } else {
        // LOADING, READONLY, MASTERDOWN, CLUSTERDOWN, TRYAGAIN, NOREPLICAS, MISCONF, BUSY, OOM, and
        // whatever comes to be: worth another try later.
        BackendErrorKind::Unavailable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unexpected_answer_is_told_without_what_is_in_it() {
        let list = Value::Array(vec![Value::BulkString(b"canary".to_vec())]);
        let error = unexpected(&list);
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("a list"), "{cause}");
        assert!(!format!("{cause} {error:?}").contains("canary"));
    }

    #[test]
    fn errors_are_told_apart_by_what_helps_against_them() {
        use BackendErrorKind::{Conflict, Misconfigured, Unavailable};
        for (code, details, kind) in [
            (
                "LOADING",
                "Redis is loading the dataset in memory",
                Unavailable,
            ),
            ("OOM", "command not allowed", Unavailable),
            ("BUSY", "Redis is busy running a script", Unavailable),
            (
                "READONLY",
                "You can't write against a read only replica.",
                Unavailable,
            ),
            (
                "ERR",
                "Error running script (call to f_1): @user_script:1: -OOM command",
                Unavailable,
            ),
            ("WRONGTYPE", "Operation against a key", Conflict),
            (
                "ERR",
                "Error running script: @user_script:7: WRONGTYPE Operation",
                Conflict,
            ),
            ("ERR", "FENCE the fencing counter a holds", Misconfigured),
            (
                "ERR",
                "Error running script (call to f_1): @user_script:19: FENCE the fencing counter",
                Misconfigured,
            ),
            ("NOPERM", "this user has no permissions", Misconfigured),
            ("NOAUTH", "Authentication required.", Misconfigured),
            // In these words where a database is chosen without a password.
            ("ERR", "Authentication required.", Misconfigured),
            (
                "ERR",
                "The user executing the script can't run this command",
                Misconfigured,
            ),
        ] {
            assert_eq!(kind_of(code, details), kind, "{code} {details}");
        }
    }
}
