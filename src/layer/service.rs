//! The service of the layer.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tower::{BoxError, Layer, Service};

use super::ahead::read_ahead;
use super::body::LockBody;
use super::config::{LockLayer, Options};
use super::future::ResponseFuture;
use super::keys::{KeyExtractor, Keyed};
use super::rejection::{LockRejection, RequestInfo};
use super::request_locks::RequestLocks;
use super::scope::Watch;
use crate::{Acquire, LockManager};

/// A service that calls the inner service under a lock. [`LockLayer`](crate::LockLayer) creates it.
///
/// Its error is that of the inner service. A lock that is not acquired or lost is a response, not an error.
pub struct LockService<S, K> {
    pub(super) inner: S,
    pub(super) lock: Arc<Lock<K>>,
}

/// The settings of a service, behind one `Arc`: a service is cloned several times per request, and all cores write
/// each count of clones.
pub(super) struct Lock<K> {
    pub(super) locks: LockManager,
    pub(super) keys: Arc<Keyed<K>>,
    pub(super) options: Arc<Options>,
}

impl<S, K> Layer<S> for LockLayer<K> {
    type Service = LockService<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        let lock = Arc::new(Lock {
            locks: self.locks.clone(),
            keys: Arc::clone(&self.keys),
            options: Arc::new(self.options.clone()),
        });
        LockService { inner, lock }
    }
}

impl<S, K, ReqBody, ResBody> Service<Request<ReqBody>> for LockService<S, K>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    K: KeyExtractor,
    ReqBody: 'static,
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
        let (mut parts, body) = request.into_parts();
        let plan = options.plan(locks, keys, &mut parts);
        match plan {
            Plan::Run => {
                let request = Request::from_parts(parts, body);
                unlocked(&mut self.inner, request, options)
            }
            Plan::Reject(rejection) => ResponseFuture::invalid(rejection, options),
            Plan::Acquire(acquire, request_info) => {
                let service = take_ready(&mut self.inner);
                let call = (service, Request::from_parts(parts, body));
                let acquire = acquire.into_future();
                ResponseFuture::waiting(acquire, call, request_info, options, read_ahead)
            }
        }
    }
}

/// What happens to a request.
pub(super) enum Plan {
    /// It runs without a lock of the layer.
    Run,
    Reject(LockRejection),
    /// The wait begins when the acquire becomes a future.
    Acquire(Acquire, RequestInfo),
}

impl Options {
    /// Decides by the head of a request, before its body is read.
    pub(super) fn plan<K: KeyExtractor>(
        &self,
        locks: &LockManager,
        keys: &Keyed<K>,
        request: &mut Parts,
    ) -> Plan {
        if self.exempts(request) || self.skips(request) {
            return Plan::Run;
        }
        let request_info = RequestInfo::new(&request.method, &request.headers);
        let extracted = keys.extract(request);
        if let Err(error) = &extracted {
            locks.not_acquired(self.name(), error);
        }
        let keys = match extracted {
            Ok(Some(locked)) => {
                keys.check_kind(locks, &request.extensions);
                locked
            }
            Ok(None) => return Plan::Run,
            Err(error) if self.passing.pass(&error).is_some() => {
                RequestLocks::set_unlocked(&mut request.extensions, error);
                return Plan::Run;
            }
            Err(error) => return Plan::Reject(LockRejection::new(error, request_info, None)),
        };
        let mut acquire = self.acquire(locks, keys).may_be_dropped();
        if let Some(owner) = RequestLocks::owner(&request.extensions, locks) {
            acquire = acquire.owner(owner);
        }
        let acquire = match self.limit(request) {
            Some(limit) => acquire.permits(limit),
            None if self.shares(request) => acquire.shared(),
            None => acquire,
        };
        Plan::Acquire(acquire, request_info)
    }
}

/// Returns the service that `poll_ready` made ready, and leaves its clone: a clone may not be ready, and calling
/// it could panic or get around its limits.
pub(super) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
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
    let request_info = RequestInfo::new(request.method(), request.headers());
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
