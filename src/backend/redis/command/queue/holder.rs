//! Reads the holder of a lock, and releases its lock.

use crate::backend::redis::command::call::{Calls, KeyRoute};
use crate::backend::redis::command::error::Cause;
use crate::backend::redis::command::names::RedisName;
use crate::backend::redis::command::reply::{holder, released};
use crate::backend::{BackendError, BackendErrorKind, ForceReleased, Holder, Released};

/// The most reads of the holders before a forced release.
const READS: usize = 10;

impl Calls {
    pub(crate) async fn inspect(&self, at: KeyRoute<'_>) -> Result<Option<Holder>, BackendError> {
        let script = &self.scripts.inspect;
        let command = |queue: Option<RedisName<'_>>| {
            let mut command = script.evalsha(1 + usize::from(queue.is_some()), 0, 256);
            command.arg(at.body()).arg(queue);
            command
        };
        holder(self.call_with_queue(script, at, command).await?.value)
    }

    /// Releases the lock of its present holder, or of all of them. Of several, the one that was read may end before the
    /// release, and the others hold the lock still.
    pub(crate) async fn force_release(
        &self,
        at: KeyRoute<'_>,
    ) -> Result<ForceReleased, BackendError> {
        for _ in 0..READS {
            let Some(holder) = self.inspect(at).await? else {
                break;
            };
            if holder.id.is_empty() {
                let cause = Cause::UnreadableHolder;
                return Err(BackendError::refused(
                    BackendErrorKind::Misconfigured,
                    cause,
                ));
            }
            let outcome = self.release_by_force(at, &holder.id, false).await?;
            if outcome == ForceReleased::Released || holder.leases == 1 {
                return Ok(outcome);
            }
        }
        Ok(ForceReleased::NotHeld)
    }

    /// Releases the lock that `holder` has. `alone`: not those of others that share it.
    pub(crate) async fn release_by_force(
        &self,
        at: KeyRoute<'_>,
        holder: &str,
        alone: bool,
    ) -> Result<ForceReleased, BackendError> {
        let script = &self.scripts.force_release;
        let command = |queue: Option<RedisName<'_>>| {
            let mut command = script.evalsha(1 + usize::from(queue.is_some()), 4, 512);
            command.arg(at.body()).arg(queue);
            command.arg(holder).arg(at.channel());
            command.arg(self.blind(at.route).unwrap_or(0));
            command.arg(u8::from(alone));
            command
        };
        let reply = self.call_with_queue(script, at, command).await?;
        Ok(match released(&reply.value, Released::NotHeld)? {
            Released::NotHeld if !reply.resent => ForceReleased::NotHeld,
            _ => ForceReleased::Released,
        })
    }
}
