//! A tower layer and an axum extractor that take a lock per request.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod error;
mod key;
mod owner;
mod task;

pub use backend::{Backend, Memory};
pub use error::{ConfigError, ConnectError, Error, ErrorKind};
pub use key::{InvalidKey, LockKey, LockKeys};
pub use owner::{FencingToken, Owner};
