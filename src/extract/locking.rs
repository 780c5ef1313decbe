//! The acquire of `Locked`, in the scope of its request.

use std::future::{Future as _, IntoFuture as _, poll_fn};
use std::pin::Pin;
use std::task::{Poll, ready};

use http::Extensions;
use tokio::time::Instant;

use super::missing::without_scope;
use crate::layer::{LockRejection, RequestInfo, RequestLocks};
use crate::{LockGuard, LockKeys, LockManager, LockScope, Owner};

/// What `Locked` acquires with.
pub(super) struct Locking {
    locks: LockManager,
    owner: Owner,
    scope: LockScope,
    /// Has the body of the request.
    unread: Option<LockScope>,
    request_info: RequestInfo,
}

impl Locking {
    /// The owner is that of the request from now on. A request without a scope is rejected: a closure or a streaming body
    /// would release the lock before its work.
    pub(super) fn of(
        extensions: &mut Extensions,
        locks: LockManager,
        request_info: RequestInfo,
    ) -> Result<Self, LockRejection> {
        let Some(scope) = RequestLocks::scope(extensions) else {
            return Err(without_scope(extensions, request_info));
        };
        let owner = RequestLocks::owner(extensions, &locks);
        let owner = owner.unwrap_or_else(|| locks.new_owner());
        RequestLocks::set_owner(extensions, owner);
        // A `LockScope` before it in the arguments acquires with it as well.
        scope.add_owner(owner);
        Ok(Self {
            locks,
            owner,
            scope,
            unread: RequestLocks::unread(extensions),
            request_info,
        })
    }

    pub(super) async fn lock(self, keys: LockKeys) -> Result<LockGuard, LockRejection> {
        let since = Instant::now();
        let acquire = match self.scope.settings() {
            Some(settings) => settings.acquire_in_scope(&self.locks, keys),
            None => self.locks.acquire(keys),
        };
        let mut acquire = acquire.owner(self.owner).into_future();
        let acquired = poll_fn(|cx| {
            let polled = Pin::new(&mut acquire).poll(cx);
            let (Some(unread), Some(budget)) = (&self.unread, acquire.budget()) else {
                return polled;
            };
            Poll::Ready(acquire.fail(ready!(unread.poll_ahead(budget, cx))))
        })
        .await;
        let mut guard = acquired
            .map_err(|error| LockRejection::new(error, self.request_info, Some(since.elapsed())))?;
        // Until here, a guard that is dropped is released.
        self.scope.lend(&mut guard);
        Ok(guard)
    }
}
