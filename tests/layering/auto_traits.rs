//! The auto traits of every public type: `Send`, `Sync` and, unless stated otherwise, `Unpin`. A change of a
//! private field could break one of them unnoticed.

use crate::exports;
use static_assertions::{assert_impl_all, assert_not_impl_any};
use tower_lock::backend::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, Capabilities, Contended, Downgraded,
    Fence, ForceReleased, Hint, HintSender, Hints, Holder, KeepRequest, LeaseId, Mode,
    QuorumBuilder, Release, Released, ReleasedOrKept, Renewal, Renewed,
};
use tower_lock::keys::{BodyFirst, ByFn, ByPath, ByValue, InvalidKey};
use tower_lock::manager::{
    Acquire, AcquireFuture, ConfigError, LockInfo, LostReason, ScopeAcquire, Snapshot, Via,
};
use tower_lock::service::{
    BodyFirstFuture, LockBody, LockScopeService, LockService, ReadBody, ResponseFuture, Unlocked,
};
use tower_lock::{
    ConnectError, Error, ErrorKind, FencingToken, Held, LockGuard, LockKey, LockKeys, LockLayer,
    LockManager, LockManagerBuilder, LockRejection, LockScope, LockScopeLayer, Memory, OnLost,
    OnUnavailable, Owner, Quorum,
};

/// A type that is neither `Send` nor `Sync`, for parameters that must not matter.
type Local = std::rc::Rc<std::cell::Cell<u8>>;
type Response = std::future::Ready<Result<http::Response<String>, std::convert::Infallible>>;

macro_rules! assert_shared {
    ($($type:ty),+ $(,)?) => {$(
        assert_impl_all!($type: Send, Sync, Unpin, std::fmt::Debug);
        const _: fn() = || {
            fn is_static<T: 'static>() {}
            is_static::<$type>();
        };
    )+};
}

macro_rules! assert_error {
    ($($type:ty),+ $(,)?) => {$(
        assert_impl_all!($type: Send, Sync, Unpin, std::error::Error);
    )+};
}

// Keys, owners and tokens.
assert_shared!(LockKey, LockKeys, Mode, Capabilities, Owner, FencingToken);
assert_impl_all!(Mode: Copy, Eq, std::hash::Hash, Default);
assert_impl_all!(LockKey: Clone, Eq, std::hash::Hash, Ord);
assert_impl_all!(Owner: Copy, Eq, std::hash::Hash);
assert_impl_all!(FencingToken: Copy, Ord, std::fmt::Display);

// The engine.
assert_shared!(LockManager, LockManagerBuilder, Acquire, LockInfo, Snapshot);
assert_shared!(LockGuard, Held);
assert_impl_all!(LockManager: Clone);
assert_impl_all!(Held: Clone);
// A guard is one hold, so a copy would release twice.
assert_not_impl_any!(LockGuard: Clone);
assert_impl_all!(AcquireFuture: Send, Unpin, std::fmt::Debug);

// Reports.
assert_shared!(LostReason, Via);
assert_impl_all!(LostReason: Copy, Eq, std::hash::Hash, std::fmt::Display);
assert_impl_all!(Via: Copy, Ord, std::hash::Hash, std::fmt::Display);
#[cfg(feature = "tracing")]
assert_shared!(tower_lock::manager::TraceKeys);

// Errors.
assert_shared!(ErrorKind);
assert_error!(Error, ConfigError, ConnectError, InvalidKey, BackendError);
assert_impl_all!(Error: Clone);

// Backends.
assert_shared!(Memory, Hint, Hints, HintSender, LeaseId, Holder);
assert_shared!(AcquireRequest, KeepRequest, Release, Renewal);
assert_shared!(
    Acquired,
    Contended,
    Renewed,
    Released,
    ReleasedOrKept,
    Downgraded,
    ForceReleased,
    BackendErrorKind
);
assert_impl_all!(Memory: Clone);
assert_shared!(Quorum, QuorumBuilder, Fence);
assert_impl_all!(Quorum: Clone);

// The scope.
assert_shared!(LockScope, LockScopeLayer, LockScopeService<()>);
assert_shared!(ScopeAcquire);
assert_impl_all!(<ScopeAcquire as IntoFuture>::IntoFuture: Send, Unpin);
assert_impl_all!(LockScope: Clone);
assert_impl_all!(LockScopeLayer: Clone, Default);
assert_impl_all!(LockScopeService<()>: Clone);

