//! A backend whose commands are timed.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::{
    AcquireRequest, Acquired, Backend, BackendError, ContendRequest, Contended, Downgraded,
    ForceReleased, Hints, Holder, Immediate, KeepRequest, Modes, Release, Released, ReleasedOrKept,
    Renewal, Renewed,
};
use crate::LockKey;
use crate::observe::{Command, CommandOutcome, Tally};

/// Counts the time of each command of a backend. A batch is one command.
pub(super) struct Metered<B> {
    backend: B,
    tally: Arc<Tally>,
}

impl<B> Metered<B> {
    pub(super) fn new(backend: B, tally: Arc<Tally>) -> Self {
        tally.set_sends_commands();
        Self { backend, tally }
    }

    async fn one<T>(
        &self,
        command: Command,
        reply: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let since = Instant::now();
        let reply = reply.await;
        self.tally
            .command(command, outcome(&reply), since.elapsed());
        reply
    }

    async fn batch<T>(
        &self,
        command: Command,
        replies: impl Future<Output = Vec<Result<T, BackendError>>>,
    ) -> Vec<Result<T, BackendError>> {
        let since = Instant::now();
        let replies = replies.await;
        let outcomes = replies.iter().map(outcome);
        let worst = outcomes.max().unwrap_or(CommandOutcome::Done);
        self.tally.command(command, worst, since.elapsed());
        replies
    }
}

fn outcome<T>(reply: &Result<T, BackendError>) -> CommandOutcome {
    match reply {
        Ok(_) => CommandOutcome::Done,
        Err(error) if error.may_have_taken_effect() => CommandOutcome::Unknown,
        Err(_) => CommandOutcome::Refused,
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend> Backend for Metered<B> {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        self.one(Command::Acquire, self.backend.try_acquire(request))
            .await
    }

    async fn contend(&self, request: &ContendRequest) -> Result<Contended, BackendError> {
        self.one(Command::Contend, self.backend.contend(request))
            .await
    }

    async fn leave(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.batch(Command::Leave, self.backend.leave(leases)).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        self.batch(Command::Renew, self.backend.renew(renewals))
            .await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        self.batch(Command::Release, self.backend.release(leases))
            .await
    }

    async fn release_or_keep(&self, request: &KeepRequest) -> Result<ReleasedOrKept, BackendError> {
        self.one(
            Command::ReleaseOrKeep,
            self.backend.release_or_keep(request),
        )
        .await
    }

    async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        self.one(Command::Downgrade, self.backend.downgrade(lease))
            .await
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        self.backend.watch(key, manager)
    }

    fn recoveries(&self) -> Hints {
        self.backend.recoveries()
    }

    fn modes(&self) -> Modes {
        self.backend.modes()
    }

    fn group(&self, key: &LockKey) -> u64 {
        self.backend.group(key)
    }

    fn tokens_per_counter(&self) -> u32 {
        self.backend.tokens_per_counter()
    }

    fn response_timeout(&self) -> Duration {
        self.backend.response_timeout()
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.one(Command::Inspect, self.backend.inspect(key)).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<ForceReleased, BackendError> {
        self.one(Command::ForceRelease, self.backend.force_release(key))
            .await
    }

    async fn force_release_held_by(
        &self,
        key: &LockKey,
        holder: &str,
    ) -> Result<ForceReleased, BackendError> {
        let command = self.backend.force_release_held_by(key, holder);
        self.one(Command::ForceRelease, command).await
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        self.backend.immediate()
    }
}
