//! The tower middleware: one lock per request, from the key in its head to the end of its response.
//!
//! A program configures [`LockLayer`], and tower calls [`LockService`]. [`ResponseFuture`] waits for the lock, polls
//! the inner service, and polls the body once. A body that is not complete then holds the lock in its [`LockBody`].
//!
//! A new source of keys is a [`KeyExtractor`] in `keys/` and a constructor of `LockLayer`. A new rejection is an
//! `ErrorKind` with a response in `problem.rs`.

mod ahead;
mod body;
mod body_first;
mod constructors;
mod form;
mod future;
mod hold;
mod keys;
#[expect(clippy::module_inception, reason = "tower's name for this file")]
mod layer;
mod options;
mod prefer;
mod problem;
mod reject;
mod rejection;
mod request_locks;
mod scope;
mod scope_layer;
mod scope_service;
mod service;
mod settings;
mod size_hint;
mod timing;
mod unlocked;

pub use body::LockBody;
pub use body_first::{BodyFirst, BodyFirstFuture, ReadBody};
#[cfg(feature = "axum")]
pub(crate) use form::RequestInfo;
pub use future::ResponseFuture;
pub use keys::{
    ByExtension, ByFn, ByHeader, ByPath, ByQuery, IntoLockKeys, KeyExtractor, LockTarget,
};
#[cfg(feature = "axum")]
pub use keys::{ByPathParam, ByPathParamAs, ByPathParams, FromTarget, Guarded, LockBy, Shared};
pub use layer::LockLayer;
pub use options::OnLost;
pub use rejection::LockRejection;
#[cfg(feature = "axum")]
pub(crate) use request_locks::RequestLocks;
pub use scope::LockScope;
pub use scope_layer::LockScopeLayer;
pub use scope_service::LockScopeService;
pub use service::LockService;
pub use timing::LockTiming;
pub use unlocked::{OnUnavailable, Unlocked};
