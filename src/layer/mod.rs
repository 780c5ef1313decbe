//! The tower middleware: one lock per request, from the key in its head to the end of its response.
//!
//! A program configures [`LockLayer`], and tower calls [`LockService`]. [`ResponseFuture`] waits for the lock, polls
//! the inner service, and polls the body once. A body that is not complete then holds the lock in its [`LockBody`].
//!
//! | room | holds |
//! |---|---|
//! | `keys` | from the head of a request to its keys |
//! | `rejection` | the response to a request without its lock, and the time that it waited |
//! | `config` | the layer, its constructors and its settings |
//! | `scope` | the locks that a handler adds, until the response is complete |
//! | the files here | the way of a request through its lock |
//! | `body_first` | the body before the lock |
//!
//! A room names only the rooms above it in this table, and `scope` also the files here. `keys` says what a new
//! source of keys is. A new rejection is an `ErrorKind` with a response in
//! `rejection/problem.rs`.

mod ahead;
mod body;
mod body_first;
mod config;
mod future;
mod keys;
mod locks;
mod read_body;
mod reject;
mod rejection;
mod request_locks;
mod scope;
mod service;
mod size_hint;

pub use body::LockBody;
pub use body_first::{BodyFirst, BodyFirstFuture};
pub use config::{LockLayer, OnLost, OnUnavailable, Unlocked};
pub use future::ResponseFuture;
pub use keys::{ByFn, ByPath, ByValue, IntoLockKeys, KeyExtractor, LockTarget};
#[cfg(feature = "axum")]
pub use keys::{FromTarget, Guarded, LockBy, Shared};
pub use read_body::ReadBody;
pub use rejection::LockRejection;
#[cfg(feature = "axum")]
pub(crate) use rejection::RequestInfo;
#[cfg(feature = "axum")]
pub(crate) use request_locks::RequestLocks;
pub use scope::{LockScope, LockScopeLayer, LockScopeService, ScopeAcquire};
pub use service::LockService;
