//! A tower layer and an axum extractor that take a lock per request.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod connect;
mod error;
mod jitter;
mod key;
mod lock;
mod owner;
mod task;

#[cfg(feature = "redis")]
pub use backend::redis::RedisBackend;
pub use backend::{Backend, Memory};
pub use error::{ConfigError, ConnectError, Error, ErrorKind};
pub use key::{InvalidKey, LockKey, LockKeys};
pub use lock::{
    Acquire, AcquireFuture, Held, LockGuard, LockInfo, LockManager, LockManagerBuilder, Lost,
    MAX_HOLD_COUNT, Snapshot,
};
pub use owner::{FencingToken, Owner};
