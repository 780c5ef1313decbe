//! A backend that is unavailable or rejects this client.

use tower_lock::backend::Backend;
use tower_lock::backend::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, ForceReleased, HintSender, Hints,
    Holder, Release, Released, Renewal, Renewed,
};
use tower_lock::{LockKey, LockManager};
use uuid::Uuid;

/// A backend that fails each command.
pub(crate) struct Broken(BackendErrorKind);

impl Broken {
    fn error(&self) -> BackendError {
        BackendError::refused(self.0, "broken on purpose")
    }
}

impl Backend for Broken {
    async fn try_acquire(&self, _: &AcquireRequest) -> Result<Acquired, BackendError> {
        Err(self.error())
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        renewals.iter().map(|_| Err(self.error())).collect()
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        leases.iter().map(|_| Err(self.error())).collect()
    }

    fn watch(&self, _: &LockKey, _: Uuid) -> Hints {
        let (_, hints): (HintSender, Hints) = Hints::channel();
        hints
    }

    async fn inspect(&self, _: &LockKey) -> Result<Option<Holder>, BackendError> {
        Err(self.error())
    }

    async fn force_release(
        &self,
        _: &LockKey,
        _: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        Err(self.error())
    }
}

/// Creates a manager on a backend that fails each command in this way.
pub(crate) fn broken(kind: BackendErrorKind) -> LockManager {
    LockManager::builder(Broken(kind)).build().unwrap()
}
