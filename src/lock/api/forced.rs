//! The forced release of one holder.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::manager::{LockManager, count_forced, valid};
use crate::backend::ForceReleased;
use crate::lock::clock::timeout::by;
use crate::lock::engine::Engine;
use crate::{Error, ErrorKind, LockKey, Owner};

impl LockManager {
    /// Releases the lock of this owner, and of no other. Returns `true` if the owner held the key.
    ///
    /// `owner` is [`LockInfo::owner`](crate::manager::LockInfo::owner), as [`inspect`](Self::inspect) returned it. If another
    /// owner holds the key by now, nothing changes. An owner of this manager is compared in the same step in which its
    /// guard is lost. For a holder of another process, the backend compares the lease and releases it in one step. That
    /// process can hand its lease off to its next owner, which the backend does not see.
    ///
    /// [`force_release`](Self::force_release) describes the effects. Intended for operators' tools.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidKey`](ErrorKind::InvalidKey) or the backend's error. After a backend error, the lock may
    /// have been released. Returns [`Refused`](ErrorKind::Refused) if the backend cannot compare holders.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lock may be released or still held. The release of an owner of this manager is finished in the
    /// background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_lock::Error> {
    /// let locks = tower_lock::LockManager::in_memory();
    /// let first = locks.acquire("order:42").await?;
    /// let owner = first.owner().to_string();
    /// drop(first);
    /// let second = locks.acquire("order:42").await?;
    /// assert!(!locks.force_release_held_by("order:42", &owner).await?);
    /// assert!(second.is_held());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn force_release_held_by(
        &self,
        key: impl Into<LockKey>,
        owner: &str,
    ) -> Result<bool, Error> {
        let key = valid(key)?;
        let engine = self.engine();
        engine.require_home()?;
        let outcome = match self.own(owner) {
            Some(owner) => force_here(engine, &key, owner).await,
            None => {
                let backend = Arc::clone(&engine.backend);
                let command = backend.force_release(key, Some(owner.to_owned()));
                engine.run(command).await.map_err(Error::of_backend)
            }
        };
        count_forced(engine, &outcome);
        Ok(outcome? == ForceReleased::Released)
    }

    /// Returns the owner with this text if this manager has made it, or the lease with this text.
    pub(crate) fn own(&self, owner: &str) -> Option<Owner> {
        let (_, number) = owner.split_once(':')?;
        let own = Owner::new(self.engine().id, number.parse().ok()?);
        (own.to_string() == owner).then_some(own)
    }
}

/// Releases the lock of an owner of this manager: its lease could be handed off at any time, so the lane compares.
async fn force_here(
    engine: &Arc<Engine>,
    key: &LockKey,
    owner: Owner,
) -> Result<ForceReleased, Error> {
    let now = engine.now();
    let (report, reported) = oneshot::channel();
    let permit = engine.has_permits().then(|| key.permit_of(owner));
    let mut report = Some(report);
    let mut lanes = std::iter::once(key).chain(&permit);
    let until = lanes.find_map(|key| {
        engine.event(key, now, |lane, effects| {
            lane.force(owner, &mut report, effects)
        })
    });
    let Some(until) = until else {
        return Ok(ForceReleased::NotHeld);
    };
    match by(engine.home.clock, until, now, reported).await {
        Some(Ok(Ok(()))) => Ok(ForceReleased::Released),
        // The guard is lost, and the lease was lost before.
        Some(Ok(Err(error))) if error.kind() == ErrorKind::Lost => Ok(ForceReleased::Released),
        Some(Ok(Err(error))) => Err(error),
        Some(Err(_)) | None => Err(Error::new(ErrorKind::Unavailable)),
    }
}
