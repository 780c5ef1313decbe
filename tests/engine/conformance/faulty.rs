//! The suite rejects a store that breaks a promise.

mod downgrades;
mod permits;
mod shared;

use std::num::NonZeroU16;
use std::time::Duration;

use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, Capabilities, Contended, Downgraded,
    ForceReleased, Hints, Holder, KeepRequest, Mode, Release, Released, ReleasedOrKept, Renewal,
    Renewed, conformance,
};
use tower_lock::{LockKey, Memory};
use uuid::Uuid;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A counter stands for no token.
    NoTokens,
    /// A lease that is kept has the requested TTL, also if it had a longer one.
    KeepCuts,
    /// A lease that is kept has one counter, whatever was requested.
    KeepsOneCounter,
    /// The outcomes of `release_or_keep` are in the wrong order.
    KeepReversed,
    /// A transferred key can be acquired under any lease.
    TransferOpen,
    /// A transferred lease lasts three times as long as another waiter may have to wait for it.
    TransferLasts,
    /// A waiter that polls is passed over while another one listens.
    PollersLast,
    /// An expired key is granted to the lease that contends first.
    Overtaking,
    /// The outcomes of `leave` are in the wrong order.
    LeaveReversed,
    /// A forced release of one holder ends the lease of another one.
    ForceEndsOthers,
    /// One permit above the limit is granted.
    PermitTooMany,
    /// All permits have the limit 2.
    PermitsOfOneLimit,
    /// An exclusive lease is granted beside permits.
    PermitsNoObstacle,
    /// Each lease ends, but its renewal does not report that.
    Revived,
    /// The remaining TTL of several leases is that of the first to expire.
    FirstExpiry,
    /// A forced release of one holder frees the key.
    ForceEndsAll,
    /// All permits have one counter.
    PermitsOfOneCounter,
    /// A permit that fits overtakes those that wait.
    PermitsOvertake,
    /// An exclusive lease is granted beside shared ones.
    SharedNoObstacle,
    /// All shared leases have one counter.
    SharedOfOneCounter,
    /// A shared lease overtakes an exclusive one that waits.
    SharedOvertakes,
    /// A downgraded lease stays exclusive.
    DowngradeIgnored,
    /// A downgraded lease is released, and then acquired shared if no exclusive one waits.
    DowngradeInSteps,
    /// A downgrade does not extend its lease.
    DowngradeKeepsTtl,
    /// All downgraded leases have one counter.
    DowngradesOfOneCounter,
    /// A downgrade without the lease acquires it shared.
    DowngradeCreates,
}

use Fault::*;

/// A store with one fault.
#[derive(Clone)]
struct Faulty {
    memory: Memory,
    fault: Fault,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        let memory = Memory::new();
        Self { memory, fault }
    }

    /// Runs a function of the suite, which must detect the fault.
    async fn runs(self, function: &str) {
        conformance::run(function, &self, &self.clone()).await;
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Returns the limit of a permit in the store.
    fn limit(&self, limit: Option<NonZeroU16>) -> Option<NonZeroU16> {
        match self.fault {
            PermitTooMany => limit.and_then(|limit| limit.checked_add(1)),
            PermitsOfOneLimit => limit.and(NonZeroU16::new(2)),
            _ => limit,
        }
    }

    /// Returns the outcome that the fault makes of a rejection.
    async fn rejected(&self, request: &AcquireRequest, ttl: Duration) -> Acquired {
        let holder = self.memory.inspect(&request.key).await.unwrap();
        let is_shared = holder.as_ref().is_some_and(|it| it.mode == Mode::Shared);
        let permits = holder.filter(|holder| holder.mode == Mode::Permit);
        let permits = permits.map(|holder| holder.leases);
        match (request.mode, permits) {
            (Mode::Exclusive, Some(_)) if self.has(PermitsNoObstacle) => Acquired::granted(1),
            (Mode::Exclusive, _) if is_shared && self.has(SharedNoObstacle) => Acquired::granted(1),
            (Mode::Shared, _) if is_shared && self.has(SharedOvertakes) => Acquired::granted(1),
            (Mode::Exclusive, Some(_)) if self.has(FirstExpiry) => Acquired::busy(ttl / 100),
            (Mode::Permit, Some(held)) if self.has(PermitsOvertake) => match request.limit {
                Some(limit) if held < limit.get().into() => Acquired::granted(1),
                _ => Acquired::busy(ttl),
            },
            _ => Acquired::busy(ttl),
        }
    }

    async fn share(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        let request = AcquireRequest::new(lease.key.clone(), lease.lease, lease.ttl);
        let request = request.with_mode(Mode::Shared);
        Ok(match Backend::try_acquire(&self.memory, &request).await? {
            Acquired::Granted { counter, .. } => Downgraded::shared(counter),
            _ => Downgraded::shared(1),
        })
    }

    /// Sets the TTL of a lease that was kept.
    async fn cut(&self, keep: &KeepRequest) {
        if self.has(KeepCuts) {
            let request = AcquireRequest::new(keep.key.clone(), keep.lease, keep.ttl);
            Backend::try_acquire(&self.memory, &request).await.unwrap();
        }
    }
}

