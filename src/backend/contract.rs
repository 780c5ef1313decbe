//! The contract of a lock store, and the requests and outcomes of its commands.

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::{ContendRequest, Contended, Hints};
use crate::LockKey;

/// A store of leases.
///
/// # Contract
///
/// A key is free, or held under exactly one [`LeaseId`] until the TTL of that lease has passed. Each
/// command returns a definite outcome, or a [`BackendError`] that states whether the command may have
/// taken effect. The functions in
/// [`conformance`](https://docs.rs/tower-lock/latest/tower_lock/backend/conformance/) (feature
/// `conformance`) are this contract in code. Run them against your own backend.
///
/// The engine guarantees:
///
/// - The futures of commands are polled in a Tokio runtime with timers, unless the store has
///   [`immediate`](Self::immediate) commands.
/// - A [`LeaseId`] is used for one acquire. It is not used again after a release, a loss or an error.
/// - The future of [`try_acquire`](Self::try_acquire) or [`contend`](Self::contend) is polled until it
///   completes, even after its caller was cancelled. The engine then releases what it acquired. Only a runtime shutdown drops
///   that future early.
/// - After an error that may have taken effect, the engine calls [`release`](Self::release) for that
///   lease until it returns an outcome or the lease must have expired.
///
/// The backend must guarantee:
///
/// - A `release` or a `leave` that *starts* after the outcome or the error of a `try_acquire` or a `contend`
///   does not take effect before that attempt. A backend that stops waiting for a reply must ensure this, for
///   instance by sending both commands on one connection.
/// - Each command completes within a bounded time.
/// - `renew` and `release` return one result per item, in order.
/// - No method panics.
///
/// The engine also survives a backend that breaks the last two rules. It treats each missing result, and
/// each command that panics when called or when polled, as [unknown](BackendError::unknown). It ignores
/// surplus results. `watch`, `recoveries` and the methods without an outcome are not covered.
///
/// # Queue
///
/// A store can keep the waiters of all processes in a queue, and transfer a released key to the first one. The
/// key is then not free in between, so no other process can acquire it. Such a store implements
/// [`contend`](Self::contend) and [`leave`](Self::leave). By default there is no queue.
///
/// A process has one place in the queue of a key, for all its waiters. The engine guarantees:
///
/// - The process contends under one lease id, from its first attempt that may enter the queue until the lease
///   is granted or left.
/// - A lease in the queue is refreshed by a `contend` at least every second, or left.
/// - A transferred lease is confirmed by a `contend` within a second of its [`Hint::Transferred`], or left.
/// - After an error that may have taken effect, the lease is left, and the next attempt has a new lease id.
/// - After [`Released::Transferred`] and [`Released::LeftToOthers`], the next attempt of the process is a
///   `contend`.
///
/// The backend guarantees, if it has a queue:
///
/// - *Exclusion.* A transfer ends one lease and begins the next in one step. The transferred lease expires
///   unless it is confirmed.
/// - *Order.* Waiters are served in the order in which they entered. Only a waiter that stopped refreshing, or
///   that a notification does not reach, is passed over. An unreachable waiter keeps its place.
/// - *Head first.* A `contend` that finds the key free serves the first waiter, whichever it is.
/// - *Own lease only.* A lease ends by its own release or leave, by its expiry, or by force.
/// - *Repeats.* A repeated `contend` keeps its place and is counted once. A repeated `leave` or `release`
///   changes nothing.
/// - *Dead waiters.* A waiter that ended delays the others by at most 3 s, all waiters that hang by at most
///   4.5 s together.
/// - *No queue, no change.* While the queue is empty, every command behaves as without it.
/// - *Other clients.* Clients that wait outside the queue have one turn after each turn of the queue's
///   waiters.
///
/// [`Hint::Transferred`]: super::Hint::Transferred
///
/// # Cancel safety
///
/// If the future of a command is dropped, the command may take effect at any later time, or not at
/// all. Every command can be sent again. Each method documents the effect of a repeat, which is also what
/// a backend causes by resending a command whose reply was lost. A release that a backend resends is
/// done if the lease no longer holds the key.
pub trait Backend: Send + Sync + 'static {
    /// Acquires a key for the requested TTL if it is free, or returns the remaining TTL of its holder.
    ///
    /// Each fresh grant carries a counter larger than every earlier counter of this key. This includes
    /// the grants of other processes. It also includes grants before a loss of the store's data, as far
    /// as the store's clock allows.
    ///
    /// # Cancel safety
    ///
    /// The future must be polled until it completes: a dropped attempt can leave the key held until the
    /// lease expires. A repeat under the same lease is granted again, and one release frees the key.
    fn try_acquire(
        &self,
        request: &AcquireRequest,
    ) -> impl Future<Output = Result<Acquired, BackendError>> + Send;

    /// Acquires a key if it is free or was transferred to this lease. Otherwise enters the queue of its waiters,
    /// or refreshes the place of the lease there.
    ///
    /// A grant sets the TTL of the request and carries a fresh counter, as in
    /// [`try_acquire`](Self::try_acquire). It confirms a transfer.
    ///
    /// The default implementation is for a store without a queue: it calls `try_acquire`.
    ///
    /// # Cancel safety
    ///
    /// The future must be polled until it completes: a dropped attempt can leave the key held until the
    /// lease expires. A repeat under the same lease keeps the place of the first attempt. If the first one was
    /// granted, the repeat is granted again, and one release frees the key.
    fn contend(
        &self,
        request: &ContendRequest,
    ) -> impl Future<Output = Result<Contended, BackendError>> + Send {
        let ContendRequest {
            key, lease, ttl, ..
        } = request;
        let request = AcquireRequest::new(key.clone(), *lease, *ttl);
        async move { Ok(self.try_acquire(&request).await?.into()) }
    }

    /// Removes leases from the queue, and releases each key that was transferred to its lease. Returns one
    /// result per lease, in order.
    ///
    /// A failure of one lease must not fail the others. The default implementation is for a store without a
    /// queue: it calls [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// If dropped, each lease is in the queue, holds its key, or has left. A repeat returns
    /// [`Released::NotHeld`] for a lease that has left.
    fn leave(
        &self,
        leases: &[Release],
    ) -> impl Future<Output = Vec<Result<Released, BackendError>>> + Send {
        self.release(leases)
    }

    /// Renews leases. Returns one result per renewal, in order.
    ///
    /// A renewal does not create a lease and does not shorten one. A failure of one renewal must not
    /// fail the others.
    ///
    /// # Cancel safety
    ///
    /// If dropped, each lease has its old or its new expiry. A repeat extends each lease that is still
    /// held, from the time of the repeat.
    fn renew(
        &self,
        renewals: &[Renewal],
    ) -> impl Future<Output = Vec<Result<Renewed, BackendError>>> + Send;

    /// Releases leases and notifies the subscribers of their keys. Returns one result per lease, in
    /// order.
    ///
    /// A release does not touch a key that another lease holds. A failure of one release must not fail
    /// the others. A store with a queue transfers each key to its first waiter.
    ///
    /// # Cancel safety
    ///
    /// If dropped, each lease is released or still held. A repeat returns [`Released::NotHeld`] for a
    /// lease that is already released.
    fn release(
        &self,
        leases: &[Release],
    ) -> impl Future<Output = Vec<Result<Released, BackendError>>> + Send;

    /// Keeps the lease for the requested TTL if no other process waits for the key, and releases it
    /// otherwise. A process waits if it is in the queue or subscribed to the key.
    ///
    /// The engine calls this when a lease has used up its hand-off budget in this process. The calling
    /// process is not subscribed to the key. A lease that is kept continues under
    /// [`ReleasedOrKept::COUNTERS`] fresh counters, or under its own if the store has no room to count.
    ///
    /// If the lease is released and the request has a [`next`](KeepRequest::next) lease, that lease enters the
    /// queue in the same step. The waiters of the calling process then wait behind all others.
    ///
    /// A backend that cannot count subscribers must release. The default implementation does so through
    /// [`release`](Self::release), with a subscriber count of 0. It does not enter the queue.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease is released, kept or unchanged. A repeat after a release returns
    /// [`ReleasedOrKept::NotHeld`]. A repeat after a keep decides again, and a second keep uses fresh
    /// counters. After an unknown result the engine sends a plain `release`.
    fn release_or_keep(
        &self,
        request: &KeepRequest,
    ) -> impl Future<Output = Result<ReleasedOrKept, BackendError>> + Send {
        let release = Release::new(request.key.clone(), request.lease);
        async move {
            match self.release(&[release]).await.into_iter().next() {
                Some(Ok(Released::NotHeld)) => Ok(ReleasedOrKept::NotHeld),
                Some(Ok(released)) => Ok(ReleasedOrKept::passed(released, 0, false)),
                Some(Err(error)) => Err(error),
                None => Err(BackendError::no_outcome()),
            }
        }
    }

    /// Keeps the lease for the requested TTL if no other process waits for the key, and changes
    /// nothing otherwise. By default it changes nothing.
    ///
    /// The engine calls this before [`release_or_keep`](Self::release_or_keep), while the lease is held.
    /// The next local waiters then need not wait for that reply.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease is kept or unchanged. A repeat decides again, and a second keep uses fresh
    /// counters.
    fn extend(
        &self,
        request: &KeepRequest,
    ) -> impl Future<Output = Result<Extended, BackendError>> + Send {
        let _unused = request;
        ready(Ok(Extended::wanted(0)))
    }

    /// Subscribes a manager to a key. Returns immediately. The subscription ends when the [`Hints`] are
    /// dropped.
    ///
    /// A [`Hint::Released`] is sent when the subscription takes effect, after each resubscription, and at
    /// each release that leaves the key free. An attempt after a hint cannot miss a release. A store with a
    /// queue sends [`Hint::Transferred`] when it transfers the key to a lease of `manager`, and to no other
    /// manager.
    ///
    /// [`Hint::Released`]: super::Hint::Released
    /// [`Hint::Transferred`]: super::Hint::Transferred
    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints;

    /// Returns hints that the store is available again, or at another server, after it was unavailable.
    /// By default none.
    ///
    /// Leases from before such a hint may be lost. The engine renews all its leases at each hint, and so
    /// detects lost leases at once. The engine subscribes shortly after its first grant. A store that became
    /// unavailable shortly before this call should therefore send a hint at once.
    fn recoveries(&self) -> Hints {
        Hints::channel().1
    }

    /// Returns the group of keys that share their delays. By default all keys are in group 0.
    ///
    /// While the reply for one key is late, the replies for all keys of its group are late. The engine
    /// renews and releases each group by separate commands, so a part of the store that hangs delays no
    /// other part.
    fn group(&self, key: &LockKey) -> u64 {
        let _one_group = key;
        0
    }

    /// Returns how many fencing tokens one counter stands for, from 1 to 256. By default 256.
    ///
    /// One token belongs to the grant. The others belong to the holders that receive the lease by local
    /// hand-off, without a command. A backend whose counters also serve other clients must return 1.
    fn tokens_per_counter(&self) -> u32 {
        256
    }

    /// Returns the longest time that one command takes on an open connection until it has an outcome or
    /// an error. By default 500 ms.
    ///
    /// The engine bounds an attempt without waiting (`no_wait`) by this time.
    fn response_timeout(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Returns the key's holder, or `None` if it is free.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the store. A repeat reads again.
    fn inspect(
        &self,
        key: &LockKey,
    ) -> impl Future<Output = Result<Option<Holder>, BackendError>> + Send;

    /// Releases the key under any lease and notifies its subscribers.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the key is free or still held. A repeat returns [`ForceReleased::NotHeld`] for a free
    /// key. A repeat by the caller also releases a lease that was granted after the first command. A
    /// command that the backend resends must not: it is meant for the holder of its first attempt.
    fn force_release(
        &self,
        key: &LockKey,
    ) -> impl Future<Output = Result<ForceReleased, BackendError>> + Send;

    /// Returns the commands that this store can complete without waiting. By default `None`.
    ///
    /// This is an optimization that saves tasks and boxed futures.
    fn immediate(&self) -> Option<&dyn Immediate> {
        None
    }
}

