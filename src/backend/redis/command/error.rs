//! Errors of a command, classified by what the engine must know about them.

use std::error::Error;
use std::time::Duration;

use redis::{RedisError, ServerError, Value, make_extension_error};

use crate::backend::{BackendError, BackendErrorKind};

/// The reason that a command has no usable reply.
pub(crate) enum CommandError {
    /// The server rejected the command, which did not take effect.
    Refused(BackendError),
    /// No connection was available, so the command was not sent.
    Unsent(BackendError),
    /// The server does not have the script. The command did not take effect.
    NoScript { resent: bool },
    /// The node at this address serves the slot, or will serve it soon.
    Elsewhere {
        address: String,
        asking: bool,
        resent: bool,
    },
    /// Some keys of the call are at another node, so each key needs a call of its own.
    Scattered(BackendError),
    /// No reply arrived within this time. The command or its reply may still be in flight.
    Unanswered(Duration),
    /// The connection ended while the command was in flight.
    Died(BackendError),
}

/// The cause of an error that this crate detected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error("no reply within {0:?}")]
    NoReply(Duration),
    #[error("no connection within {0:?}")]
    NoConnection(Duration),
    #[error("credentials provider failed")]
    NoCredentials(#[source] Box<dyn Error + Send + Sync>),
    #[error("server closed the connection")]
    HungUp,
    #[error("runtime was shut down")]
    NoRuntime,
    #[error("server lost the script during the call")]
    ScriptLost,
    #[error("server does not know the command {0}")]
    UnknownCommand(String),
    #[error("unexpected reply from the server: {0}")]
    Reply(&'static str),
    #[error("another cluster node serves the key's slot")]
    Elsewhere,
    #[error("no cluster node serves the key's slot")]
    Nowhere,
    #[error("key holds a hash without a TTL")]
    NoTtl,
    #[error("user may not read the holder: the permission `+hgetall` is missing")]
    UnreadableHolder,
    #[error("key is empty")]
    EmptyKey,
    #[error("sentinels do not know the service {0:?}")]
    UnknownService(String),
    #[error("no sentinel could be asked for the primary")]
    SentinelsFail(#[source] BackendError),
    #[error("no sentinel named the primary within {0:?}")]
    SentinelsSilent(Duration),
    #[error("server is a cluster node: the URL must begin with `redis+cluster`")]
    ClusterNode,
    #[error("server is a sentinel: the URL must begin with `redis+sentinel`")]
    Sentinel,
    #[error("primary {address} is unusable")]
    Primary {
        address: String,
        source: BackendError,
    },
    #[error("server is not the primary")]
    NotPrimary,
    #[error("{acknowledged} of {asked} replicas acknowledged the grant")]
    TooFewReplicas { acknowledged: i64, asked: usize },
    #[error("server restarted or lost its data; no grants for another {0:?}")]
    Quarantine(Duration),
    #[error("too many acquires wait for replicas")]
    Crowded,
}

impl Cause {
    /// Describes a reply by its type alone: its content may be a key, an owner or foreign data.
    pub(crate) fn reply(reply: &Value) -> Self {
        Self::Reply(match reply {
            Value::Nil => "nil",
            Value::Int(_) => "an integer",
            Value::BulkString(_) | Value::SimpleString(_) => "a string",
            Value::Array(_) => "an array",
            Value::Push { .. } => "a push message",
            _ => "another type",
        })
    }

    /// Returns the cause of an error that this crate detected.
    pub(crate) fn behind(error: &BackendError) -> Option<&Self> {
        Error::source(error)?.downcast_ref()
    }
}

impl CommandError {
    /// Returns the error of a command that was sent before (`resent`), over a connection that
    /// ended: a rejection of the second attempt does not exclude that the first took effect.
    pub(crate) fn after(self, resent: bool) -> Self {
        match self {
            error if !resent => error,
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
            Self::Unanswered(_) | Self::Died(_) => self,
        }
    }

    /// Returns `true` if the server may have rejected a call for only some of its keys, so that each key needs
    /// a call of its own.
    pub(crate) fn may_spare_keys(&self) -> bool {
        match self {
            Self::Scattered(_) => true,
            Self::Refused(error) => {
                let code = server_error(error).map(|error| error.code().unwrap_or_default());
                code.is_some_and(|code| !FOR_ALL_KEYS.contains(&code))
            }
            _ => false,
        }
    }

    /// Returns `true` if the ACL denies one of the keys, and not a command. All versions word it like this:
    /// `NOPERM … to access a key`.
    pub(super) fn is_denied(&self) -> bool {
        let Self::Refused(error) = self else {
            return false;
        };
        let detail = server_error(error).and_then(|error| error.detail());
        error.kind() == BackendErrorKind::Misconfigured
            && detail.is_some_and(|it| it.contains(" access ") && it.contains(" key"))
    }

    /// Returns `true` if the command may succeed without the queue among its keys.
    pub(super) fn excludes_queue(&self) -> bool {
        matches!(self, Self::Scattered(_)) || self.is_denied()
    }

    /// Returns `true` if the server rejected the command, over a connection that is still usable.
    pub(crate) fn is_rejection(&self) -> bool {
        match self {
            Self::Refused(_)
            | Self::NoScript { .. }
            | Self::Elsewhere { .. }
            | Self::Scattered(_) => true,
            Self::Unsent(_) | Self::Unanswered(_) | Self::Died(_) => false,
        }
    }

    /// Returns `true` if another node may serve the slot now.
    pub(crate) fn is_topological(&self) -> bool {
        match self {
            Self::Refused(error) => server_error(error).is_some_and(|error| {
                let details = || error.detail().unwrap_or_default();
                let code = error.code().unwrap_or_default();
                MOVED_SLOT.contains(&code) || (is_quoting(code) && details().contains("READONLY"))
            }),
            Self::Unsent(error) => error.kind() == BackendErrorKind::Unavailable,
            Self::Died(_) | Self::Unanswered(_) => true,
            Self::NoScript { .. } | Self::Elsewhere { .. } | Self::Scattered(_) => false,
        }
    }

    /// Creates a rejection that a later attempt may not meet.
    pub(crate) fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Refused(unavailable(source))
    }
}

/// The codes of a server that rejects the command for every key.
const FOR_ALL_KEYS: [&str; 10] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "WRONGPASS",
];