// The layer.
assert_shared!(ByFn<fn()>, ByPath, ByValue, OnLost, LockRejection);
assert_shared!(OnUnavailable, Unlocked);
assert_shared!(LockLayer<ByPath>, LockService<(), ByPath>);
assert_shared!(
    BodyFirst<ByPath>,
    LockLayer<BodyFirst<ByPath>>,
    ReadBody<String>
);
// Only one task reads a body. `on_reject` may return one that is not `Sync`, such as axum's.
assert_impl_all!(LockBody<String>: Send, Unpin, std::fmt::Debug);
assert_error!(LockRejection);
assert_impl_all!(LockLayer<ByValue>: Clone);
assert_impl_all!(LockService<(), ByValue>: Clone);
assert_impl_all!(LockRejection: Clone);
// It holds the handler's future, which may hold any value.
assert_impl_all!(ResponseFuture<Response, (), String>: Send, std::fmt::Debug);
assert_not_impl_any!(ResponseFuture<Response, (), String>: Unpin);
assert_impl_all!(BodyFirstFuture<Response, (), String>: Send, std::fmt::Debug);
assert_not_impl_any!(BodyFirstFuture<Response, (), String>: Unpin);

#[cfg(feature = "axum")]
mod axum {
    use super::*;
    use tower_lock::keys::{FromTarget, Shared};
    use tower_lock::rejection::{LockedRejection, MissingLayer};
    use tower_lock::{LockBy, Locked, LockedShared};

    /// `Locked` has no value of it.
    #[expect(dead_code, reason = "a type for a bound")]
    struct NotShared(Local);

    impl LockBy<String> for NotShared {
        fn lock_keys(_: &String) -> LockKeys {
            LockKeys::new()
        }
    }

    assert_shared!(FromTarget, Locked<LockKey>, Locked<String, NotShared>, LockedShared<LockKey>, Shared<FromTarget>, LockedRejection<String>);
    assert_error!(MissingLayer, LockedRejection<Error>);
    assert_not_impl_any!(Locked<LockKey>: Clone);
}

#[cfg(feature = "dashboard")]
mod dashboard {
    use super::*;
    use tower_lock::dashboard::{Dashboard, ForceRelease, Operator, Veto};

    assert_impl_all!(Dashboard: Send, Sync, Unpin, std::fmt::Debug);
    assert_shared!(ForceRelease, Operator, Veto);
    assert_impl_all!(Operator: Clone, Eq);
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use tower_lock::PostgresBackend;
    use tower_lock::backend::postgres::PostgresBackendBuilder;

    assert_shared!(PostgresBackend, PostgresBackendBuilder);
    assert_impl_all!(PostgresBackend: Clone);
}

#[cfg(feature = "redis")]
mod redis {
    use super::*;
    use tower_lock::RedisBackend;
    use tower_lock::backend::redis::{Credentials, Publish, RedisBackendBuilder};

    assert_shared!(RedisBackend, RedisBackendBuilder, Publish, Credentials);
    assert_impl_all!(RedisBackend: Clone);
}

/// The futures of async functions have no names, so this function asserts that they can move between threads.
#[test]
fn every_future_is_send() {
    fn is_send(future: impl Future + Send) {
        drop(future);
    }
    let locks = LockManager::in_memory();
    is_send(LockManager::connect("memory://"));
    is_send(locks.is_locked("k"));
    is_send(locks.inspect("k"));
    is_send(locks.force_release("k"));
    is_send(locks.force_release_held_by("k", "owner"));
    is_send(locks.shutdown(std::time::Duration::ZERO));
    is_send(locks.acquire("k").into_future());
    is_send(
        locks
            .acquire("k")
            .run(|held| async move { held.lost().await }),
    );
    let _never = |guard: LockGuard| is_send(guard.release());
}

/// This test fails if a public type is missing in this file.
#[test]
fn every_public_type_has_assertion() {
    let here: Vec<_> = exports::words(include_str!("auto_traits.rs")).collect();
    for name in exports::types() {
        assert!(here.contains(&name), "{name} has no assertion");
    }
}
