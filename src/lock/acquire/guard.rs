//! The guard of a held lock.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::lock::clock::timeout::by;
use crate::lock::clock::{Moment, Span};
use crate::lock::engine::Engine;
use crate::lock::lease::{Claim, Grant, Grants, Held, HoldId};
use crate::lock::tasks::downgrade::Downgrade;
use crate::observe::{Name, Via};
use crate::{Error, ErrorKind};

/// Receives a guard that its holder drops, in place of the release.
pub(crate) trait Heir: Send + Sync {
    /// Takes over the hold of a dropped guard. Runs in a `Drop`, so it must not block, await or panic.
    fn inherit(&self, guard: LockGuard);
}

/// What few guards have.
#[derive(Default)]
struct Rare {
    heir: Option<Arc<dyn Heir>>,
    /// A downgrade whose result the caller has not received.
    downgrade: Option<Downgrade>,
}

/// A held lock on one or several keys, released on drop.
///
/// Dropping the guard releases the lock in the background, on any path: return, error, panic,
/// cancelled task. [`release`](LockGuard::release) also reports the result. The guard derefs to
/// [`Held`], which has the state of the lock. There is one guard for each hold: `guard.clone()`
/// returns a [`Held`], which does not extend the hold.
///
/// Dropping never blocks and needs no runtime.
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
    /// `None` once the hold is released or taken over.
    engine: Option<Arc<Engine>>,
    hold: HoldId,
    held: Held,
    /// Boxed because it is rare and every guard has a place for it.
    rare: Option<Box<Rare>>,
}

impl Drop for LockGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            if let Some(heir) = self.rare.as_mut().and_then(|rare| rare.heir.take()) {
                return heir.inherit(Self {
                    engine: Some(engine),
                    hold: self.hold,
                    held: self.held.clone(),
                    rare: self.rare.take(),
                });
            }
            let now = engine.now();
            self.end(&engine, now);
        }
    }
}

impl LockGuard {
    /// Creates the guard of one hold, and reports the hold: a report that panics drops the guard.
    pub(crate) fn one(engine: Arc<Engine>, grant: Arc<Grant>, hold: HoldId) -> Self {
        let via = grant.via_of(hold);
        let guard = Self::of(Some(engine), Grants::One(grant), via, hold);
        if let Some(engine) = &guard.engine {
            engine.granted(guard.held.grants.first(), hold);
        }
        guard
    }

    /// Reports the acquire that this guard ends without a wait.
    pub(crate) fn report(&self, name: Name) {
        if let Some(engine) = &self.engine {
            engine.acquired(name, Ok(()), Duration::ZERO, None);
        }
    }

    fn of(engine: Option<Arc<Engine>>, grants: Grants, via: Via, hold: HoldId) -> Self {
        let waited = Span::new(Duration::ZERO);
        Self {
            engine,
            hold,
            held: Held {
                grants,
                waited,
                via,
            },
            rare: None,
        }
    }

    /// Joins the guards of several keys, whose holds share one id. Returns `None` if one of them has ended.
    ///
    /// The longest hold counts from here. The next holder of each key gets a fresh counter, which exceeds
    /// the largest token of this guard.
    pub(crate) fn many(
        engine: &Arc<Engine>,
        mut guards: Vec<Self>,
        claim: &Claim,
        now: Moment,
    ) -> Option<Self> {
        let mut all = true;
        for guard in &mut guards {
            let grant = guard.held.grants.first();
            if !engine.event(grant.key(), now, |lane, _| {
                lane.join_keys(grant, claim, now)
            }) {
                // Nothing is left to release.
                guard.engine = None;
                all = false;
            }
        }
        if !all {
            return None;
        }
        let mut engine = None;
        let mut grants = Vec::with_capacity(guards.len());
        // The slowest way.
        let mut via = Via::Reentrant;
        for mut guard in guards {
            via = via.max(guard.held.via);
            grants.extend_from_slice(&guard.held.grants);
            engine = guard.engine.take();
        }
        Some(Self::of(
            engine,
            Grants::Many(grants.into()),
            via,
            claim.hold,
        ))
    }

    /// Drops the guard of a layer, which has no heir, or returns it if the lock is lost. Reads the clock once.
    pub(crate) fn drop_unless_lost(mut self) -> Result<(), Self> {
        let now = self.held.grants.now();
        if self.held.grants.are_lost(now) {
            return Err(self);
        }
        if let Some(engine) = self.engine.take() {
            self.end(&engine, now);
        }
        Ok(())
    }

    #[inline]
    fn end(&self, engine: &Arc<Engine>, now: Moment) {
        for grant in &*self.held.grants {
            // Completes at once or goes to the releaser; a lost lock needs neither.
            engine.release(grant, self.hold, None, now);
        }
    }

    /// Sets how long the acquire waited.
    pub(crate) fn set_wait(&mut self, waited: Duration) {
        self.held.waited = Span::new(waited);
    }

