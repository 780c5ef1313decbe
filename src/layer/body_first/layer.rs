//! The settings of the layer by which it reads bodies.

use std::sync::Arc;
use std::time::Duration;

use super::setting::{BodyFirst, Limits};
use crate::layer::config::{LockLayer, assert_valid};
use crate::layer::keys::{KeyExtractor, Keyed};
use crate::lock::valid_lease;

impl<K: KeyExtractor> LockLayer<K> {
    /// Reads the body of the request before the wait for the lock begins. By default, the lock is acquired when the
    /// head has arrived, so a client that sends its body slowly holds the lock.
    ///
    /// A body of more than `limit` bytes is rejected with 413, before it is read if `Content-Length` shows it. A body
    /// that is incomplete after `deadline`, counted from the head, is rejected with 408, and a body that ends with an
    /// error with 400. None of these requests acquires a lock. A request without a usable key is rejected before
    /// its body is read. A request that passes without a lock streams its body.
    ///
    /// - The inner service receives a [`ReadBody`](crate::service::ReadBody) with the bytes and the trailers. Routes, handlers
    ///   and extractors of axum accept it. For a service of one body type, put
    ///   [`MapRequestBodyLayer`](https://docs.rs/tower-http/latest/tower_http/map_request_body/) between them.
    /// - Each request holds up to twice `limit` in memory while it is read, and once while it waits.
    /// - Set it on no route with streaming bodies. A gRPC call whose client sends its messages one after another
    ///   ends at the deadline with `DEADLINE_EXCEEDED`.
    /// - The deadline excludes the time for which this machine is suspended. The client cannot send then, and no lock is
    ///   held yet.
    /// - Under [`observe_only`](Self::observe_only), a body that would be rejected runs without a lock.
    ///
    /// # Panics
    ///
    /// Panics if `deadline` is not between 10 ms and 366 days.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_lock::{LockLayer, LockManager};
    ///
    /// let layer = LockLayer::by_path(LockManager::in_memory())
    ///     .read_body_first(64 * 1024, Duration::from_secs(10))
    ///     .wait(Duration::from_secs(2));
    /// # drop(layer);
    /// ```
    #[track_caller]
    pub fn read_body_first(self, limit: usize, deadline: Duration) -> LockLayer<BodyFirst<K>> {
        assert_valid(valid_lease("read_body_first", deadline));
        let bytes = limit;
        self.reading(Some(Limits { bytes, deadline }))
    }

    /// Lets requests with a body of any type read it while they wait for the lock, within
    /// [`LockManagerBuilder::read_ahead`](crate::LockManagerBuilder::read_ahead). By default, only those with a body of
    /// axum do. It is for services of hyper and tonic, and for a layer that follows another one that changes the type
    /// of the body in one `ServiceBuilder`.
    ///
    /// The inner service receives a [`ReadBody`](crate::service::ReadBody). Nothing is read if the request does not wait.
    ///
    /// ```
    /// use tower_lock::{LockLayer, LockManager};
    ///
    /// let layer = LockLayer::by_path(LockManager::in_memory()).read_body_ahead();
    /// # drop(layer);
    /// ```
    pub fn read_body_ahead(self) -> LockLayer<BodyFirst<K>> {
        self.reading(None)
    }

    fn reading(self, limits: Option<Limits>) -> LockLayer<BodyFirst<K>> {
        let keys = self.keys;
        LockLayer {
            locks: self.locks,
            keys: Arc::new(Keyed::new(BodyFirst { keys, limits })),
            options: self.options,
        }
    }
}
