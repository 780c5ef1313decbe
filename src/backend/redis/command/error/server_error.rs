//! The meaning of the errors that a server replies with, and of those that opening a connection ends with.

#[cfg(any(feature = "redis-tls", test))]
use std::error::Error;
use std::time::Duration;

use redis::{RedisError, ServerError, Value, make_extension_error};

use super::cause::{Cause, unavailable};
use crate::backend::{BackendError, BackendErrorKind};

/// Returns `true` if the server rejected a write, or ended a `WAIT`, because it became a replica.
pub(crate) fn is_demoted(reply: &Value) -> bool {
    let error = match reply {
        // A script over several keys returns one reply per key.
        Value::Array(replies) => return replies.iter().any(is_demoted),
        Value::ServerError(error) => error,
        _ => return false,
    };
    let details = || error.details().unwrap_or_default();
    // `MASTERDOWN` comes from a replica that lost its primary and must not serve stale data. `UNBLOCKED` also follows
    // `CLIENT UNBLOCK`, and then costs a check of the role.
    matches!(error.code(), "READONLY" | "MASTERDOWN" | "UNBLOCKED")
        || (is_quoting(error.code()) && details().contains("READONLY"))
}

/// Returns `true` if the details may quote the error of a command inside a script.
///
/// Since 7.0, that error keeps its code. Before, it arrives as an `ERR`, or without a code if the script
/// returned what `redis.pcall` rejected.
pub(super) fn is_quoting(code: &str) -> bool {
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
    for (said, hint) in UNNAMED {
        if details.contains(said) {
            let details = format!("{details} ({hint})");
            let error = make_extension_error(error.code().to_owned(), Some(details));
            return BackendError::refused(kind, error);
        }
    }
    BackendError::refused(kind, RedisError::from(error))
}

/// Texts about a command inside a script that do not name it, and how to find it.
const UNNAMED: [(&str, &str); 2] = [
    (
        "The user executing the script can't run this command",
        "`ACL LOG` on the server names the command",
    ),
    (
        "ommand called from ",
        "the scripts need more commands than this server has, such as `PUBSUB`",
    ),
];

/// Creates the error of a connection for commands that could not be opened. A proxy may support a part of the handshake.
pub(crate) fn not_dialed(error: RedisError) -> BackendError {
    if error.code() == Some("NOPROTO") || error.kind() == redis::ErrorKind::RESP3NotSupported {
        let cause = Cause::NoResp3(error);
        return BackendError::refused(BackendErrorKind::Misconfigured, cause);
    }
    let is_dropped = error.is_connection_dropped() && !error.is_connection_refusal();
    match kind_of_connecting(&error) {
        BackendErrorKind::Unavailable if is_dropped => unavailable(Cause::NotGreeted(error)),
        _ => not_connected(error),
    }
}

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
    // The error of a script quotes no arguments.
    if quoted.starts_with("called from") {
        return None;
    }
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

/// Returns `true` if the user may not run a command or use a key, or the server does not have the command.
pub(super) fn is_denial(code: &str, details: &str) -> bool {
    const SENTENCES: [&str; 6] = [
        "NOPERM",
        // redis-rs loses the code when the handshake is rejected.
        "has no permissions",
        "The user executing the script can't",
        "ACL failure in script",
        "nknown command",
        "nknown Redis command",
    ];
    let says = |what: &str| is_quoting(code) && details.contains(what);
    code == "NOPERM" || SENTENCES.into_iter().any(says)
}

fn kind_of(code: &str, details: &str) -> BackendErrorKind {
    /// `NOPROTO`: the server has no RESP3.
    const CODES: [&str; 4] = ["NOAUTH", "WRONGPASS", "CROSSSLOT", "NOPROTO"];
    const SENTENCES: [&str; 5] = [
        // Foreign data under the name of a counter, of this crate or of Redisson.
        "FENCE",
        "value is not an integer",
        "Authentication required",
        "cluster support disabled",
        "DB index is out of range",
    ];
    let says = |what: &str| is_quoting(code) && details.contains(what);
    if code == "WRONGTYPE" || says("WRONGTYPE") {
        BackendErrorKind::Conflict
    } else if is_denial(code, details) || CODES.contains(&code) || SENTENCES.into_iter().any(says) {
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
            assert_eq!(cause, "unknown command HELLO");
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
