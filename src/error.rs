//! The errors of the crate.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

type SharedCause = Arc<dyn std::error::Error + Send + Sync>;

/// An error from acquiring or releasing a lock.
///
/// A busy lock and an unavailable backend have different kinds: see [`Error::kind`] and the predicates.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_lock::Error> {
/// use tower_lock::{ErrorKind, LockManager};
///
/// let locks = LockManager::in_memory();
/// let _guard = locks.acquire("order:42").await?;
/// let error = locks.acquire("order:42").no_wait().await.unwrap_err();
/// assert!(error.is_busy());
/// assert_eq!(error.kind(), ErrorKind::Busy);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Error {
    repr: Box<Repr>,
}

#[derive(Clone)]
struct Repr {
    kind: ErrorKind,
    retry_after: Option<Duration>,
    /// When the lease of the holder ends, or the first of several leases.
    lease_left: Option<Duration>,
    /// An owner of this process holds the lock.
    is_held_here: bool,
    source: Option<SharedCause>,
}

/// The kinds of [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another owner held the lock for the whole wait, or at the single attempt.
    Busy,
    /// No [permit](crate::manager::Acquire::permits) of the key was free for the whole wait, or at the single attempt: other
    /// owners held all of them, or held the key shared or exclusively, or were ahead.
    PermitsExhausted,
    /// The manager has the maximum number of waiters for this key
    /// ([`max_waiters_per_key`](crate::LockManagerBuilder::max_waiters_per_key)).
    TooManyWaiters,
    /// The manager has the maximum number of waiters
    /// ([`max_waiters`](crate::LockManagerBuilder::max_waiters)).
    Overloaded,
    /// The backend did not reply, or could not execute the command, within the wait.
    Unavailable,
    /// The backend refuses this client, or this client refuses the backend: a wrong password, a missing
    /// permission, a certificate that is not trusted. A retry fails until the configuration changes.
    Refused,
    /// The lock was held and then lost: its lease expired, it was released by force, or it reached
    /// [`max_hold`](crate::manager::Acquire::max_hold).
    Lost,
    /// [`LockManager::shutdown`](crate::LockManager::shutdown) was called.
    ShuttingDown,
    /// The key is empty, or there are too many. The source is the [`InvalidKey`](crate::keys::InvalidKey).
    InvalidKey,
    /// The program is wrong: requests through a layer lack what its key contains, or a handler extracts what no layer
    /// provides. The source names the remedy. For a key, it is [`InvalidKey::Setup`](crate::keys::InvalidKey::Setup).
    Misconfigured,
    /// No route of the axum router matches the request of a layer that locks by a path parameter.
    NoRoute,
    /// The body of the request is larger than the limit of
    /// [`read_body_first`](crate::LockLayer::read_body_first), or than that of a layer outside while the request waited.
    BodyTooLarge,
    /// The body of the request was incomplete at the deadline of
    /// [`read_body_first`](crate::LockLayer::read_body_first).
    BodyTimeout,
    /// The body of the request ended with an error before [`read_body_first`](crate::LockLayer::read_body_first)
    /// had read it, or while the request waited. The source is that error.
    BodyFailed,
    /// An option of the acquire is out of bounds, or a [`downgrade`](crate::LockGuard::downgrade) is not possible; the
    /// source is a [`ConfigError`].
    InvalidOption,
    /// The key exists in the backend and is not a lock: choose another prefix, or remove it. It is never touched.
    ///
    /// The other cause: the owner holds the lock [shared](crate::manager::Acquire::shared) and asks for a
    /// [permit](crate::manager::Acquire::permits) of it, or the reverse. It must release the first one before, or use one mode.
    KeyConflict,
    /// The owner holds the lock 64 times already.
    ReentrancyLimit,
    /// The owner holds the lock [shared](crate::manager::Acquire::shared), or has a permit of it, and asks for an exclusive one.
    /// Two such owners would wait for each other for ever. Release the lock first, or ask for an exclusive lock from
    /// the start.
    Upgrade,
    /// The backend does not support the mode of the acquire, or no [`downgrade`](crate::LockGuard::downgrade).
    Unsupported,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self {
            repr: Box::new(Repr {
                kind,
                retry_after: None,
                lease_left: None,
                is_held_here: false,
                source: None,
            }),
        }
    }

    /// Creates an error of this kind for a test. `LockRejection::from` turns it into a rejection.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn for_tests(kind: ErrorKind) -> Self {
        Self::new(kind)
    }

    /// Returns this error with another kind.
    pub(crate) fn into_kind(mut self, kind: ErrorKind) -> Self {
        self.repr.kind = kind;
        self
    }

    pub(crate) fn with_source(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        self.repr.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.repr.retry_after = Some(retry_after);
        self
    }

    pub(crate) fn with_lease_left(mut self, lease_left: Duration) -> Self {
        self.repr.lease_left = Some(lease_left);
        self
    }

    /// States that an owner of this process holds the lock: it may be the one that asks.
    pub(crate) fn held_here(mut self) -> Self {
        self.repr.is_held_here = true;
        self
    }

    #[cfg(feature = "tracing")]
    pub(crate) fn is_held_here(&self) -> bool {
        self.repr.is_held_here
    }

    pub(crate) fn lease_left(&self) -> Option<Duration> {
        self.repr.lease_left
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.repr.kind
    }

    /// Returns `true` if other owners hold the lock or wait for it: [`Busy`](ErrorKind::Busy),
    /// [`PermitsExhausted`](ErrorKind::PermitsExhausted) or [`TooManyWaiters`](ErrorKind::TooManyWaiters). An
    /// [overload](ErrorKind::Overloaded) of the manager is not about this lock.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Busy | ErrorKind::PermitsExhausted | ErrorKind::TooManyWaiters
        )
    }

    /// Returns `true` if the backend did not reply or could not serve the command, so that a retry can succeed:
    /// [`Unavailable`](ErrorKind::Unavailable), and not [`Refused`](ErrorKind::Refused).
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.kind() == ErrorKind::Unavailable
    }

    /// Returns `true` if the lock was held and then lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.kind() == ErrorKind::Lost
    }

    /// Returns `true` if the manager is shutting down.
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.kind() == ErrorKind::ShuttingDown
    }

    /// Returns when a further acquire would probably succeed, where that is known: after the holder and the
    /// waiters of this process.
    ///
    /// Estimated from the recent times between grants of the key. At most the holder's remaining lease plus the
    /// waits of those in the queue.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.repr.retry_after
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr {
            kind,
            retry_after,
            lease_left: _,
            is_held_here: _,
            source,
        } = &*self.repr;
        let mut error = f.debug_struct("Error");
        error.field("kind", kind);
        if let Some(retry_after) = retry_after {
            error.field("retry_after", retry_after);
        }
        if let Some(source) = source {
            error.field("source", source);
        }
        error.finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind() {
            ErrorKind::Busy if self.repr.is_held_here => {
                "lock is held by another owner of this process; in a handler use `LockScope::acquire` or `.owner(..)`"
            }
            ErrorKind::Busy => "lock is held by another owner",
            ErrorKind::PermitsExhausted => "no permit of the lock is free",
            ErrorKind::TooManyWaiters => "too many waiters for this lock",
            ErrorKind::Overloaded => "too many waiters for locks",
            ErrorKind::Unavailable => "lock backend is unavailable",
            ErrorKind::Refused => "lock backend refuses this client",
            ErrorKind::Lost => "lock was lost",
            ErrorKind::ShuttingDown => "lock manager is shutting down",
            ErrorKind::InvalidKey => "lock key is invalid",
            ErrorKind::Misconfigured => "program is misconfigured for this lock",
            ErrorKind::NoRoute => "no route matches the request",
            ErrorKind::BodyTooLarge => "request body is too large",
            ErrorKind::BodyTimeout => "request body is late",
            ErrorKind::BodyFailed => "request body is incomplete",
            ErrorKind::InvalidOption => "option of the lock is invalid",
            ErrorKind::KeyConflict => "key holds other data, or its owner holds another mode",
            ErrorKind::ReentrancyLimit => "owner holds the lock too many times",
            ErrorKind::Upgrade => {
                "owner holds the lock shared, or a permit of it, and asks for an exclusive one"
            }
            ErrorKind::Unsupported => "lock backend does not support the mode",
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.repr
            .source
            .as_ref()
            .map(|source| source.as_ref() as &(dyn std::error::Error + 'static))
    }
}

/// Returns an error and its causes as one line for the log. A repeated text is omitted, because an error of
/// Redis is its own cause.
#[cfg(any(
    feature = "dashboard",
    feature = "postgres",
    feature = "redis",
    feature = "tracing"
))]
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut levels: Vec<String> = Vec::new();
    for level in std::iter::successors(Some(error), |&error| error.source()) {
        let level = level.to_string();
        if !levels.contains(&level) {
            levels.push(level);
        }
    }
    levels.join(": ")
}

