//! The layer.

use std::fmt;
use std::sync::Arc;

use super::options::Options;
use crate::LockManager;
use crate::layer::keys::{KeyExtractor, Keyed};

/// Acquires a lock before calling the inner service, and releases it when the response is complete.
///
/// Each constructor states where the key comes from. The setters change the defaults. A request whose lock is not
/// acquired is rejected without the inner service: 409 after the wait, 503 if the backend is unavailable.
/// [`guide::http`](crate::guide::http) lists all responses, and [`guide::keys`](crate::guide::keys) the sources of keys.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{convert::Infallible, time::Duration};
/// use http::{Request, Response, StatusCode};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
/// use tower_lock::{Held, LockKey, LockLayer, LockManager};
///
/// async fn update(request: Request<String>) -> Result<Response<String>, Infallible> {
///     let held = request.extensions().get::<Held>().expect("the layer put it there");
///     Ok(Response::new(format!("written with token {}", held.fencing_token())))
/// }
///
/// let locks = LockManager::in_memory();
/// let service = ServiceBuilder::new()
///     .layer(LockLayer::by_path(locks.clone()).wait(Duration::from_millis(10)))
///     .service(service_fn(update));
///
/// let request = || Request::put("/orders/42").body(String::new());
/// assert_eq!(service.clone().oneshot(request()?).await?.status(), StatusCode::OK);
///
/// let other_owner = locks.acquire(LockKey::from_parts(["/orders/42"])).await?;
/// assert_eq!(service.clone().oneshot(request()?).await?.status(), StatusCode::CONFLICT);
/// # drop(other_owner);
/// # Ok(())
/// # }
/// ```
///
/// # Defaults and limits
///
/// - GET, HEAD, OPTIONS and TRACE pass without a lock, and have no [`Held`](crate::Held), unless
///   [`all_methods`](Self::all_methods), [`shared_reads`](Self::shared_reads) or [`permits`](Self::permits) is set. They
///   keep the scope of the layer, so [`Locked`](crate::Locked) in their handlers locks.
/// - A request waits for its lock for the manager's wait, 5 s by default. [`wait`](Self::wait) and
///   [`no_wait`](Self::no_wait) change it for one layer.
/// - A request locks at most 16 keys ([`LockKeys::MAX`](crate::LockKeys::MAX)) in one layer, all or none. A request
///   with more is rejected with 400.
/// - A request holds one key at most 64 times, over all nested layers and extractors. The next acquire is rejected with
///   500.
///
/// # Where to put it
///
/// - In axum, [`MethodRouter::route_layer`] locks only for methods that have a handler. [`Router::route_layer`]
///   locks also for requests that end in 405, and `Router::layer` also for those that end in 404.
///   `any(handler).route_layer(..)` panics, because axum counts the handler of `any` as a fallback: use
///   `any(handler).layer(..)`.
/// - *Authentication and validation outside of it.* A client without permission must not block other clients. CORS
///   goes outside as well, so that a preflight does not wait under [`all_methods`](Self::all_methods).
/// - *Slow clients.* The lock is acquired when the head of the request has arrived. A client that sends its body slowly
///   holds the lock, for at most [`max_hold`](Self::max_hold). If clients are not trusted, set
///   [`read_body_first`](Self::read_body_first), or use [`Locked<Json<T>>`](crate::Locked), which locks after the body.
/// - *Large bodies.* A request that waits reads the first 64 KiB of its body, so that it does not fill the window of its
///   HTTP/2 connection. [`guide::http`](crate::guide::http#bodies-of-requests-that-wait) states the bounds, and what
///   remains beyond them.
/// - *Short waits for large requests.* Over HTTP/1.1, a server notices a disconnect only when it reads on. While more of
///   the body than that, or a further request, is unread, the request keeps its place in the queue.
/// - *Timeouts outside of it, and longer than [`wait`](Self::wait).* A busy resource is then 409 and not 408, and a
///   handler that takes too long is dropped before its lock is released. A timeout inside covers the handler only.
/// - *Concurrency limits* count requests that wait for a lock, outside of the layer and inside. A limit directly
///   inside keeps a place for each of them, and the layer is not ready while it has none. `LoadShed` and `Buffer` inside
///   decide before the wait. Waiting requests fill a `Buffer`. `LoadShed` rejects a request by the load at its arrival,
///   also if the service is idle after the wait. Put them outside.
/// - *A store of idempotent responses inside of it.* Outside, it is read before the wait. Two concurrent requests with one
///   idempotency key both miss the response, and the handler runs for each of them. Inside, the second request finds it.
/// - *Decompression of requests outside of `read_body_first`.* Behind `RequestDecompressionLayer`, the limit counts the
///   bytes that the handler reads. In front of it, the limit counts compressed bytes.
/// - *`GrpcWebLayer` of tonic-web outside of it*, so that it translates rejections. If it is inside, a gRPC-Web client
///   reads each rejection as `Internal`, "Invalid header bit".
/// - *The deadline of a gRPC call* (`grpc-timeout`, tonic's `Server::timeout`) ends with the head of the response. A
///   streaming reply holds its lock after it, for at most [`max_hold`](Self::max_hold).
///
/// # When the lock is released
///
/// The lock is released when the response is complete. A body in memory is complete at the head. A streaming body is
/// complete when it ends, fails or is dropped. If the handler panics, the client disconnects or an outer timeout
/// expires, the future of the handler is dropped first, and then the lock is released. The response does not wait for
/// the backend. An upgraded connection (101, or a successful `CONNECT`) and the response to `HEAD` are complete at the
/// head. See [`release_at_head`](Self::release_at_head) and [`max_hold`](Self::max_hold) for the bounds.
///
/// # Reentrancy
///
/// A request has one owner per manager, that of the first layer or [`Locked`](crate::Locked). Of two managers over one
/// backend, each waits for the locks of the other one, also in one request. Create one, and clone it.
/// All layers and extractors inside re-enter with it, and [`Held::owner`](crate::Held::owner) returns it. If a
/// middleware inserts an [`Owner`](crate::Owner) into the extensions, the layer uses that one. Two layers with one key are one
/// lock, held twice. Of two layers with different keys, the handler sees the inner one's
/// [`Held`](crate::Held). They acquire their locks one after the other. If other requests acquire the same two
/// in another order, both wait for each other until their waits end. One layer with both keys avoids that.
///
/// # Bounds of the service
///
/// The inner service must be `Clone`, and its body one of [`Bytes`](bytes::Bytes) and `Unpin`, as hyper's, axum's
/// and boxed ones are; wrap any other in `Box::pin`. The body of the request can have any type without borrows.
///
/// [`MethodRouter::route_layer`]: https://docs.rs/axum/latest/axum/routing/method_routing/struct.MethodRouter.html#method.route_layer
/// [`Router::route_layer`]: https://docs.rs/axum/latest/axum/struct.Router.html#method.route_layer
#[must_use = "a layer does nothing until it wraps a service"]
pub struct LockLayer<K> {
    pub(in crate::layer) locks: LockManager,
    pub(in crate::layer) keys: Arc<Keyed<K>>,
    pub(in crate::layer) options: Options,
}

impl<K: KeyExtractor> LockLayer<K> {
    /// Creates a layer that locks what an extractor reads from the request.
    ///
    /// [`KeyExtractor`] has an example. For a closure, see [`by_fn`](LockLayer::by_fn).
    pub fn new(locks: LockManager, keys: K) -> Self {
        let mut options = Options::default();
        options.passing.tally = Some(Arc::clone(locks.tally()));
        Self {
            locks,
            keys: Arc::new(Keyed::of(keys)),
            options,
        }
    }
}

impl<K> Clone for LockLayer<K> {
    fn clone(&self) -> Self {
        Self {
            locks: self.locks.clone(),
            keys: Arc::clone(&self.keys),
            options: self.options.clone(),
        }
    }
}

impl<K> fmt::Debug for LockLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
