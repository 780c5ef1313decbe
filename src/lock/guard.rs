//! What one owner holds.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::claim::{Claim, HoldId};
use super::clock::Moment;
use super::engine::Engine;
use super::grant::Grant;
use super::lost::{Grants, Lost};
use super::timeout::by;
use crate::{Error, ErrorKind, FencingToken, LockKey, Owner};

/// One hold of one or several keys: exactly one release of each on every path, by `Drop`.
pub(super) struct Hold {
    /// Absent once it is released.
    engine: Option<Arc<Engine>>,
    id: HoldId,
    held: Held,
}

impl Hold {
    pub(super) fn new(engine: Arc<Engine>, grant: Arc<Grant>, id: HoldId) -> Self {
        Self {
            engine: Some(engine),
            id,
            held: Held {
                grants: Grants::One(grant),
            },
        }
    }

    /// Makes one hold of several, which have the same name.
    fn together(holds: Vec<Self>, id: HoldId) -> Self {
        let mut engine = None;
        let mut grants = Vec::with_capacity(holds.len());
        for mut hold in holds {
            grants.extend_from_slice(hold.grants());
            engine = hold.engine.take();
        }
        Self {
            engine,
            id,
            held: Held {
                grants: Grants::Many(grants.into()),
            },
        }
    }

    fn grants(&self) -> &[Arc<Grant>] {
        self.held.grants.as_slice()
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.grants.are_held(Moment::now())
    }

    /// Hands the releases over at once; the future it returns only listens.
    fn release(mut self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let engine = self.engine.take();
        let release = |grant| Some(release(engine.as_ref()?, grant, self.id));
        // All start before the first is awaited. Of one, nothing is allocated.
        let mut grants = self.grants().iter();
        let first = grants.next().and_then(release);
        let others: Vec<_> = grants.filter_map(release).collect();
        async move {
            let mut outcome = Ok(());
            for release in first.into_iter().chain(others) {
                outcome = outcome.and(release.await);
            }
            outcome
        }
    }
}

/// Hands one release over at once; the future it returns only listens.
fn release(
    engine: &Arc<Engine>,
    grant: &Arc<Grant>,
    hold: HoldId,
) -> impl Future<Output = Result<(), Error>> + Send + use<> {
    let (report, reported) = oneshot::channel();
    let until = engine.release(grant, hold, Some(report));
    async move {
        // No report comes in time when the runtime that was to send the release does not run.
        let unavailable = || Err(Error::new(ErrorKind::Unavailable));
        match by(until, reported).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) | None => unavailable(),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            for grant in self.grants() {
                // Either done at once, or handed to the releaser; a lost lock needs nothing.
                engine.release(grant, self.id, None);
            }
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hold").field(&self.held).finish()
    }
}

/// The right to work on one or several keys, until it is dropped, released or lost.
///
/// Dropping the guard gives the lock back in the background, on any path: return, error, panic,
/// cancelled task. [`release`](LockGuard::release) does the same and tells how it went. All that can
/// be asked about the lock is on [`Held`], to which the guard derefs. There is one guard for each hold: what
/// `guard.clone()` gives is a [`Held`], which looks and keeps nothing.
///
/// Dropping never blocks, and needs no runtime: without one, the lease runs out. Mind that
/// `let _ = …` drops at once, and `let _guard = …` at the end of the scope.
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # async fn example(locks: tower_lock::LockManager) -> Result<(), tower_lock::Error> {
/// locks.acquire("order:42").await?; // dropped at once: nothing would be locked
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is released as soon as the guard is dropped: bind it to a variable that lives as long as the work (`let _ = ...` drops it at once)"]
pub struct LockGuard {
    hold: Hold,
}

impl LockGuard {
    pub(super) fn one(hold: Hold) -> Self {
        Self { hold }
    }

