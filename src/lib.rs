//! A tower layer and an axum extractor that take a lock per request.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod connect;
mod error;
#[cfg(feature = "axum")]
mod extract;
mod jitter;
mod key;
mod layer;
mod lock;
mod owner;
mod task;

#[cfg(feature = "redis")]
pub use backend::redis::RedisBackend;
pub use backend::{Backend, Memory};
pub use error::{ConfigError, ConnectError, Error, ErrorKind};
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use extract::{HeldRejection, Locked, LockedRejection, OwnerRejection};
pub use key::{InvalidKey, LockKey, LockKeys};
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use layer::ByPathParam;
pub use layer::{
    ByExtension, ByHeader, ByPath, ByQuery, KeyExtractor, LockBody, LockLayer, LockRejection,
    LockService, LockTarget, OnLost, ResponseFuture,
};
pub use lock::{
    Acquire, AcquireFuture, Held, LockGuard, LockInfo, LockManager, LockManagerBuilder, Lost,
    MAX_HOLD_COUNT, Snapshot,
};
pub use owner::{FencingToken, Owner};
