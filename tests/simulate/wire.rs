//! The simulated store as a [`Backend`]: the only file that knows the trait.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tower_lock::LockKey;
use tower_lock::backend::Backend;
use tower_lock::backend::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, Capabilities, Contended, Downgraded,
    ForceReleased, Hints, Holder, KeepRequest, LeaseId, Mode, Release, Released, ReleasedOrKept,
    Renewal, Renewed,
};
use uuid::Uuid;

use crate::environment::{Environment, Failure};
use crate::plan::Command;
use crate::store::{Item, Outcome};
use crate::time::{RESPONSE_TIMEOUT, duration, time};

/// The connection of one process.
pub struct Wire {
    pub environment: Arc<Environment>,
    pub manager: usize,
}

/// The name of the `n`-th key.
pub fn key(n: usize) -> LockKey {
    LockKey::new(format!("k{n}"))
}

pub fn index(key: &LockKey) -> usize {
    key.as_str()[1..].parse().unwrap()
}

fn limit(limit: Option<NonZeroU16>) -> usize {
    limit.map_or(0, |limit| limit.get().into())
}

fn item(key: &LockKey, lease: Option<LeaseId>, ttl: Duration) -> Item {
    Item {
        key: index(key),
        lease,
        mode: Mode::Exclusive,
        limit: 0,
        ttl: time(ttl),
        listens: false,
        next: None,
        counters: 1,
    }
}

impl Wire {
    async fn call(&self, command: Command, items: Vec<Item>) -> Vec<Result<Outcome, BackendError>> {
        let count = items.len();
        let mut sent = Sent {
            wire: self,
            command,
            items: items.clone(),
        };
        let deadline = Instant::now() + duration(RESPONSE_TIMEOUT);
        let reply = self.environment.send(self.manager, command, items);
        let reply = match timeout_at(deadline, reply).await {
            Ok(Ok(reply)) => reply,
            // Lost: known when the time is over.
            Ok(Err(_)) => {
                sleep_until(deadline).await;
                vec![Err(Failure::Unknown); count]
            }
            Err(_) => vec![Err(Failure::Unknown); count],
        };
        for (item, outcome) in std::mem::take(&mut sent.items).iter().zip(&reply) {
            let mut store = self.environment.store.lock().unwrap();
            let now = self.environment.now();
            store.answered(command, item, outcome.ok(), now);
            drop(store);
            if let Ok(outcome) = outcome {
                (self.environment).replied(self.manager, command, item, *outcome);
            }
        }
        let error = |failure| match failure {
            Failure::Refused => BackendError::refused(BackendErrorKind::Unavailable, "refused"),
            Failure::Unknown => BackendError::unknown("no reply"),
        };
        reply
            .into_iter()
            .map(|outcome| outcome.map_err(error))
            .collect()
    }

    async fn one(&self, command: Command, item: Item) -> Result<Outcome, BackendError> {
        let mut reply = self.call(command, vec![item]).await;
        reply.remove(0)
    }
}

/// A command in flight. If its task ends before it reads the reply, the outcome is unknown to its process.
struct Sent<'a> {
    wire: &'a Wire,
    command: Command,
    /// Empty after the reply was read.
    items: Vec<Item>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let environment = &self.wire.environment;
        let now = environment.now();
        for item in &self.items {
            let mut store = environment.store.lock().unwrap();
            store.answered(self.command, item, None, now);
        }
    }
}

impl Wire {
    async fn end(
        &self,
        command: Command,
        leases: &[Release],
    ) -> Vec<Result<Released, BackendError>> {
        let items = leases
            .iter()
            .map(|release| item(&release.key, Some(release.lease), Duration::ZERO));
        let outcomes = self.call(command, items.collect()).await;
        let released = |outcome| match outcome {
            Outcome::Released { .. } => Released::Released,
            Outcome::Transferred => Released::Transferred,
            Outcome::LeftToOthers => Released::LeftToOthers,
            Outcome::NotHeld => Released::NotHeld,
            other => unexpected(other),
        };
        outcomes
            .into_iter()
            .map(|outcome| outcome.map(released))
            .collect()
    }
}

fn unexpected(outcome: Outcome) -> ! {
    unreachable!("BUG: the store replied {outcome:?}")
}

