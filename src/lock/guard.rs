//! The guard of a held lock, and a read-only view of it.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::claim::{Claim, HoldId};
use super::clock::{Moment, Span};
use super::effect::Report;
use super::engine::Engine;
use super::grant::Grant;
use super::lost::{Grants, Lost};
use super::timeout::{by, polled_in};
use crate::observe::{LostReason, Via};
use crate::{Error, ErrorKind, FencingToken, LockKey, Owner};

/// Receives a guard that its holder drops, in place of the release.
pub(crate) trait Heir: Send + Sync {
    /// Takes over the hold of a dropped guard. Runs in a `Drop`, so it must not block, await or panic.
    fn inherit(&self, guard: LockGuard);
}

/// One hold of one or several keys, released exactly once by `Drop`, unless an heir takes it over.
pub(super) struct Hold {
    /// `None` once the hold is released or taken over.
    engine: Option<Arc<Engine>>,
    id: HoldId,
    held: Held,
    /// Boxed because it is rare and every guard has a place for it.
    heir: Option<Box<Arc<dyn Heir>>>,
}

impl Hold {
    pub(super) fn new(engine: Arc<Engine>, grant: Arc<Grant>, id: HoldId) -> Self {
        let via = grant.via_of(id);
        Self {
            engine: Some(engine),
            id,
            held: Held {
                grants: Grants::One(grant),
                waited: Span::new(Duration::ZERO),
                via,
            },
            heir: None,
        }
    }

    /// Joins the holds of several keys, which share one id.
    fn together(holds: Vec<Self>, id: HoldId) -> Self {
        let mut engine = None;
        let mut grants = Vec::with_capacity(holds.len());
        // The slowest way.
        let mut via = Via::Reentrant;
        for mut hold in holds {
            via = via.max(hold.held.via);
            grants.extend_from_slice(hold.grants());
            engine = hold.engine.take();
        }
        Self {
            engine,
            id,
            held: Held {
                grants: Grants::Many(grants.into()),
                waited: Span::new(Duration::ZERO),
                via,
            },
            heir: None,
        }
    }

    fn grants(&self) -> &[Arc<Grant>] {
        self.held.grants.as_slice()
    }

    pub(super) fn is_held(&self, now: Moment) -> bool {
        self.held.grants.are_held(now)
    }

    /// Starts the releases at once, and returns a future that only awaits them.
    fn release(mut self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let Some(engine) = self.engine.take() else {
            unreachable!("BUG: a hold is released once");
        };
        let (home, now) = (engine.release_home(), Moment::now());
        let release = |grant| {
            let (reply, reported) = oneshot::channel();
            let report = Box::new(Report { reply, home });
            let until = engine.release(grant, self.id, home, Some(report), now);
            Started { reported, until }
        };
        // The caller may be in another runtime than the one that was set.
        let own = home.filter(|_| !engine.homes.is_fixed());
        // All releases start before the first is awaited.
        let started: SmallVec<[_; 1]> = self.grants().iter().map(release).collect();
        async move {
            let mut outcome = Ok(());
            for Started {
                mut reported,
                until,
            } in started
            {
                let in_home = polled_in(own, &mut reported).await;
                // No report arrives in time if the runtime of the releaser has stopped.
                let reported = match in_home {
                    Some(reported) => Some(reported),
                    None => by(until, now, reported).await,
                };
                let unavailable = || Err(Error::new(ErrorKind::Unavailable));
                outcome = outcome.and(reported.and_then(Result::ok).unwrap_or_else(unavailable));
            }
            outcome
        }
    }
}

/// A release that has started.
struct Started {
    reported: oneshot::Receiver<Result<(), Error>>,
    /// When the lease must have expired.
    until: Moment,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            if let Some(heir) = self.heir.take() {
                let hold = Self {
                    engine: Some(engine),
                    id: self.id,
                    held: self.held.clone(),
                    heir: None,
                };
                heir.inherit(LockGuard { hold });
                return;
            }
            let (home, now) = (engine.release_home(), Moment::now());
            for grant in self.grants() {
                // Completes at once or goes to the releaser; a lost lock needs neither.
                engine.release(grant, self.id, home, None, now);
            }
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hold").field(&self.held).finish()
    }
}

