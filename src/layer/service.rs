//! What tower calls.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::{BoxError, Service};

use super::body::LockBody;
use super::form::RequestInfo;
use super::future::ResponseFuture;
use super::keys::{KeyExtractor, Keyed};
use super::options::Options;
use super::rejection::LockRejection;
use super::request_locks::RequestLocks;
use super::scope::Watch;
use super::unlocked::Unlocked;
use crate::LockManager;

/// A service that runs the inner one under a lock; made by [`LockLayer`](crate::LockLayer).
///
/// Its error is the inner service's: what goes wrong with the lock is an answer, not an error.
pub struct LockService<S, K> {
    inner: S,
    lock: Arc<Lock<K>>,
}

/// How requests are locked. In one place: a service is cloned for each request, more than once, and
/// each count of clones is memory that all cores write.
struct Lock<K> {
    locks: LockManager,
    keys: Arc<Keyed<K>>,
    options: Arc<Options>,
}

impl<S, K> LockService<S, K> {
    pub(super) fn new(inner: S, locks: LockManager, keys: Arc<Keyed<K>>, options: Options) -> Self {
        let lock = Arc::new(Lock {
            locks,
            keys,
            options: Arc::new(options),
        });
        Self { inner, lock }
    }
}

impl<S, K, ReqBody, ResBody> Service<Request<ReqBody>> for LockService<S, K>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    K: KeyExtractor,
    ResBody: Body<Data = Bytes> + Unpin,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<LockBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, S, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let Lock {
            locks,
            keys,
            options,
        } = &*self.lock;
        let options = Arc::clone(options);
        if options.exempts(request.method()) {
            return unlocked(&mut self.inner, request, options);
        }
        let (mut parts, body) = request.into_parts();
        if options.skips(&parts) {
            let request = Request::from_parts(parts, body);
            return unlocked(&mut self.inner, request, options);
        }
        let mut asked = RequestInfo::in_parts(&parts);
        let keys = match keys.extract(&mut parts) {
            Ok(Some(keys)) => keys,
            Ok(None) => {
                let request = Request::from_parts(parts, body);
                return unlocked(&mut self.inner, request, options);
            }
            Err(error) => {
                if options.passing.pass(&error).is_some() {
                    parts.extensions.insert(Unlocked::new(error));
                    let request = Request::from_parts(parts, body);
                    return unlocked(&mut self.inner, request, options);
                }
                return ResponseFuture::invalid(LockRejection::new(error, asked, None), options);
            }
        };
        let owner = RequestLocks::owner(&parts.extensions, locks);
        let owner = owner.unwrap_or_else(|| locks.new_owner());
        let preferred = options.preferred_wait(locks, &parts.headers);
        asked.applied_wait = preferred.and_then(|preferred| preferred.applied);
        let wait = preferred.map(|preferred| preferred.wait);
        let acquire = options.acquire(locks, keys, owner, wait);
        // The request takes the service that `poll_ready` made ready along and leaves the clone:
        // a clone may not be ready, and calling it could panic or get around its limits.
        let clone = self.inner.clone();
        let service = mem::replace(&mut self.inner, clone);
        let request = Request::from_parts(parts, body);
        ResponseFuture::waiting(acquire, service, request, asked, options)
    }
}

/// Calls the inner service in a scope, without a lock of the layer's own.
pub(super) fn unlocked<S, ReqBody>(
    inner: &mut S,
    mut request: Request<ReqBody>,
    options: Arc<Options>,
) -> ResponseFuture<S::Future, S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    let request_info = RequestInfo::in_request(&request);
    let watch = Watch::open(&options);
    RequestLocks::set_scope(request.extensions_mut(), watch.scope());
    ResponseFuture::unlocked(inner.call(request), watch, request_info, options)
}

impl<S: Clone, K> Clone for LockService<S, K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            lock: Arc::clone(&self.lock),
        }
    }
}

impl<S, K> fmt::Debug for LockService<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService")
            .field("options", &self.lock.options)
            .finish_non_exhaustive()
    }
}