    /// Sets the heir of the hold, which receives this guard if it is dropped. An explicit
    /// [`release`](Self::release) still releases the lock.
    pub(crate) fn set_heir(&mut self, heir: Option<Arc<dyn Heir>>) {
        let rare = &mut self.rare;
        if heir.is_some() || rare.is_some() {
            rare.get_or_insert_default().heir = heir;
        }
    }

    /// Returns a read-only view of the lock, which cannot release it.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Makes the exclusive lock shared in one step: no exclusive acquire, also none that waits, is granted in between.
    ///
    /// A service that writes and then only reads lets other readers in, and keeps what it has written. Afterwards,
    /// [`mode`](Held::mode) is [`Mode::Shared`](crate::backend::Mode::Shared) and the
    /// [token](Held::fencing_token) is a fresh one, also in views of this guard. The shared acquires that wait as the
    /// first are granted, in this process and in others. The reverse does not exist: see
    /// [`Upgrade`](ErrorKind::Upgrade).
    ///
    /// The guard must be the only hold of its owner. Until the downgrade has completed, the owner gets further shared
    /// holds, but no exclusive one. A guard that is shared already stays as it is. With several keys, each exclusive
    /// key has a command of its own. After an error that is not [`Lost`](ErrorKind::Lost), some of the keys may be shared,
    /// and a further call continues with the others.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_lock::Error> {
    /// use tower_lock::LockManager;
    ///
    /// let locks = LockManager::in_memory();
    /// let mut guard = locks.acquire("report:7").await?;
    /// // Write the report.
    /// guard.downgrade().await?;
    /// // Other readers share the lock while this one sends the report.
    /// let reader = locks.acquire("report:7").shared().no_wait().await?;
    /// # drop((guard, reader));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// With these errors, each key is exclusive as before, or shared if its own command has succeeded:
    ///
    /// - [`InvalidOption`](ErrorKind::InvalidOption) if the owner has another hold, if the guard has a permit, or while
    ///   the downgrade of another guard of the owner, which was dropped, is in flight. The source states what to do.
    /// - [`Unsupported`](ErrorKind::Unsupported) if the backend has no shared locks.
    /// - [`Unavailable`](ErrorKind::Unavailable), [`Refused`](ErrorKind::Refused) or
    ///   [`KeyConflict`](ErrorKind::KeyConflict) if the backend rejects the command.
    ///
    /// With [`Lost`](ErrorKind::Lost), the lock was lost before, or the result of the command is unknown. The guard is
    /// lost then, and the lock is released in the background, whichever mode it has.
    ///
    /// # Cancel safety
    ///
    /// The downgrade starts before the first await. If dropped, it finishes in the background, and a further call returns
    /// its result.
    pub async fn downgrade(&mut self) -> Result<(), Error> {
        let begun = &mut self.rare.get_or_insert_default().downgrade;
        let downgrade = match &mut *begun {
            Some(downgrade) => downgrade,
            none => {
                let Some(engine) = &self.engine else {
                    unreachable!("BUG: a guard has a hold");
                };
                none.insert(engine.downgrade(&self.held.grants, self.hold)?)
            }
        };
        let outcome = downgrade.finish(self.held.loss()).await;
        *begun = None;
        outcome
    }

    /// Releases the lock, and completes when the backend has confirmed the release.
    ///
    /// Completes at once if the owner has another hold, or if the lock was handed off to the next waiter
    /// of this process. This call is optional: dropping the guard also releases the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_lock::Error> {
    /// use tower_lock::LockManager;
    ///
    /// let locks = LockManager::in_memory();
    /// let guard = locks.acquire("order:42").await?;
    /// // An error shows that another owner may have held the lock: the work may have to be undone.
    /// guard.release().await?;
    /// assert!(!locks.is_locked("order:42").await?);
    /// # Ok(())
    /// # }
    /// ```
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
    pub async fn release(mut self) -> Result<(), Error> {
        let Some(engine) = self.engine.take() else {
            unreachable!("BUG: a hold is released once");
        };
        let now = engine.now();
        let release = |grant| {
            let (report, reported) = oneshot::channel();
            let until = engine.release(grant, self.hold, Some(report), now);
            (reported, until)
        };
        // All releases start before the first is awaited.
        let started: SmallVec<[_; 1]> = self.held.grants.iter().map(release).collect();
        let (may_not_run, clock) = (engine.home.may_not_run(), engine.home.clock);
        drop((engine, self));
        let mut outcome = Ok(());
        // Each lease must have expired by then.
        for (reported, until) in started {
            // The watchdog ends the return in time, if it runs.
            let reported = match may_not_run {
                true => by(clock, until, now, reported).await,
                false => Some(reported.await),
            };
            let unavailable = || Err(Error::new(ErrorKind::Unavailable));
            outcome = outcome.and(reported.and_then(Result::ok).unwrap_or_else(unavailable));
        }
        outcome
    }
}

impl Deref for LockGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&self.held).finish()
    }
}

#[cfg(test)]
mod tests;