/// The codes of a server that serves no writes to the slot, which another node may do.
const MOVED_SLOT: [&str; 4] = ["CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"];

/// Returns the error that the server replied with.
fn server_error(error: &BackendError) -> Option<&RedisError> {
    Error::source(error)?.downcast_ref()
}

impl From<CommandError> for BackendError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Refused(error)
            | CommandError::Unsent(error)
            | CommandError::Scattered(error)
            | CommandError::Died(error) => error,
            CommandError::NoScript { .. } => unavailable(Cause::ScriptLost),
            CommandError::Elsewhere { .. } => unavailable(Cause::Elsewhere),
            CommandError::Unanswered(waited) => Self::unknown(Cause::NoReply(waited)),
        }
    }
}

/// Creates the error of a command that did not take effect and may succeed later.
pub(crate) fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> BackendError {
    BackendError::refused(BackendErrorKind::Unavailable, source)
}

/// Creates the error of a reply that no script of this crate returns, but a proxy may.
pub(crate) fn unexpected(reply: &Value) -> BackendError {
    // The command may have taken effect.
    BackendError::unknown(Cause::reply(reply))
}

pub(crate) fn no_ttl() -> BackendError {
    BackendError::refused(BackendErrorKind::Conflict, Cause::NoTtl)
}

/// Turns an error reply into an error.
pub(crate) fn check(reply: Value) -> Result<Value, CommandError> {
    match reply {
        Value::ServerError(error) => Err(match error.code() {
            "NOSCRIPT" => CommandError::NoScript { resent: false },
            "TRYAGAIN" | "CROSSSLOT" => CommandError::Scattered(refusal(error)),
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
        reply => Ok(reply),
    }
}

/// Returns the address in `MOVED <slot> <host>:<port>`.
fn elsewhere(error: &ServerError) -> Option<String> {
    let address = error.details()?.split_ascii_whitespace().nth(1)?;
    Some(address.to_owned())
}

/// Returns `true` if the server rejected a write because it became a replica.
pub(crate) fn is_demoted(reply: &Value) -> bool {
    let error = match reply {
        // A script over several keys returns one reply per key.
        Value::Array(replies) => return replies.iter().any(is_demoted),
        Value::ServerError(error) => error,
        _ => return false,
    };
    let details = || error.details().unwrap_or_default();
    // `MASTERDOWN` comes from a replica that lost its primary and must not serve stale data.
    matches!(error.code(), "READONLY" | "MASTERDOWN")
        || (is_quoting(error.code()) && details().contains("READONLY"))
}

/// Returns `true` if the details may quote the error of a command inside a script.
///
/// Since 7.0, that error keeps its code. Before, it arrives as an `ERR`, or without a code if the script
/// returned what `redis.pcall` rejected.
fn is_quoting(code: &str) -> bool {
    matches!(code, "ERR" | "@user_script:")
}

/// Creates the error of a command that the server rejected, and that did not take effect.
pub(crate) fn refusal(error: ServerError) -> BackendError {
    if error.code() == "QUARANTINE" {
        let left = error.details().and_then(|left| left.trim().parse().ok());
        let left = Duration::from_millis(left.unwrap_or(0));
        return unavailable(Cause::Quarantine(left));
    }
    if let Some(cause) = unknown_command(error.details()) {
        return BackendError::refused(BackendErrorKind::Misconfigured, cause);
    }
    let details = error.details().unwrap_or_default();
    let kind = kind_of(error.code(), details);
    if details.contains(DENIED_IN_SCRIPT) {
        let details = format!("{details} (`ACL LOG` on the server names the command)");
        let error = make_extension_error(error.code().to_owned(), Some(details));
        return BackendError::refused(kind, error);
    }
    BackendError::refused(kind, RedisError::from(error))
}

/// The text of a denied command inside a script, which does not name the command.
const DENIED_IN_SCRIPT: &str = "The user executing the script can't run this command";

/// Creates the error of a connection that could not be opened.
pub(crate) fn not_connected(error: RedisError) -> BackendError {
    if let Some(cause) = unknown_command(error.detail()) {
        return BackendError::refused(BackendErrorKind::Misconfigured, cause);
    }
    BackendError::refused(kind_of_connecting(&error), error)
}

/// Returns the cause if the server does not know a command. Its own text would quote the arguments, which
/// are keys and owners, or in a handshake the password.
fn unknown_command(details: Option<&str>) -> Option<Cause> {
    let (_, quoted) = details?.split_once("nknown command ")?;
    let name = quoted.trim_start_matches(['\'', '`', '"']);
    let end = name.find(|it: char| !it.is_ascii_alphabetic());
    Some(Cause::UnknownCommand(
        name[..end.unwrap_or(name.len())].to_owned(),
    ))
}

/// Returns the kind of an error of a connection's handshake or of a server.
fn kind_of_connecting(error: &RedisError) -> BackendErrorKind {
    use redis::ErrorKind;
    match error.kind() {
        ErrorKind::AuthenticationFailed
        | ErrorKind::InvalidClientConfig
        | ErrorKind::RESP3NotSupported => BackendErrorKind::Misconfigured,
        #[cfg(feature = "redis-tls")]
        ErrorKind::Io if is_tls(error) => BackendErrorKind::Misconfigured,
        ErrorKind::Io | ErrorKind::Parse => BackendErrorKind::Unavailable,
        _ => kind_of(
            error.code().unwrap_or_default(),
            error.detail().unwrap_or_default(),
        ),
    }
}

/// Returns `true` if client and server disagree about TLS: a certificate is untrusted, expired,
/// missing or for another name, or one side speaks no TLS. A retry does not help.
#[cfg(feature = "redis-tls")]
fn is_tls(error: &RedisError) -> bool {
    // An I/O error does not list what it wraps among its sources, and the redis crate holds the
    // I/O error in an `Arc`.
    let source = error.source();
    let shared = source.and_then(|it| it.downcast_ref::<std::sync::Arc<dyn Error + Send + Sync>>());
    let io = shared.and_then(|it| it.downcast_ref::<std::io::Error>());
    let cause = io.and_then(std::io::Error::get_ref);
    cause.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>)
}

fn kind_of(code: &str, details: &str) -> BackendErrorKind {
    /// `NOPROTO`: the server has no RESP3.
    const CODES: [&str; 5] = ["NOPERM", "NOAUTH", "WRONGPASS", "CROSSSLOT", "NOPROTO"];
    const SENTENCES: [&str; 11] = [
        // Foreign data under the name of a counter, of this crate or of Redisson.
        "FENCE",
        "value is not an integer",
        // redis-rs loses the code when the handshake is rejected.
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
    let says = |what: &str| is_quoting(code) && details.contains(what);
    if code == "WRONGTYPE" || says("WRONGTYPE") {
        BackendErrorKind::Conflict
    } else if CODES.contains(&code) || SENTENCES.into_iter().any(says) {
        BackendErrorKind::Misconfigured
    } else {
        // LOADING, READONLY, MASTERDOWN, CLUSTERDOWN, TRYAGAIN, NOREPLICAS, MISCONF, BUSY, OOM and
        // unknown codes: a later attempt may succeed.
        BackendErrorKind::Unavailable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_reply_hides_content() {
        let list = Value::Array(vec![Value::BulkString(b"canary".to_vec())]);
        let error = unexpected(&list);
        let cause = Error::source(&error).unwrap().to_string();
        assert!(cause.contains("an array"), "{cause}");
        assert!(!format!("{cause} {error:?}").contains("canary"));
    }

    #[test]
    fn unknown_command_hides_arguments() {
        for details in [
            "unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'me' 'canary' ",
            "unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `me`, `canary`, ",
            "Unknown command HELLO canary",
        ] {
            let error = (redis::ErrorKind::Client, "", details.to_owned());
            let error = not_connected(error.into());
            assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
            let cause = Error::source(&error).unwrap().to_string();
            assert_eq!(cause, "server does not know the command HELLO");
            assert!(!format!("{error:?}").contains("canary"));
        }
    }

    #[test]
    fn server_errors_map_to_kinds() {
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
            ("NOPROTO", "unsupported protocol version", Misconfigured),
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
            (
                "@user_script:",
                " 54: The user executing the script can't run this command or subcommand",
                Misconfigured,
            ),
            ("NOPERM", "this user has no permissions", Misconfigured),
            ("NOAUTH", "Authentication required.", Misconfigured),
            // Redis words it so when a database is selected without a password.
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
