//! What tower calls on a layer that reads the body first.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::{BoxError, Service};

use super::future::{BodyFirstFuture, Reading};
use super::reader::Reader;
use super::setting::BodyFirst;
use crate::layer::body::LockBody;
use crate::layer::future::ResponseFuture;
use crate::layer::keys::KeyExtractor;
use crate::layer::read_body::ReadBody;
use crate::layer::service::{LockService, Plan, take_ready, unlocked};

impl<S, K, ReqBody, ResBody> Service<Request<ReqBody>> for LockService<S, BodyFirst<K>>
where
    S: Service<Request<ReadBody<ReqBody>>, Response = Response<ResBody>> + Clone,
    K: KeyExtractor,
    ReqBody: Body<Data = Bytes> + Unpin,
    ReqBody::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes> + Unpin,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<LockBody<ResBody>>;
    type Error = S::Error;
    type Future = BodyFirstFuture<S::Future, S, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let lock = Arc::clone(&self.lock);
        let options = Arc::clone(&lock.options);
        let BodyFirst { keys, limits } = lock.keys.extractor();
        let (mut parts, body) = request.into_parts();
        let (acquire, request_info) = match options.plan(&lock.locks, keys, &mut parts) {
            Plan::Acquire(acquire, request_info) => (acquire, request_info),
            Plan::Run => {
                let request = Request::from_parts(parts, ReadBody::unread(body));
                let future = unlocked(&mut self.inner, request, options);
                return BodyFirstFuture::read(future);
            }
            Plan::Reject(rejection) => {
                return BodyFirstFuture::read(ResponseFuture::invalid(rejection, options));
            }
        };
        let Some(limits) = *limits else {
            let request = Request::from_parts(parts, ReadBody::unread(body));
            let call = (take_ready(&mut self.inner), request);
            return BodyFirstFuture::read(Reading::wait(acquire, request_info, call, options));
        };
        BodyFirstFuture::reading(Reading {
            reader: Reader::new(body, limits),
            parts,
            service: take_ready(&mut self.inner),
            acquire,
            request_info,
            locks: lock.locks.clone(),
            options,
        })
    }
}