/// A held lock on one or several keys, released on drop.
///
/// Dropping the guard releases the lock in the background, on any path: return, error, panic,
/// cancelled task. [`release`](LockGuard::release) also reports the result. The guard derefs to
/// [`Held`], which has the state of the lock. There is one guard for each hold: `guard.clone()`
/// returns a [`Held`], which does not extend the hold.
///
/// Dropping never blocks and needs no runtime: without one, the lease expires.
///
/// # Guards that are dropped at once
///
/// A guard that is bound to no variable locks nothing. The compiler warns about the first line. The second one needs
/// a lint that is off by default: put `#![deny(let_underscore_drop)]` at the top of the crate.
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn example(locks: tower_lock::LockManager) -> Result<(), tower_lock::Error> {
/// locks.acquire("order:42").await?;
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail
/// #![deny(let_underscore_drop)]
/// # async fn example(locks: tower_lock::LockManager) -> Result<(), tower_lock::Error> {
/// let _ = locks.acquire("order:42").await?;
/// # Ok(())
/// # }
/// ```
///
/// A variable whose name begins with an underscore lives until the end of its scope:
///
/// ```
/// #![deny(unused_must_use, let_underscore_drop)]
/// # async fn example(locks: tower_lock::LockManager) -> Result<(), tower_lock::Error> {
/// let _guard = locks.acquire("order:42").await?;
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

    /// Joins the holds of several keys. Returns `None` if one of them has ended.
    ///
    /// The longest hold counts from here. The next holder of each key gets a fresh counter, which exceeds
    /// the largest token of this group.
    pub(super) fn many(
        engine: &Arc<Engine>,
        mut holds: Vec<Hold>,
        claim: &Claim,
        now: Moment,
    ) -> Option<Self> {
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

    /// Sets how long the acquire waited.
    pub(super) fn set_waited(&mut self, waited: Duration) {
        self.hold.held.waited = Span::new(waited);
    }

    /// Sets the heir of the hold, which receives this guard if it is dropped. An explicit
    /// [`release`](Self::release) still releases the lock.
    pub(crate) fn set_heir(&mut self, heir: Option<Arc<dyn Heir>>) {
        self.hold.heir = heir.map(Box::new);
    }

    /// Returns a read-only view of the lock, which cannot release it.
    #[must_use]
    pub fn held(&self) -> Held {
        self.hold.held.clone()
    }

    /// Releases the lock, and completes when the backend has confirmed the release.
    ///
    /// Completes at once if the owner has another hold, or if the lock was handed off to the next waiter
    /// of this process. This call is optional: dropping the guard also releases the lock.
    ///
    /// # Errors
    ///
    /// Returns [`Lost`](ErrorKind::Lost) if the lock was lost before, so another owner may have held it
    /// concurrently. Returns [`Unavailable`](ErrorKind::Unavailable) if the lease expired before the
    /// backend confirmed the release.
    ///
    /// # Cancel safety
    ///
    /// The release starts before the first await. If dropped, it finishes in the background.
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

/// A read-only view of a held lock, which the layer passes to handlers.
///
/// A view does not extend the hold: after the guard is dropped, [`is_held`](Held::is_held) returns
/// `false` and [`hold_count`](Held::hold_count) returns 0.
#[derive(Clone)]
pub struct Held {
    pub(super) grants: Grants,
    pub(super) waited: Span,
    pub(super) via: Via,
}

impl Held {
    /// Returns the key, or the first of several keys in their sorted order.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.grants.first().key()
    }

    /// Returns the keys in their sorted order.
    #[must_use]
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &LockKey> {
        self.grants.as_slice().iter().map(|grant| grant.key())
    }

    /// Returns the owner of the lock. Pass it to [`Acquire::owner`](crate::Acquire::owner) to re-enter.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.grants.first().owner()
    }

    /// Returns the token to send with each write, by which the storage can reject writes of a stale
    /// holder.
    ///
    /// For several keys this is the largest of their tokens. It is larger than every token granted
    /// before on any of the keys, and smaller than every later one, if one counter serves all keys: in
    /// memory, and on one Redis node that has counters of its own. With other backends, write each
    /// record with the token of its own key, [`fencing_token_for`](Self::fencing_token_for).
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        let first = self.grants.first().token();
        (self.grants.as_slice().iter()).fold(first, |largest, grant| largest.max(grant.token()))
    }

    /// Returns the token of one of the keys, or `None` if the lock does not cover the key.
    #[must_use]
    pub fn fencing_token_for(&self, key: &LockKey) -> Option<FencingToken> {
        let mut grants = self.grants.as_slice().iter();
        grants
            .find(|grant| grant.key() == key)
            .map(|grant| grant.token())
    }

    /// Returns the number of guards by which this owner holds the lock, or 0 after the release. With
    /// several keys, returns the smallest of their counts.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        let counts = self.grants.as_slice().iter().map(|grant| grant.holds());
        counts.min().unwrap_or(0)
    }

    /// Returns `true` if the lock is held at this moment.
    ///
    /// Reads the clock at each call. Returns `false` from the instant at which the backend may admit another
    /// owner, even after this process was paused or the machine was suspended.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold_count() > 0 && self.grants.are_held(Moment::now())
    }

    /// Returns the time until the lock is lost if no renewal succeeds, or zero if it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = Moment::now();
        if self.hold_count() > 0 && self.grants.are_held(now) {
            self.grants.valid_until().since(now)
        } else {
            Duration::ZERO
        }
    }

    /// Returns how long the acquire waited, or zero if it was granted at its first poll.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited.get()
    }

    /// Returns how the lock was granted. For several keys, returns the slowest way.
    #[must_use]
    pub fn via(&self) -> Via {
        self.via
    }

    /// Returns why the lock was lost, or `None` while it is held or after it was released. For several keys, returns the
    /// reason of the first one that was lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_lock::Error> {
    /// use std::time::Duration;
    /// use tower_lock::{LockManager, LostReason};
    ///
    /// let locks = LockManager::in_memory();
    /// let guard = locks.acquire("order:42").max_hold(Duration::from_millis(10)).await?;
    /// assert_eq!(guard.lost_reason(), None);
    /// guard.lost().await;
    /// assert_eq!(guard.lost_reason(), Some(LostReason::MaxHold));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.grants.lost_reason()
    }

    /// Returns `true` if the lock is lost at this moment, and `false` if it is held or released.
    pub(crate) fn is_lost(&self) -> bool {
        self.grants.are_lost(Moment::now())
    }

    /// Completes when the lock is lost, before its lease can expire in the backend. Never completes if the
    /// lock is released first.
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

#[cfg(test)]
mod tests;