impl Backend for Wire {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        let item = Item {
            mode: request.mode,
            limit: limit(request.limit),
            ..item(&request.key, Some(request.lease), request.ttl)
        };
        Ok(match self.one(Command::Acquire, item).await? {
            Outcome::Granted { counter } => Acquired::granted(counter),
            Outcome::Busy { ttl } => Acquired::busy(duration(ttl)),
            other => unexpected(other),
        })
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Contended, BackendError> {
        let AcquireRequest {
            key,
            lease,
            ttl,
            listens,
            mode,
            limit: most,
            ..
        } = request;
        if !self.environment.plan.queue {
            let request = AcquireRequest::new(key.clone(), *lease, *ttl);
            let request = request.with_mode(*mode).with_limit(*most);
            return Ok(Contended::of(self.try_acquire(&request).await?));
        }
        let item = Item {
            listens: *listens,
            mode: *mode,
            limit: limit(*most),
            ..item(key, Some(*lease), *ttl)
        };
        Ok(match self.one(Command::Contend, item).await? {
            Outcome::Granted { counter } => Contended::granted(counter),
            Outcome::Busy { ttl } => Contended::waiting(duration(ttl), None),
            Outcome::Waiting {
                ttl,
                queued,
                poll_after,
            } => Contended::polling(duration(ttl), queued, poll_after.map(duration)),
            other => unexpected(other),
        })
    }

    async fn leave(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        let command = match self.environment.plan.queue {
            true => Command::Leave,
            false => Command::Release,
        };
        self.end(command, leases).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        let items = renewals.iter().map(|renewal| Item {
            mode: renewal.mode,
            ..item(&renewal.key, Some(renewal.lease), renewal.ttl)
        });
        let outcomes = self.call(Command::Renew, items.collect()).await;
        let renewed = |outcome| match outcome {
            Outcome::Renewed => Renewed::Renewed,
            Outcome::RenewedWanted => Renewed::Wanted,
            Outcome::NotHeld => Renewed::NotHeld,
            other => unexpected(other),
        };
        outcomes
            .into_iter()
            .map(|outcome| outcome.map(renewed))
            .collect()
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.end(Command::Release, leases).await
    }

    async fn release_or_keep(
        &self,
        leases: &[KeepRequest],
    ) -> Vec<Result<ReleasedOrKept, BackendError>> {
        let queue = self.environment.plan.queue;
        let items = leases.iter().map(|request| Item {
            listens: request.listens,
            next: request.next.filter(|_| queue),
            counters: request.counters,
            ..item(&request.key, Some(request.lease), request.ttl)
        });
        let items: Vec<_> = items.collect();
        let queued: Vec<_> = items.iter().map(|item| item.next.is_some()).collect();
        let outcomes = self.call(Command::Pass, items).await;
        let decided = |outcome, queued| match outcome {
            Outcome::Kept { counter } => ReleasedOrKept::kept(counter),
            Outcome::Released { watchers } => {
                ReleasedOrKept::passed(Released::Released, watchers, queued)
            }
            Outcome::Transferred => ReleasedOrKept::passed(Released::Transferred, 0, queued),
            Outcome::Entered => {
                ReleasedOrKept::passed(Released::Transferred, 1, queued).with_listening(true)
            }
            Outcome::LeftToOthers => ReleasedOrKept::passed(Released::LeftToOthers, 0, queued),
            Outcome::NotHeld => ReleasedOrKept::NotHeld,
            other => unexpected(other),
        };
        let outcomes = outcomes.into_iter().zip(queued);
        outcomes
            .map(|(outcome, queued)| outcome.map(|outcome| decided(outcome, queued)))
            .collect()
    }

    async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        let item = item(&lease.key, Some(lease.lease), lease.ttl);
        Ok(match self.one(Command::Downgrade, item).await? {
            Outcome::Granted { counter } => Downgraded::shared(counter),
            Outcome::NotHeld => Downgraded::NotHeld,
            other => unexpected(other),
        })
    }

    fn watch(&self, key: &LockKey, _manager: Uuid) -> Hints {
        let (sender, hints) = Hints::channel();
        self.environment.watch(index(key), self.manager, sender);
        hints
    }

    fn recoveries(&self) -> Hints {
        let (sender, hints) = Hints::channel();
        (self.environment.store.lock().unwrap()).watch_recoveries(self.manager, sender);
        hints
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::EXCLUSIVE.with_shared().with_permits()
    }

    fn group(&self, key: &LockKey) -> u64 {
        if self.environment.plan.grouped {
            index(key) as u64
        } else {
            0
        }
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        let item = item(key, None, Duration::ZERO);
        Ok(match self.one(Command::Inspect, item).await? {
            Outcome::Holder(holder) => {
                holder.map(|(lease, ttl)| Holder::new(lease.to_string(), duration(ttl), 1))
            }
            other => unexpected(other),
        })
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        assert_eq!(holder, None, "the simulation names no holder");
        let item = item(key, None, Duration::ZERO);
        Ok(match self.one(Command::Force, item).await? {
            Outcome::Released { .. } | Outcome::Transferred | Outcome::LeftToOthers => {
                ForceReleased::Released
            }
            Outcome::NotHeld => ForceReleased::NotHeld,
            other => unexpected(other),
        })
    }
}