/// The commands of a store in this process that complete without waiting and without reading the clock.
///
/// `now` is a time before the call. It may be earlier than the `now` of a previous call.
///
/// The engine calls these methods while it holds a mutex that covers the key. They must be short, and must
/// not call a method of the manager: that would deadlock.
pub trait Immediate {
    /// Acquires a key like [`Backend::try_acquire`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Backend::try_acquire`].
    fn try_acquire(&self, request: &AcquireRequest, now: Instant)
    -> Result<Acquired, BackendError>;

    /// Releases one lease like [`Backend::release`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Backend::release`].
    fn release(&self, lease: &Release, now: Instant) -> Result<Released, BackendError>;
}

/// The identifier of one lease in the backend: the UUID of the manager that requested it and a number.
///
/// Its text form is `<uuid>:<number>`, which is also how Redisson names the holders of its locks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId {
    pub(in crate::backend) manager: Uuid,
    pub(in crate::backend) number: u64,
}

impl LeaseId {
    /// Creates the identifier of a manager's lease `number`.
    #[must_use]
    pub fn new(manager: Uuid, number: u64) -> Self {
        Self { manager, number }
    }

    /// Returns the UUID of the manager, which [`Backend::watch`] takes.
    #[must_use]
    pub fn manager(self) -> Uuid {
        self.manager
    }

