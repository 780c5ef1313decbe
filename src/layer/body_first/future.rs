//! The way of one request whose body is read before it waits for its lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::{BoxError, Service};

use super::reader::Reader;
use crate::layer::body::LockBody;
use crate::layer::config::Options;
use crate::layer::future::ResponseFuture;
use crate::layer::read_body::{BodyError, ReadBody};
use crate::layer::rejection::{LockRejection, RequestInfo};
use crate::layer::request_locks::RequestLocks;
use crate::layer::service::unlocked;
use crate::{Acquire, Error, ErrorKind, LockManager};

pin_project! {
    /// The future of a [`LockService`](crate::service::LockService) that reads the body before it acquires the lock.
    ///
    /// # Cancel safety
    ///
    /// If dropped while it reads the body, the request is in no queue yet, and nothing remains. If dropped later, the
    /// effect is that of dropping a [`ResponseFuture`].
    #[must_use = "futures do nothing unless polled"]
    pub struct BodyFirstFuture<F, S, B> {
        #[pin]
        state: BodyFirstState<F, S, B>,
    }
}

pin_project! {
    #[project = BodyFirstStateProj]
    enum BodyFirstState<F, S, B> {
        Reading {
            // Taken when the body is complete.
            reading: Option<Reading<S, B>>,
        },
        Read {
            #[pin]
            future: ResponseFuture<F, S, ReadBody<B>>,
        },
    }
}

/// A request whose body is incomplete.
pub(super) struct Reading<S, B> {
    pub(super) reader: Reader<B>,
    pub(super) parts: Parts,
    /// Ready: `poll_ready` was called on it and on no clone of it.
    pub(super) service: S,
    pub(super) acquire: Acquire,
    pub(super) request_info: RequestInfo,
    pub(super) locks: LockManager,
    pub(super) options: Arc<Options>,
}

impl<F, S, B> BodyFirstFuture<F, S, B> {
    pub(super) fn reading(reading: Reading<S, B>) -> Self {
        let reading = Some(reading);
        Self {
            state: BodyFirstState::Reading { reading },
        }
    }

    /// The body is complete, or the request needs no lock.
    pub(super) fn read(future: ResponseFuture<F, S, ReadBody<B>>) -> Self {
        Self {
            state: BodyFirstState::Read { future },
        }
    }
}

impl<S, B> Reading<S, B>
where
    S: Service<Request<ReadBody<B>>>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    /// The wait begins now.
    fn acquire(self) -> ResponseFuture<S::Future, S, ReadBody<B>> {
        let request = Request::from_parts(self.parts, self.reader.body);
        let call = (self.service, request);
        Self::wait(self.acquire, self.request_info, call, self.options)
    }

    /// The rest of the body is read during the wait.
    pub(super) fn wait(
        acquire: Acquire,
        request_info: RequestInfo,
        call: (S, Request<ReadBody<B>>),
        options: Arc<Options>,
    ) -> ResponseFuture<S::Future, S, ReadBody<B>> {
        let acquire = acquire.into_future();
        ResponseFuture::waiting(
            acquire,
            call,
            request_info,
            options,
            |request, ahead, cx| request.body_mut().poll_ahead(ahead.budget, cx),
        )
    }

    fn fail(mut self, kind: ErrorKind) -> ResponseFuture<S::Future, S, ReadBody<B>> {
        let mut error = Error::new(kind);
        self.locks.not_acquired(self.options.name(), &error);
        if self.options.passing.pass(&error).is_some() {
            RequestLocks::set_unlocked(&mut self.parts.extensions, error);
            let request = Request::from_parts(self.parts, self.reader.body);
            return unlocked(&mut self.service, request, self.options);
        }
        if let Some(cause) = self.reader.body.take_error() {
            error = error.with_source(BodyError(cause));
        }
        let rejection = LockRejection::new(error, self.request_info, None);
        ResponseFuture::invalid(rejection, self.options)
    }
}

impl<F, S, B, ResBody> Future for BodyFirstFuture<F, S, B>
where
    F: Future<Output = Result<Response<ResBody>, S::Error>>,
    S: Service<Request<ReadBody<B>>, Response = Response<ResBody>, Future = F>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes> + Unpin,
    ResBody::Error: Into<BoxError>,
{
    type Output = Result<Response<LockBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let reading = match state.as_mut().project() {
                BodyFirstStateProj::Read { future } => return future.poll(cx),
                BodyFirstStateProj::Reading { reading } => reading,
            };
            let polled = reading.as_mut().map(|reading| reading.reader.poll(cx));
            let read = ready!(polled.expect(TAKEN_ONCE));
            let reading = reading.take().expect(TAKEN_ONCE);
            let future = match read {
                Ok(()) => reading.acquire(),
                Err(kind) => reading.fail(kind),
            };
            state.set(BodyFirstState::Read { future });
        }
    }
}

const TAKEN_ONCE: &str = "BUG: the body is read once";

impl<F, S, B> fmt::Debug for BodyFirstFuture<F, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            BodyFirstState::Reading { .. } => {
                f.debug_struct("BodyFirstFuture").finish_non_exhaustive()
            }
            BodyFirstState::Read { future } => fmt::Debug::fmt(future, f),
        }
    }
}
