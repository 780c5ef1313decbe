//! The contract of a lock store, and the outcomes of its commands.

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::Hints;
use crate::LockKey;

/// A store of leases.
///
/// # The contract
///
/// A key is free, or held under exactly one [`LeaseId`] until its time to live has passed. Each
/// method answers with a definite outcome, or with a [`BackendError`] that says whether the command
/// may still have taken effect. The functions in
/// [`conformance`](https://docs.rs/tower-lock/latest/tower_lock/backend/conformance/) (feature
/// `conformance`) are this contract in code; run them against your own backend.
///
/// What the engine does in return:
///
/// - A [`LeaseId`] is used for one `try_acquire` and never again after a release, a loss or an
///   error.
/// - The future of `try_acquire` is driven to its end even when nobody waits for it any more,
///   and what it acquired is released. It is dropped early only when the runtime shuts down.
/// - After an error that may have taken effect, `release` is called for that lease until it
///   answers or the lease must have run out.
///
/// What the backend owes for that: a `release` that is *started* after the answer, or the error,
/// of a `try_acquire` must not take effect before it. A backend that gives up waiting for an answer
/// has to make sure of it, for instance by sending both on one connection.
///
/// No method may panic, and each must answer within a bounded time.
pub trait Backend: Send + Sync + 'static {
    /// Takes `key` for `ttl` if it is free, or answers who is in the way.
    ///
    /// Idempotent: a key that `lease` already holds is granted again and never counted twice.
    /// Each fresh grant carries a counter larger than every counter granted on this key before,
    /// also by other processes and, as far as the store's clock allows, before a loss of its data.
    fn try_acquire(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> impl Future<Output = Result<Acquired, BackendError>> + Send;

    /// Lengthens leases: one answer each, in the order asked.
    ///
    /// Never creates a lease, never shortens one. One failure must not fail the others.
    fn renew(
        &self,
        renewals: &[Renewal],
    ) -> impl Future<Output = Vec<Result<Renewed, BackendError>>> + Send;

    /// Gives leases back and tells those who watch the keys: one answer each, in the order asked.
    ///
    /// Idempotent, and touches nothing that another lease holds.
    fn release(
        &self,
        leases: &[(LockKey, LeaseId)],
    ) -> impl Future<Output = Vec<Result<Released, BackendError>>> + Send;

    /// Asked when this process has handed a lease on for long enough: keeps it for another `ttl`,
    /// under [`Passed::COUNTERS`] fresh counters, if nobody watches the key; otherwise releases it. Who asks
    /// does not watch it itself.
    ///
    /// A backend that cannot tell who watches must release.
    fn pass(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> impl Future<Output = Result<Passed, BackendError>> + Send;

    /// Asked ahead of [`pass`](Self::pass), while somebody holds the lease: keeps it as that does if nobody
    /// watches the key, so that the next holders need not wait for an answer; otherwise changes nothing.
    /// By default it changes nothing.
    fn extend(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
    ) -> impl Future<Output = Result<Extended, BackendError>> + Send {
        let _unasked = (key, lease, ttl);
        ready(Ok(Extended::wanted(0)))
    }

    /// Starts to watch a key. Returns at once; the subscription ends when the [`Hints`] are
    /// dropped.
    ///
    /// A hint is sent when the subscription is in force, after each resubscription, and at each
    /// release of the key. So whoever tries after a hint has missed nothing.
    fn watch(&self, key: &LockKey) -> Hints;

    /// Hints that the store was out of reach, or in another place, and can be used again: what was
    /// held before may be lost. By default none.
    ///
    /// The engine renews all its leases at such a hint, and so learns at once of those that are gone.
    fn recoveries(&self) -> Hints {
        Hints::channel().1
    }

    /// Which keys share their fate: when the answer for one is late, so is that for the others of
    /// its group. By default all of them.
    ///
    /// The engine renews and releases each group by commands of its own, so that a part of the store
    /// that hangs delays no other.
    fn group(&self, key: &LockKey) -> u64 {
        let _all_alike = key;
        0
    }

    /// How many fencing tokens one counter stands for: the grant's, and those of the holders that the
    /// lease is handed to inside the process without asking. 1 to 256: 1 where others draw their tokens
    /// from the same counters. By default 256.
    fn tokens_per_counter(&self) -> u32 {
        256
    }

    /// Who holds the key, if anybody.
    fn inspect(
        &self,
        key: &LockKey,
    ) -> impl Future<Output = Result<Option<Holder>, BackendError>> + Send;

    /// Frees the key whoever holds it, and tells those who watch it.
    fn force_release(
        &self,
        key: &LockKey,
    ) -> impl Future<Output = Result<ForceReleased, BackendError>> + Send;

    /// The commands that this store can answer without waiting, if it can: an optimisation that
    /// saves tasks and boxed futures. By default none.
    fn immediate(&self) -> Option<&dyn Immediate> {
        None
    }
}

/// What a store in this process can do without waiting, and without a look at the clock: `now` is a
/// moment before the call, and may be earlier than that of a call before.
pub trait Immediate {
    /// As [`Backend::try_acquire`].
    ///
    /// # Errors
    ///
    /// The same.
    fn try_acquire(
        &self,
        key: &LockKey,
        lease: LeaseId,
        ttl: Duration,
        now: Instant,
    ) -> Result<Acquired, BackendError>;

    /// As [`Backend::release`], for one lease.
    ///
    /// # Errors
    ///
    /// The same.
    fn release(
        &self,
        key: &LockKey,
        lease: LeaseId,
        now: Instant,
    ) -> Result<Released, BackendError>;
}

/// The name of one lease in the backend: the UUID of the manager that asked for it and a number.
///
/// Written `<uuid>:<number>`, as Redisson names the holders of its locks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId {
    pub(in crate::backend) manager: Uuid,
    pub(in crate::backend) number: u64,
}