/// The error of an invalid setting. Its text names the setting, the problem and the bounds, and contains no password.
///
/// ```
/// use std::time::Duration;
/// use tower_lock::{LockManager, Memory};
///
/// let error = LockManager::builder(Memory::new()).watchdog_timeout(Duration::ZERO).build().unwrap_err();
/// assert_eq!(error.field(), "watchdog_timeout");
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[error("invalid `{field}`: {problem}")]
pub struct ConfigError {
    field: &'static str,
    problem: String,
}

impl ConfigError {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self {
            field,
            problem: problem.into(),
        }
    }

    /// Returns an error unless the time is within the bounds.
    pub(crate) fn within(
        bounds: RangeInclusive<Duration>,
        field: &'static str,
        time: Duration,
    ) -> Result<(), Self> {
        Self::unless(bounds.contains(&time), field, || {
            let (least, most) = bounds.into_inner();
            format!("{time:?} is not within {least:?} to {most:?}")
        })
    }

    /// Returns the error with this problem unless the setting is valid.
    pub(crate) fn unless(
        is_valid: bool,
        field: &'static str,
        problem: impl FnOnce() -> String,
    ) -> Result<(), Self> {
        match is_valid {
            true => Ok(()),
            false => Err(Self::new(field, problem())),
        }
    }

    /// Returns the name of the setting, which is that of its builder method.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.field
    }
}

/// The error of [`LockManager::connect`](crate::LockManager::connect).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_lock::ConnectError> {
/// use tower_lock::{ConnectError, LockManager};
///
/// let error = LockManager::connect("mysql://127.0.0.1").await.unwrap_err();
/// assert!(matches!(error, ConnectError::Config(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL or a setting is invalid.
    #[error("invalid configuration of the lock backend")]
    Config(#[from] ConfigError),
    /// No server at this address replied within the timeout.
    #[error("lock backend at {address} is unreachable")]
    #[non_exhaustive]
    Unreachable {
        /// Host and port, or the path of the socket; of sentinels and of a cluster, those in the URL.
        /// Never user or password.
        address: String,
        /// The error of the connection.
        source: SharedCause,
    },
    /// The server rejects this client for a wrong password or a missing permission, or its certificate is not
    /// trusted or has another name. Or it lacks a command or a protocol version, or replies unlike Redis.
    #[error("lock backend at {address} does not serve this client")]
    #[non_exhaustive]
    Refused {
        /// Host and port, or the path of the socket; of sentinels and of a cluster, those in the URL.
        /// Never user or password.
        address: String,
        /// The error from the server, or that of the handshake.
        source: SharedCause,
    },
}