    /// Returns the number that distinguishes the leases of one manager.
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

/// The request of [`Backend::try_acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The key to acquire.
    pub key: LockKey,
    /// The lease that shall hold the key.
    pub lease: LeaseId,
    /// The duration of the lease.
    pub ttl: Duration,
}

impl AcquireRequest {
    /// Creates a request to acquire `key` under `lease` for `ttl`.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration) -> Self {
        Self { key, lease, ttl }
    }
}

/// The outcome of [`Backend::try_acquire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The key is held under the requested lease.
    #[non_exhaustive]
    Granted {
        /// The base of the fencing tokens, below 2^53.
        counter: u64,
    },
    /// Another lease holds the key.
    #[non_exhaustive]
    Busy {
        /// The remaining TTL of that lease. A holder without a TTL is an error of kind
        /// [`Conflict`](BackendErrorKind::Conflict).
        ttl: Duration,
    },
}

impl Acquired {
    /// Creates a grant under `counter`.
    #[must_use]
    pub fn granted(counter: u64) -> Self {
        Self::Granted { counter }
    }

    /// Creates a rejection by a holder with the remaining TTL `ttl`.
    #[must_use]
    pub fn busy(ttl: Duration) -> Self {
        Self::Busy { ttl }
    }
}

/// One lease to renew.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewal {
    /// The key.
    pub key: LockKey,
    /// The lease that holds it.
    pub lease: LeaseId,
    /// The requested TTL from now on. A longer remaining TTL stays.
    pub ttl: Duration,
}