    /// Holds several keys as one. From here on the longest hold counts, and the next holder of each key
    /// takes a fresh counter, so that the largest token of the group separates this group from it. `None`
    /// if a hold has ended before.
    pub(super) fn many(engine: &Arc<Engine>, mut holds: Vec<Hold>, claim: &Claim) -> Option<Self> {
        let now = Moment::now();
        let mut all = true;
        for hold in &mut holds {
            let grant = hold.held.grants.first();
            let grant = Arc::clone(grant);
            if !engine.event(grant.key(), |lane, _| lane.join_group(&grant, claim, now)) {
                // Nothing is left to release.
                hold.engine = None;
                all = false;
            }
        }
        all.then(|| Self {
            hold: Hold::together(holds, claim.hold),
        })
    }

    /// A view to hand to those who may look but not release.
    #[must_use]
    pub fn held(&self) -> Held {
        self.hold.held.clone()
    }

    /// Gives the lock back and waits until the backend has confirmed it.
    ///
    /// Returns at once when the owner holds the lock more than once, or when the lock went to the
    /// next waiter of this process. Nothing needs this call: dropping the guard gives the lock back
    /// as well.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the lock was lost before, so that others may have worked at the
    /// same time; [`Unavailable`](ErrorKind::Unavailable) if the backend did not confirm until the
    /// lease had run out by itself.
    ///
    /// # Cancel safety
    ///
    /// The release is under way before the first await and is finished in the background when this
    /// future is dropped.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.release().await
    }
}

impl Deref for LockGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.hold.held
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.held.fmt_as("LockGuard", f)
    }
}

/// A view of a lock that somebody holds: what a handler under the layer sees.
///
/// Does not keep the lock: when the guard is gone, [`is_held`](Held::is_held) is false and
/// [`hold_count`](Held::hold_count) is 0.
#[derive(Clone)]
pub struct Held {
    grants: Grants,
}

impl Held {
    /// The key; with several keys the first in their order.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.grants.first().key()
    }

    /// The keys in their order.
    #[must_use]
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &LockKey> {
        self.grants.as_slice().iter().map(|grant| grant.key())
    }

    /// Who holds the lock. Pass it to [`Acquire::owner`](crate::Acquire::owner) to re-enter.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.grants.first().owner()
    }

    /// The token to send along with each write, so that the storage can refuse those of a holder
    /// that was overtaken.
    ///
    /// With several keys this is the largest of their tokens. It is larger than every token granted
    /// before on any of the keys, and smaller than every later one, where one counter serves all
    /// keys: in memory, and on one Redis node that has counters of its own. Elsewhere write each record
    /// with the token of its own key, [`fencing_token_for`](Self::fencing_token_for).
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        let first = self.grants.first().token();
        (self.grants.as_slice().iter()).fold(first, |largest, grant| largest.max(grant.token()))
    }

    /// The token of one of the keys; `None` if the key is not among them.
    #[must_use]
    pub fn fencing_token_for(&self, key: &LockKey) -> Option<FencingToken> {
        let mut grants = self.grants.as_slice().iter();
        grants
            .find(|grant| grant.key() == key)
            .map(|grant| grant.token())
    }

    /// How many guards of this owner hold the lock; 0 when it was given back. With several keys
    /// the smallest of their counts.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        let counts = self.grants.as_slice().iter().map(|grant| grant.holds());
        counts.min().unwrap_or(0)
    }

    /// Whether the lock is held at this moment, by the clock and not by a flag alone: false from the
    /// instant at which the backend might let somebody else in, also after this process was stopped
    /// for a while, or the machine was suspended.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0 && self.grants.are_held(Moment::now())
    }

    /// For how long the lock can be trusted if no renewal succeeds any more; zero when it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = Moment::now();
        if self.hold_count() > 0 && self.grants.are_held(now) {
            self.grants.valid_until().since(now)
        } else {
            Duration::ZERO
        }
    }

    /// Waits until the lock is lost, by the time its lease can expire at the latest; for ever if it
    /// is given back before.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with timers.
    pub fn lost(&self) -> Lost {
        Lost::new(self.grants.clone())
    }

    fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("keys", &self.keys().collect::<Vec<_>>())
            .field("owner", &self.owner())
            .field("fencing_token", &self.fencing_token())
            .field("hold_count", &self.hold_count())
            .field("is_held", &self.is_held())
            .finish()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("Held", f)
    }
}
