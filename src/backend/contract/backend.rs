//! The commands that every lock store offers.

use std::future::{Future, ready};

use uuid::Uuid;

use super::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, Capabilities, Contended, Downgraded,
    ForceReleased, Holder, KeepRequest, Release, Released, ReleasedOrKept, Renewal, Renewed,
};
use crate::LockKey;
use crate::backend::Hints;

/// A store of leases.
///
/// # Contract
///
/// A key is free, or held under one exclusive [`LeaseId`], several shared ones or several [permits](Self::capabilities). Each
/// lease ends when its TTL has passed. Each command returns a definite outcome, or a [`BackendError`] that states
/// whether the command may have taken effect. The functions in
/// [`conformance`](conformance/index.html) (feature
/// `conformance`) are this contract in code. Run them against your own backend. The page
/// [`backend`](crate::guide::backend) of the guide has a complete example, and explains each failure.
///
/// The engine guarantees:
///
/// - The futures of commands are polled in a Tokio runtime with timers.
/// - A [`LeaseId`] is used for one acquire. It is not used again after a release, a loss or an error.
/// - The future of [`try_acquire`](Self::try_acquire) or [`contend`](Self::contend) is polled until it
///   completes, even after its caller was cancelled. The engine then releases what it acquired. Only a
///   runtime shutdown drops that future early.
/// - After an error that may have taken effect, the engine calls [`release`](Self::release) for that
///   lease until it returns an outcome or the lease must have expired.
///
/// The backend must guarantee:
///
/// - A `release` or a `leave` that *starts* after the outcome or the error of a `try_acquire` or a `contend`
///   does not take effect before that attempt. A backend that stops waiting for a reply must ensure this, for
///   instance by sending both commands on one connection.
/// - Each command completes within a bounded time.
/// - `renew`, `release`, `release_or_keep` and `leave` return one result per item, in order.
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
/// A process has one place in the queue of a key, for all its waiters. Waiters for permits have a place each: four at
/// first, and each that has waited for a second. The engine guarantees:
///
/// - The process contends under one lease id, from its first attempt that may enter the queue until the lease
///   is granted or left.
/// - A lease in the queue is refreshed by a `contend` at least every 1.1 seconds, or left.
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
///   that a notification does not reach, is passed over. An unreachable waiter keeps its place. If it does not
///   listen, it is passed over only until its next attempt, which is due after `poll_after` of
///   [`Contended::Waiting`].
/// - *Head first.* A `contend` that finds the key free serves the first waiter, whichever it is.
/// - *Own lease only.* A lease ends by its own release or leave, by its expiry, or by force.
/// - *Repeats.* A repeated `contend` keeps its place and is counted once. A repeated `leave` or `release`
///   changes nothing.
/// - *Dead waiters.* A transferred lease that is not confirmed expires within 1.5 s, and a waiter that does not
///   refresh its place leaves the queue within 3 s. So a waiter that ended after the key was transferred to it
///   delays the others by at most 1.5 s, once. All waiters that hang delay them by at most 4.5 s together.
/// - *No queue, no change.* While the queue is empty, every command behaves as without it.
/// - *Other clients.* Clients that wait outside the queue have one turn after each turn of the queue's
///   waiters.
///
/// [`LeaseId`]: super::LeaseId
/// [`Hint::Transferred`]: crate::backend::Hint::Transferred
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

    /// Acquires a key if it is free or was transferred to this lease. Otherwise enters the queue of its
    /// waiters, or refreshes the place of the lease there.
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
        request: &AcquireRequest,
    ) -> impl Future<Output = Result<Contended, BackendError>> + Send {
        async move { Ok(Contended::of(self.try_acquire(request).await?)) }
    }

    /// Removes leases from the queue, and releases each key that its lease holds, after a transfer or a grant.
    /// Returns one result per lease, in order.
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

    /// Keeps each lease for the requested TTL if no other process waits for its key, and releases it
    /// otherwise. A process waits if it is in the queue or subscribed to the key. Returns one result per lease, in order.
    ///
    /// The engine calls this when a lease has used up its hand-off budget in this process, or its turn as a
    /// [kept](crate::LockManagerBuilder::keep_released) lease. The calling
    /// process is not subscribed to the key. A lease that is kept continues under the requested number of fresh
    /// [`counters`](KeepRequest::counters), or under its own if the store has no room to count.
    ///
    /// If a lease is released and its request has a [`next`](KeepRequest::next) lease, that lease enters the
    /// queue in the same step. The waiters of the calling process then wait behind all others.
    ///
    /// A backend that cannot count subscribers must release. The default implementation does so through
    /// [`release`](Self::release), with a subscriber count of 0. It does not enter the queue.
    ///
    /// # Cancel safety
    ///
    /// If dropped, each lease is released, kept or unchanged. A repeat after a release returns
    /// [`ReleasedOrKept::NotHeld`]. A repeat after a keep decides again, and a second keep uses fresh
    /// counters. After an unknown result the engine sends a plain `release`.
    fn release_or_keep(
        &self,
        leases: &[KeepRequest],
    ) -> impl Future<Output = Vec<Result<ReleasedOrKept, BackendError>>> + Send {
        let releases = leases
            .iter()
            .map(|it| Release::new(it.key.clone(), it.lease));
        let releases: Vec<_> = releases.collect();
        async move {
            let outcomes = self.release(&releases).await.into_iter();
            let unkept = outcomes.map(|outcome| {
                outcome.map(|released| match released {
                    Released::NotHeld => ReleasedOrKept::NotHeld,
                    released => ReleasedOrKept::passed(released, 0, false),
                })
            });
            unkept.collect()
        }
    }

    /// Makes an exclusive lease shared, in one step, so that no exclusive lease holds the key in between.
    ///
    /// `lease` is the exclusive lease. The shared one has the same id, a fresh counter as in
    /// [`try_acquire`](Self::try_acquire), and the remaining TTL that [`renew`](Self::renew) would give it. A store with
    /// a queue then serves the first waiters that are shared, up to the first one that is not, and waiters outside the
    /// queue receive [`Hint::Released`](crate::backend::Hint::Released). The engine sends no other command for the lease
    /// until the reply, except a release, which must end the lease in either mode.
    ///
    /// The default implementation is for a store without shared leases: it changes nothing and returns an error of kind
    /// [`Unsupported`](super::BackendErrorKind::Unsupported).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease is exclusive or shared. A repeat for a shared lease returns a fresh counter.
    fn downgrade(
        &self,
        lease: &Renewal,
    ) -> impl Future<Output = Result<Downgraded, BackendError>> + Send {
        let _unused = lease;
        let cause = "the lock backend has no downgrade";
        ready(Err(BackendError::refused(
            BackendErrorKind::Unsupported,
            cause,
        )))
    }

    /// Subscribes a manager to a key. Returns immediately. The subscription ends when the [`Hints`] are
    /// dropped.
    ///
    /// A [`Hint::Released`] is sent when the subscription takes effect, after each resubscription, and at
    /// each release that leaves the key free. An attempt after a hint cannot miss a release. A store with a
    /// queue sends [`Hint::Transferred`] when it transfers the key to a lease of `manager`, and to no other
    /// manager. The manager may have left that lease. The transfer to the next lease of a
    /// [`release_or_keep`](Self::release_or_keep) that [listens](ReleasedOrKept::Released::listens) can come before this
    /// call, and is then sent to the next subscription.
    ///
    /// [`Hint::Released`]: crate::backend::Hint::Released
    /// [`Hint::Transferred`]: crate::backend::Hint::Transferred
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

    /// Returns what this backend supports besides exclusive leases, and its bounds. By default only exclusive leases. The
    /// engine reads it once per manager.
    ///
    /// The engine sends no request of another mode. The rules of a shared lease, beyond those of any lease:
    ///
    /// - It is granted while no exclusive lease holds the key, and no exclusive lease waits in the queue before it.
    /// - Its counter exceeds those of all exclusive leases before it.
    /// - The renewal of another lease does not extend it.
    /// - A key that becomes free is transferred to the first waiter. If that is a shared lease, the next waiters that
    ///   are shared, up to the first exclusive one, receive it as well.
    /// - Its renewal reports [`Renewed::Wanted`] while an exclusive lease waits.
    ///
    /// A permit follows the first three of these rules, and these:
    ///
    /// - It is granted while only permits hold the key, fewer than its own limit, and no lease waits in the queue before
    ///   it. The limits of other permits do not matter.
    /// - When a permit ends, and when the key becomes free, permits are transferred to the first waiters, up to the first
    ///   one whose limit is reached or that is no permit.
    ///
    /// For both:
    ///
    /// - [`release_or_keep`](Self::release_or_keep) is for exclusive leases.
    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE
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

    /// Returns the key's holder, or `None` if it is free.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the store. A repeat reads again.
    fn inspect(
        &self,
        key: &LockKey,
    ) -> impl Future<Output = Result<Option<Holder>, BackendError>> + Send;

    /// Releases the key and notifies its subscribers. With a `holder`, only if its [`Holder::id`] is this text. Data that is
    /// no lock of this contract is left as it is, with an error of kind [`Conflict`](super::BackendErrorKind::Conflict).
    ///
    /// The comparison and the release are one step, so the next holder keeps its lease. A store that cannot compare changes
    /// nothing for a `holder`, and returns an error of kind [`Misconfigured`](super::BackendErrorKind::Misconfigured).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the key is free or still held. A repeat returns [`ForceReleased::NotHeld`] for a free key, and for
    /// another holder. Without a `holder`, a repeat by the caller also releases a lease that was granted after the first
    /// command. A resend by the backend must not release that lease: it is meant for the holder of the first attempt.
    fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> impl Future<Output = Result<ForceReleased, BackendError>> + Send;
}