impl Renewal {
    /// Creates a renewal of the lease on `key` for `ttl` from now on.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration) -> Self {
        Self { key, lease, ttl }
    }
}

/// The outcome of one [`Renewal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewed {
    /// The remaining TTL is at least the requested one.
    Renewed,
    /// The lease does not hold the key: it expired, was released by force, or the store lost its data.
    NotHeld,
}

/// One lease to release or to [leave](Backend::leave).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// The key.
    pub key: LockKey,
    /// The lease that holds the key, or that is in its queue.
    pub lease: LeaseId,
}

impl Release {
    /// Creates a release of the lease on `key`.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId) -> Self {
        Self { key, lease }
    }
}

/// The outcome of one [`Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The key is free now.
    Released,
    /// The first waiter of the queue holds the key now. It can be a waiter of this process.
    Transferred,
    /// The key is free now, and clients outside the queue have the next turn. A [`contend`](Backend::contend)
    /// waits for its end, a [`try_acquire`](Backend::try_acquire) takes the turn away.
    LeftToOthers,
    /// The lease did not hold the key.
    NotHeld,
}

/// The request of [`Backend::release_or_keep`] and [`Backend::extend`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepRequest {
    /// The key.
    pub key: LockKey,
    /// The lease that holds it.
    pub lease: LeaseId,
    /// The requested TTL from now on. A longer remaining TTL stays.
    pub ttl: Duration,
    /// The lease that enters the queue if this one is released, or `None` if no waiter of this process is
    /// left. [`Backend::extend`] ignores it.
    pub next: Option<LeaseId>,
    /// Whether `next` listens, as in [`ContendRequest::listens`].
    pub listens: bool,
}

impl KeepRequest {
    /// Creates a request to keep the lease on `key` for `ttl` from now on, without a next lease.
    #[must_use]
    pub fn new(key: LockKey, lease: LeaseId, ttl: Duration) -> Self {
        Self {
            key,
            lease,
            ttl,
            next: None,
            listens: false,
        }
    }

    /// Sets the lease that enters the queue if this one is released, and whether it listens.
    #[must_use]
    pub fn with_next(mut self, next: LeaseId, listens: bool) -> Self {
        self.next = Some(next);
        self.listens = listens;
        self
    }
}

