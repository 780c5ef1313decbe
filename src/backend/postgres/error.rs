//! What an error of the client means for a command.

use std::error::Error as _;

use tokio_postgres::error::{DbError, Error, Severity};

use super::schema::MIGRATION;
use crate::backend::{BackendError, BackendErrorKind};

/// The cause of an error, without the details that can contain a key.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error("error {code} of the server: {message}")]
    Server { code: String, message: String },
    #[error("connection to the server failed")]
    Connection(#[source] Error),
    #[error("LISTEN delivers no notifications")]
    Silent,
    #[error("pool returned no connection")]
    Pool(#[source] deadpool_postgres::PoolError),
    #[error("no connection within the connect timeout")]
    NoConnection,
    #[error("no reply within the response timeout")]
    NoReply,
    #[error("no thread for the connection")]
    NoThread,
    #[error("unexpected reply from the server")]
    Unexpected,
    #[error("{0} is not supported; use PostgreSQL 13 or newer")]
    Unsupported(&'static str),
    #[error("schema `tower_lock` is missing or old; this SQL creates it:\n{MIGRATION}")]
    NoSchema,
}

/// Errors of the class "syntax error or access rule violation" and others that a repeat does not change.
const PERMANENT: [&str; 7] = ["22", "28", "2F", "3D", "3F", "42", "TL"];

/// The code of an attempt that reached the server after its deadline.
const LATE: &str = "TL002";

/// Timeouts of locks and statements, deadlocks and conflicts: the next command may succeed.
const PASSING: [&str; 4] = ["55P03", "57014", "40P01", "40001"];

/// The code of a prepared statement that the session does not have.
const UNPREPARED: &str = "26000";

fn server(error: &Error) -> Option<(Cause, BackendErrorKind)> {
    let error = error.as_db_error()?;
    let code = error.code().code();
    let is_permanent = code != LATE && PERMANENT.contains(&code.get(..2).unwrap_or_default());
    let cause = Cause::Server {
        code: code.to_owned(),
        message: error.message().to_owned(),
    };
    let kind = match is_permanent {
        true => BackendErrorKind::Misconfigured,
        false => BackendErrorKind::Unavailable,
    };
    Some((cause, kind))
}

/// Returns the error of a command that was sent.
///
/// The server rolls back the transaction of a command with an error. One that ends the session can follow the commit.
pub(super) fn of_command(error: Error) -> BackendError {
    let severity = error.as_db_error().and_then(DbError::parsed_severity);
    let ended = matches!(severity, Some(Severity::Fatal | Severity::Panic));
    match server(&error) {
        Some((cause, _)) if ended => BackendError::unknown(cause),
        Some((cause, kind)) => BackendError::refused(kind, cause),
        None => BackendError::unknown(Cause::Connection(error)),
    }
}

/// Returns the error of a connection that was not opened.
pub(super) fn of_connect(error: Error) -> BackendError {
    if let Some((cause, kind)) = server(&error) {
        return BackendError::refused(kind, cause);
    }
    // The client discloses the kind of the error only in its text.
    let text = error.to_string();
    let is_permanent = text.contains("TLS") || text.contains("configuration");
    let kind = match is_permanent {
        true => BackendErrorKind::Misconfigured,
        false => BackendErrorKind::Unavailable,
    };
    BackendError::refused(kind, Cause::Connection(error))
}

/// Returns `true` if the schema of locks, or a part of it, does not exist.
pub(super) fn lacks_schema(error: &BackendError) -> bool {
    ["3F000", "42P01", "42883"].contains(&code(error).unwrap_or_default())
}

/// Returns `true` for an attempt whose deadline the server's clock has passed.
pub(super) fn is_late(error: &BackendError) -> bool {
    has_code(error, LATE)
}

/// Returns `true` for a prepared statement that the session does not have.
pub(super) fn is_unprepared(error: &BackendError) -> bool {
    has_code(error, UNPREPARED)
}

/// Returns `true` for a prepared statement whose columns had other types in an older version of its function.
pub(super) fn is_stale(error: &BackendError) -> bool {
    has_code(error, "0A000")
}

/// Returns `true` for a server that accepts no writes, as a standby, whose queue is not readable either (0A000). A session with
/// a stale statement is replaced likewise.
pub(super) fn is_read_only(error: &BackendError) -> bool {
    has_code(error, "25006") || is_stale(error)
}

/// Returns `true` for a value that the server rejects, as a key with characters outside of the encoding of the database.
pub(super) fn is_of_value(error: &BackendError) -> bool {
    code(error).is_some_and(|code| code.starts_with("22"))
}

/// Returns `true` if the server rejected a command, and not because of another session, of its time or of a key.
pub(super) fn is_rejection(error: &BackendError) -> bool {
    let is_passing = |code: &str| code == LATE || PASSING.contains(&code);
    !error.may_have_taken_effect()
        && !is_of_value(error)
        && code(error).is_some_and(|code| !is_passing(code))
}

fn has_code(error: &BackendError, expected: &str) -> bool {
    code(error) == Some(expected)
}

fn code(error: &BackendError) -> Option<&str> {
    match error.source()?.downcast_ref()? {
        Cause::Server { code, .. } => Some(code),
        _ => None,
    }
}
