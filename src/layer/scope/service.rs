//! The service of a scope, which tower calls.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::{BoxError, Service};

use super::watch::Watch;
#[cfg(feature = "axum")]
use crate::layer::ahead::take_body;
use crate::layer::body::LockBody;
use crate::layer::config::Options;
use crate::layer::future::ResponseFuture;
use crate::layer::rejection::RequestInfo;
use crate::layer::request_locks::RequestLocks;

/// A service that runs the inner one in a scope for locks; created by
/// [`LockScopeLayer`](crate::LockScopeLayer).
///
/// Its error is the inner service's.
#[derive(Clone)]
pub struct LockScopeService<S> {
    inner: S,
    settings: Arc<Options>,
}

impl<S> LockScopeService<S> {
    pub(in crate::layer) fn new(inner: S, settings: Arc<Options>) -> Self {
        Self { inner, settings }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for LockScopeService<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
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

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let request_info = RequestInfo::new(request.method(), request.headers());
        let watch = Watch::open(&self.settings);
        #[cfg(feature = "axum")]
        take_body(&mut request, &watch);
        RequestLocks::set_scope(request.extensions_mut(), watch.scope());
        let settings = Arc::clone(&self.settings);
        ResponseFuture::unlocked(self.inner.call(request), watch, request_info, settings)
    }
}

impl<S> fmt::Debug for LockScopeService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockScopeService")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
