//! The request body before the lock: [`LockLayer::read_body_first`](crate::LockLayer::read_body_first).
//!
//! The setting changes the body type of the inner service, so it is a type of its own: [`BodyFirst`] wraps the
//! extractor of the layer, and [`LockService`](crate::service::LockService) has a second implementation for it. Without the
//! setting, a request costs nothing more, and its body type needs no bounds.

mod future;
mod layer;
mod reader;
mod service;
mod setting;

pub use self::future::BodyFirstFuture;
pub use self::setting::BodyFirst;