impl LeaseId {
    /// The lease `number` of a manager.
    #[must_use]
    pub fn new(manager: Uuid, number: u64) -> Self {
        Self { manager, number }
    }

    /// Tells apart the leases of one manager.
    pub(crate) fn number(self) -> u64 {
        self.number
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.manager, self.number)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({self})")
    }
}

/// The outcome of [`Backend::try_acquire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The key is held under the lease that was asked for.
    #[non_exhaustive]
    Granted {
        /// The base of the fencing tokens, below 2^53.
        counter: u64,
    },
    /// Another lease holds the key.
    #[non_exhaustive]
    Busy {
        /// What is left of it. Always known: a holder without an end is an error of kind
        /// [`Conflict`](BackendErrorKind::Conflict).
        ttl: Duration,
    },
}

impl Acquired {
    /// A grant under `counter`.
    #[must_use]
    pub fn granted(counter: u64) -> Self {
        Self::Granted { counter }
    }

    /// A refusal: the holder's lease has `ttl` left.
    #[must_use]
    pub fn busy(ttl: Duration) -> Self {
        Self::Busy { ttl }
    }
}

/// One lease to lengthen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewal {
    /// The key.
    pub key: LockKey,
    /// The lease that holds it.
    pub lease: LeaseId,
    /// How long it shall last from now, unless it lasts longer already.
    pub ttl: Duration,
}

impl Renewal {
    /// Asks for `ttl` more, from now, for the lease that holds `key`.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration) -> Self {
        Self { key, lease, ttl }
    }
}

/// The outcome of one [`Renewal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewed {
    /// The lease lasts at least as long as asked for.
    Renewed,
    /// The lease does not hold the key: it ran out, or was forced open, or the data is gone.
    NotHeld,
}

/// The outcome of giving back one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The key is free now.
    Released,
    /// The lease did not hold the key.
    NotHeld,
}

/// The outcome of [`Backend::pass`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Passed {
    /// Nobody else watches: the lease goes on.
    #[non_exhaustive]
    Kept {
        /// The first of [`Passed::COUNTERS`] consecutive counters that are this lease's own: fresh
        /// bases of fencing tokens, so that a busy key asks seldom.
        counter: u64,
    },
    /// Others may be waiting: the key is free now.
    #[non_exhaustive]
    Released {
        /// How many other processes watch: so many get their turn before this one comes again. 0 if that
        /// cannot be known.
        watchers: u32,
    },
    /// The lease did not hold the key.
    NotHeld,
}

impl Passed {
    /// How many counters a lease that is kept gets at once.
    pub const COUNTERS: u32 = 8;

    /// The lease goes on under `counter` and those that follow it.
    #[must_use]
    pub fn kept(counter: u64) -> Self {
        Self::Kept { counter }
    }

    /// The lease is given up for so many others.
    #[must_use]
    pub fn released(watchers: u32) -> Self {
        Self::Released { watchers }
    }
}

/// The outcome of [`Backend::extend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extended {
    /// Nobody else watches: the lease goes on for as long as asked for.
    #[non_exhaustive]
    Kept {
        /// As in [`Passed::Kept`].
        counter: u64,
    },
    /// Others may be waiting: nothing has changed.
    #[non_exhaustive]
    Wanted {
        /// How many other processes watch. 0 if that cannot be known.
        watchers: u32,
    },
    /// The lease did not hold the key.
    NotHeld,
}

impl Extended {
    /// The lease goes on under `counter` and those that follow it.
    #[must_use]
    pub fn kept(counter: u64) -> Self {
        Self::Kept { counter }
    }

    /// So many others may be waiting.
    #[must_use]
    pub fn wanted(watchers: u32) -> Self {
        Self::Wanted { watchers }
    }
}

/// The outcome of [`Backend::force_release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForceReleased {
    /// Somebody held the key; it is free now.
    Released,
    /// Nobody held it.
    NotHeld,
}

/// Who holds a key, as the backend knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The lease, or whatever a foreign client such as Redisson wrote in its place.
    pub id: String,
    /// What is left of it.
    pub ttl: Duration,
    /// How many times it is held. Always 1 for leases of this crate, which count in the process.
    pub hold_count: u64,
}

impl Holder {
    /// A holder.
    #[must_use]
    pub fn new(id: String, ttl: Duration, hold_count: u64) -> Self {
        Self {
            id,
            ttl,
            hold_count,
        }
    }
}

/// A command of a [`Backend`] that has no outcome.
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
    /// The store cannot be reached, or cannot serve the command now. Worth another try.
    Unavailable,
    /// The store refuses this client. Another try does not help.
    Misconfigured,
    /// The key holds something that is not a lock.
    Conflict,
}

impl BackendError {
    /// The command did not and will not take effect.
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

    /// No answer came: the command may have taken effect, or may not.
    pub fn unknown(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            kind: BackendErrorKind::Unavailable,
            may_have_taken_effect: true,
            source: source.into().into(),
        }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    /// Whether the command may have taken effect all the same.
    #[must_use]
    pub fn may_have_taken_effect(&self) -> bool {
        self.may_have_taken_effect
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            BackendErrorKind::Unavailable if self.may_have_taken_effect => {
                "the lock store did not answer"
            }
            BackendErrorKind::Unavailable => "the lock store cannot serve the command",
            BackendErrorKind::Misconfigured => "the lock store refuses this client",
            BackendErrorKind::Conflict => "the key holds something that is not a lock",
        })
    }
}

impl std::error::Error for BackendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_ref())
    }
}
