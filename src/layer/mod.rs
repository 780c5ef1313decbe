//! The tower middleware: one lock per request, from the key in its head to the end of its answer.
//!
//! [`LockLayer`] is what a program configures, [`LockService`] what tower calls, [`ResponseFuture`]
//! the way of one request: wait for the lock, run the inner service, look at the body once. A body
//! that is still to come takes the lock along in its [`LockBody`].
//!
//! A new place that keys come from is a [`KeyExtractor`] in `keys/` and a constructor of `LockLayer`. A
//! new answer begins as an `ErrorKind`: `rejection.rs` says what each means to a client.

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
mod reject;
mod rejection;
mod request_locks;
mod scope;
mod scope_layer;
mod scope_service;
mod service;
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
pub use keys::{ByPathParam, ByPathParamAs, ByPathParams, FromTarget, Guarded, LockBy};
pub use layer::LockLayer;
pub use options::OnLost;
pub use rejection::LockRejection;
#[cfg(feature = "axum")]
pub(crate) use request_locks::RequestLocks;
pub use scope::LockScope;
pub use scope_layer::LockScopeLayer;
pub use scope_service::LockScopeService;
pub use service::LockService;
pub use unlocked::{OnUnavailable, Unlocked};
