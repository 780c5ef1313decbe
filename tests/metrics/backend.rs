//! Memory behind commands, some of which fail.

use std::sync::{Arc, Mutex};

use tower_lock::LockKey;
use tower_lock::Memory;
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, BackendErrorKind, Capabilities, Downgraded,
    ForceReleased, HintSender, Hints, Holder, Release, Released, Renewal, Renewed,
};
use uuid::Uuid;

/// How a command fails.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The backend replies that the lease is gone.
    NotHeld,
    Refused,
    Unknown,
}

/// A backend that does not reply at once.
#[derive(Clone, Default)]
pub(crate) struct Faulty {
    memory: Arc<Memory>,
    renewals: Arc<Mutex<Option<Fault>>>,
    releases: Arc<Mutex<Option<Fault>>>,
    /// No subscriber is notified.
    is_silent: bool,
    silenced: Arc<Mutex<Vec<HintSender>>>,
}

impl Faulty {
    pub(crate) fn silent(mut self, is_silent: bool) -> Self {
        self.is_silent = is_silent;
        self
    }

    pub(crate) fn renewals_fail_by(&self, fault: Fault) {
        *self.renewals.lock().unwrap() = Some(fault);
    }

    pub(crate) fn renewals_succeed(&self) {
        *self.renewals.lock().unwrap() = None;
    }

    pub(crate) fn releases_fail_by(&self, fault: Fault) {
        *self.releases.lock().unwrap() = Some(fault);
    }
}

impl Fault {
    fn error(self) -> BackendError {
        match self {
            Self::Unknown => BackendError::unknown("no reply"),
            _ => BackendError::refused(BackendErrorKind::Unavailable, "refused"),
        }
    }

    fn of(fault: &Mutex<Option<Self>>) -> Option<Self> {
        *fault.lock().unwrap()
    }
}

impl Backend for Faulty {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        tokio::task::yield_now().await;
        self.memory.try_acquire(request).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        match Fault::of(&self.renewals) {
            Some(Fault::NotHeld) => renewals.iter().map(|_| Ok(Renewed::NotHeld)).collect(),
            Some(fault) => renewals.iter().map(|_| Err(fault.error())).collect(),
            None => self.memory.renew(renewals).await,
        }
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        match Fault::of(&self.releases) {
            Some(fault) => leases.iter().map(|_| Err(fault.error())).collect(),
            None => self.memory.release(leases).await,
        }
    }

    /// Takes effect without a reply.
    async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        self.memory.downgrade(lease).await?;
        Err(Fault::Unknown.error())
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        match self.is_silent {
            true => {
                let (sender, hints) = Hints::channel();
                // Kept open, without a hint.
                self.silenced.lock().unwrap().push(sender);
                hints
            }
            false => self.memory.watch(key, manager),
        }
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.memory.inspect(key).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        match Fault::of(&self.releases) {
            Some(fault) => Err(fault.error()),
            None => self.memory.force_release(key, holder).await,
        }
    }
}