impl Backend for Faulty {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        let limited = request.clone().with_limit(self.limit(request.limit));
        match Backend::try_acquire(&self.memory, &limited).await? {
            // A transferred lease is short until it is confirmed.
            Acquired::Busy { ttl, .. } if self.has(TransferOpen) && ttl.as_secs() < 2 => {
                Ok(Acquired::granted(1))
            }
            Acquired::Busy { ttl, .. } => Ok(self.rejected(request, ttl).await),
            Acquired::Granted { .. }
                if self.has(PermitsOfOneCounter) && request.mode == Mode::Permit
                    || self.has(SharedOfOneCounter) && request.mode == Mode::Shared =>
            {
                Ok(Acquired::granted(1))
            }
            acquired => Ok(acquired),
        }
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Contended, BackendError> {
        let AcquireRequest {
            key,
            lease,
            ttl,
            mode,
            limit,
            ..
        } = request;
        if self.has(Overtaking) && self.memory.inspect(key).await?.is_none() {
            let request = AcquireRequest::new(key.clone(), *lease, *ttl);
            return Ok(Contended::of(
                Backend::try_acquire(&self.memory, &request).await?,
            ));
        }
        let listens = request.listens || self.has(PollersLast);
        let request = AcquireRequest::new(key.clone(), *lease, *ttl)
            .with_listening(listens)
            .with_mode(*mode)
            .with_limit(*limit);
        match self.memory.contend(&request).await? {
            Contended::Waiting {
                ttl,
                queued: Some(queued),
                ..
            } if self.has(TransferLasts) && ttl.as_secs() < 2 => {
                Ok(Contended::waiting(ttl * 3, queued))
            }
            contended => Ok(contended),
        }
    }

    async fn leave(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        let mut outcomes = self.memory.leave(leases).await;
        if self.has(LeaveReversed) {
            outcomes.reverse();
        }
        outcomes
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        let mut outcomes = self.memory.renew(renewals).await;
        if self.has(Revived) {
            outcomes.fill_with(|| Ok(Renewed::Renewed));
        }
        outcomes
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        Backend::release(&self.memory, leases).await
    }

    async fn release_or_keep(
        &self,
        leases: &[KeepRequest],
    ) -> Vec<Result<ReleasedOrKept, BackendError>> {
        let mut leases = leases.to_vec();
        if self.has(KeepsOneCounter) {
            leases.iter_mut().for_each(|it| it.counters = 1);
        }
        let mut outcomes = self.memory.release_or_keep(&leases).await;
        if self.has(KeepReversed) {
            outcomes.reverse();
        }
        for (lease, outcome) in leases.iter().zip(&outcomes) {
            if let Ok(ReleasedOrKept::Kept { .. }) = outcome {
                self.cut(lease).await;
            }
        }
        outcomes
    }

    async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        let mut lease = lease.clone();
        match self.fault {
            DowngradeIgnored => return Ok(Downgraded::shared(1)),
            DowngradeInSteps => {
                let release = Release::new(lease.key.clone(), lease.lease);
                Backend::release(&self.memory, &[release]).await;
                return self.share(&lease).await;
            }
            DowngradeKeepsTtl => lease.ttl = Duration::ZERO,
            _ => {}
        }
        match self.memory.downgrade(&lease).await? {
            Downgraded::Shared { .. } if self.has(DowngradesOfOneCounter) => {
                Ok(Downgraded::shared(1))
            }
            Downgraded::NotHeld if self.has(DowngradeCreates) => self.share(&lease).await,
            outcome => Ok(outcome),
        }
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        self.memory.watch(key, manager)
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.memory.inspect(key).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        let holder = holder.filter(|_| !self.has(ForceEndsOthers));
        match self.memory.force_release(key, holder).await? {
            ForceReleased::Released if self.has(ForceEndsAll) => {
                self.memory.force_release(key, None).await?;
                Ok(ForceReleased::Released)
            }
            outcome => Ok(outcome),
        }
    }

    fn capabilities(&self) -> Capabilities {
        match self.fault {
            NoTokens => self.memory.capabilities().with_tokens_per_counter(0),
            _ => self.memory.capabilities(),
        }
    }
}

#[tokio::test]
#[should_panic(expected = "0 tokens per counter")]
async fn counter_without_tokens_is_detected() {
    Faulty::new(NoTokens)
        .runs("tokens_per_counter_are_from_1_to_256")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "cut the lease to 60s")]
async fn keep_with_shorter_lease_is_detected() {
    Faulty::new(KeepCuts)
        .runs("kept_lease_is_not_shortened")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "which belongs to the lease kept under")]
async fn keep_with_fewer_counters_is_detected() {
    Faulty::new(KeepsOneCounter)
        .runs("release_or_keep_without_watch_keeps_or_frees")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "only the second lease holds its key")]
async fn kept_leases_out_of_order_are_detected() {
    Faulty::new(KeepReversed)
        .runs("release_or_keep_returns_one_result_per_lease")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "only the holder that is named is released")]
async fn forced_release_of_others_is_detected() {
    Faulty::new(ForceEndsOthers)
        .runs("forced_release_spares_other_holder")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is held and was granted")]
async fn transfer_open_to_all_is_detected() {
    Faulty::new(TransferOpen)
        .runs("transferred_key_is_reserved_for_its_waiter")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the transferred lease lasts for 4.5s")]
async fn long_transfer_is_detected() {
    Faulty::new(TransferLasts)
        .runs("unconfirmed_transfer_expires")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is held and was granted")]
async fn passed_over_poller_is_detected() {
    Faulty::new(PollersLast)
        .runs("polling_waiter_is_served_in_order")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is held and was granted")]
async fn overtaking_after_expiry_is_detected() {
    Faulty::new(Overtaking)
        .runs("expiry_serves_first_waiter")
        .await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a process waits")]
async fn outcomes_of_leave_out_of_order_are_detected() {
    Faulty::new(LeaveReversed)
        .runs("leave_returns_one_result_per_lease")
        .await;
}
