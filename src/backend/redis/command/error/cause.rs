//! The causes that this crate detected, and the errors with such a cause.

use std::error::Error;
use std::time::Duration;

use redis::{RedisError, Value};

use crate::backend::{BackendError, BackendErrorKind};

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
    #[error(
        "server closed the connection during `HELLO` or `CLIENT SETINFO`: a proxy without these, protected mode, \
        `maxclients`, or a port for TLS"
    )]
    NotGreeted(#[source] RedisError),
    #[error("server supports no RESP3: add `?protocol=2` to the URL")]
    NoResp3(#[source] RedisError),
    #[error("runtime was shut down")]
    NoRuntime,
    #[error("server lost the script during the call")]
    ScriptLost,
    #[error("unknown command {0}")]
    UnknownCommand(String),
    #[error("unexpected reply from the server: {0}")]
    Reply(&'static str),
    #[error("another cluster node serves the key's slot")]
    Elsewhere,
    #[error("no cluster node serves the key's slot")]
    Nowhere,
    #[error("node belongs to another cluster")]
    OtherCluster,
    #[error("hosts of the URL belong to several clusters")]
    SeveralClusters,
    #[error(
        "address leads to several servers, which have {0} of {1} keys of one call: use one upstream, or \
        `redis+cluster` with the servers as a cluster"
    )]
    Spread(u8, u8),
    #[error("key holds a hash without a TTL")]
    NoTtl,
    #[error("user may not read the holder: the permission `+hgetall` is missing")]
    UnreadableHolder,
    #[error("key is empty")]
    EmptyKey,
    #[error("service {0:?} is unknown to the sentinels")]
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

    /// Returns `true` if a server replied.
    pub(super) fn is_reply(&self) -> bool {
        !matches!(
            self,
            Self::NoReply(_)
                | Self::NoConnection(_)
                | Self::NoCredentials(_)
                | Self::HungUp
                | Self::NotGreeted(_)
                | Self::NoRuntime
                | Self::SentinelsFail(_)
                | Self::SentinelsSilent(_)
                | Self::Primary { .. }
                | Self::Crowded
        )
    }

    /// Returns the cause of an error that this crate detected.
    pub(crate) fn behind(error: &BackendError) -> Option<&Self> {
        Error::source(error)?.downcast_ref()
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
}