/// The outcome of [`Backend::release_or_keep`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleasedOrKept {
    /// No other process waits: the lease continues.
    #[non_exhaustive]
    Kept {
        /// The first of [`ReleasedOrKept::COUNTERS`] consecutive counters that only this lease uses.
        /// They are fresh bases of fencing tokens, so a busy key needs few commands. `None` if the store
        /// has no room to count: the lease continues with the tokens that are left of its own counter.
        counter: Option<u64>,
    },
    /// Other processes may be waiting: the lease has ended.
    #[non_exhaustive]
    Released {
        /// What became of the key. Never [`Released::NotHeld`].
        released: Released,
        /// The number of other processes that wait, or 0 if it is unknown. Without a queue, this process
        /// leaves as many turns to other processes before its next one.
        watchers: u32,
        /// Whether the [`next`](KeepRequest::next) lease may be in the queue. The engine then contends under
        /// it, or leaves.
        queued: bool,
    },
    /// The lease did not hold the key.
    NotHeld,
}

impl ReleasedOrKept {
    /// The number of counters that a kept lease receives at once.
    pub const COUNTERS: u32 = 8;

    /// Creates the outcome of a lease that continues under `counter` and the counters after it, or under its
    /// own if there is none.
    #[must_use]
    pub fn kept(counter: impl Into<Option<u64>>) -> Self {
        let counter = counter.into();
        Self::Kept { counter }
    }

    /// Creates the outcome of a lease that was released for `watchers` other processes. The key is free.
    #[must_use]
    pub fn released(watchers: u32) -> Self {
        Self::passed(Released::Released, watchers, false)
    }

    /// Creates the outcome of a lease that was `released` for `watchers` other processes. `queued` states
    /// whether the next lease may be in the queue.
    #[must_use]
    pub fn passed(released: Released, watchers: u32, queued: bool) -> Self {
        Self::Released {
            released,
            watchers,
            queued,
        }
    }
}

/// The outcome of [`Backend::extend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extended {
    /// No other process waits: the lease continues for the requested TTL.
    #[non_exhaustive]
    Kept {
        /// The first of the lease's fresh counters, as in [`ReleasedOrKept::Kept`].
        counter: Option<u64>,
    },
    /// Other processes may be waiting: the lease is unchanged.
    #[non_exhaustive]
    Wanted {
        /// The number of other processes that wait, or 0 if it is unknown.
        watchers: u32,
    },
    /// The lease did not hold the key.
    NotHeld,
}

impl Extended {
    /// Creates the outcome of a lease that continues under `counter` and the counters after it, or under its
    /// own if there is none.
    #[must_use]
    pub fn kept(counter: impl Into<Option<u64>>) -> Self {
        let counter = counter.into();
        Self::Kept { counter }
    }

    /// Creates the outcome of an unchanged lease for which `watchers` other processes may be waiting.
    #[must_use]
    pub fn wanted(watchers: u32) -> Self {
        Self::Wanted { watchers }
    }
}

/// The outcome of [`Backend::force_release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForceReleased {
    /// The key was held and is free now.
    Released,
    /// The key was free, or its holder ended during the call.
    NotHeld,
}

/// The holder of a key as the backend stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The lease, or the holder name that another client such as Redisson wrote.
    pub id: String,
    /// The remaining TTL of the lease.
    pub ttl: Duration,
    /// The hold count in the store. It is 1 for leases of this crate, which counts in the process.
    pub hold_count: u64,
    /// The number of processes in the queue, or 0 if the store has no queue or does not disclose it.
    pub queued: u32,
}

impl Holder {
    /// Creates a holder with an empty queue behind it.
    #[must_use]
    pub fn new(id: String, ttl: Duration, hold_count: u64) -> Self {
        Self {
            id,
            ttl,
            hold_count,
            queued: 0,
        }
    }

    /// Sets the number of processes in the queue.
    #[must_use]
    pub fn with_queued(mut self, queued: u32) -> Self {
        self.queued = queued;
        self
    }
}

/// An error of a [`Backend`] command, which then has no outcome.
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
                "lock store did not reply"
            }
            BackendErrorKind::Unavailable => "lock store cannot serve the command",
            BackendErrorKind::Misconfigured => "lock store rejects this client",
            BackendErrorKind::Conflict => "key holds a value that is not a lock",
        })
    }
}

impl std::error::Error for BackendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_ref())
    }
}
