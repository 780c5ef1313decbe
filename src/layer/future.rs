//! The way of one request through the lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower::{BoxError, Service};

use super::body::LockBody;
use super::form::RequestInfo;
use super::options::{OnLost, Options};
use super::prefer;
use super::rejection::LockRejection;
use super::unlocked::{self, Passed, Unlocked};
use crate::{AcquireFuture, Error, ErrorKind, LockGuard, Lost};

pin_project! {
    /// The future of [`LockService`](crate::LockService): waits for the lock, then for the inner
    /// service.
    ///
    /// # Cancel safety
    ///
    /// Dropping it while it waits takes the request out of the queue and leaves nothing behind;
    /// dropping it later drops the inner service's future and then gives the lock back.
    pub struct ResponseFuture<F, S, ReqBody> {
        #[pin]
        state: State<F, S, ReqBody>,
        options: Arc<Options>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, S, ReqBody> {
        /// The request needs no lock, or runs without it.
        Unlocked {
            #[pin]
            future: F,
            passed: Option<Passed>,
            applied_wait: Option<u32>,
        },
        /// The request does not say what to lock.
        Invalid { rejection: LockRejection },
        Waiting {
            acquire: AcquireFuture,
            // `None` until it had to wait: most requests need no look at the clock.
            since: Option<Instant>,
            // Taken when the lock is there; the rest is too large to be moved along. The service is
            // ready: `poll_ready` was called on it and on no clone of it.
            call: Option<(S, Request<ReqBody>)>,
            request_info: RequestInfo,
        },
        // The order of the fields is the order of their drops: whatever ends this request, its
        // handler is gone before the next one gets the lock.
        Locked {
            #[pin]
            future: F,
            // Made when the handler does not answer at once.
            #[pin]
            lost: Option<Lost>,
            // Taken when the handler has answered.
            guard: Option<LockGuard>,
            request_info: RequestInfo,
        },
        Done,
    }
}

const TAKEN_ONCE: &str = "BUG: it is taken here only";

impl<F, S, ReqBody> ResponseFuture<F, S, ReqBody> {
    pub(super) fn unlocked(future: F, options: Arc<Options>) -> Self {
        let state = State::Unlocked {
            future,
            passed: None,
            applied_wait: None,
        };
        Self { state, options }
    }

    pub(super) fn invalid(rejection: LockRejection, options: Arc<Options>) -> Self {
        let state = State::Invalid { rejection };
        Self { state, options }
    }

    pub(super) fn waiting(
        acquire: AcquireFuture,
        service: S,
        request: Request<ReqBody>,
        request_info: RequestInfo,
        options: Arc<Options>,
    ) -> Self {
        let state = State::Waiting {
            acquire,
            since: None,
            call: Some((service, request)),
            request_info,
        };
        Self { state, options }
    }
}

impl<F, S, ReqBody, ResBody> Future for ResponseFuture<F, S, ReqBody>
where
    F: Future<Output = Result<Response<ResBody>, S::Error>>,
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Future = F>,
    ResBody: Body<Data = Bytes> + Unpin,
    ResBody::Error: Into<BoxError>,
{
    type Output = Result<Response<LockBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Unlocked {
                    future,
                    passed,
                    applied_wait,
                } => {
                    let mut response = ready!(future.poll(cx));
                    if let Ok(response) = &mut response {
                        let headers = response.headers_mut();
                        prefer::confirm(headers, *applied_wait);
                        if *passed == Some(Passed::Unavailable) {
                            unlocked::mark(headers);
                        }
                    }
                    this.state.set(State::Done);
                    return Poll::Ready(response.map(|response| response.map(LockBody::unlocked)));
                }
                StateProj::Invalid { rejection } => {
                    let response = this.options.reject(rejection.clone());
                    this.state.set(State::Done);
                    return Poll::Ready(Ok(response));
                }
                StateProj::Waiting {
                    acquire,
                    since,
                    call,
                    request_info,
                } => {
                    let Poll::Ready(acquired) = Pin::new(acquire).poll(cx) else {
                        since.get_or_insert_with(Instant::now);
                        return Poll::Pending;
                    };
                    let request_info = *request_info;
                    let call = call.take();
                    let passed = match &acquired {
                        Ok(_) => {
                            this.options.passing.granted();
                            None
                        }
                        Err(error) => this.options.passing.pass(error),
                    };
                    let guard = match acquired {
                        Ok(guard) => guard,
                        Err(error) if passed.is_some() => {
                            let (mut service, mut request) = call.expect(TAKEN_ONCE);
                            request.extensions_mut().insert(Unlocked::new(error));
                            let future = service.call(request);
                            this.state.set(State::Unlocked {
                                future,
                                passed,
                                applied_wait: request_info.applied_wait,
                            });
                            continue;
                        }
                        Err(error) => {
                            let waited = since.map_or(Duration::ZERO, |since| since.elapsed());
                            drop(call);
                            this.state.set(State::Done);
                            let rejection = LockRejection::new(error, request_info, Some(waited));
                            return Poll::Ready(Ok(this.options.reject(rejection)));
                        }
                    };
                    let (mut service, mut request) = call.expect(TAKEN_ONCE);
                    let extensions = request.extensions_mut();
                    extensions.insert(guard.owner());
                    extensions.insert(guard.held());
                    let future = service.call(request);
                    this.state.set(State::Locked {
                        future,
                        lost: None,
                        guard: Some(guard),
                        request_info,
                    });
                }
                StateProj::Locked {
                    future,
                    mut lost,
                    guard,
                    request_info,
                } => {
                    let request_info = *request_info;
                    // Before the handler: it must not take another step under a lost lock.
                    if let Some(lost) = lost.as_mut().as_pin_mut()
                        && lost.poll(cx).is_ready()
                    {
                        this.state.set(State::Done);
                        return Poll::Ready(Ok(this.options.reject(lost_rejection(request_info))));
                    }
                    let Poll::Ready(result) = future.poll(cx) else {
                        if lost.is_some() || this.options.on_lost() == OnLost::Continue {
                            return Poll::Pending;
                        }
                        lost.set(guard.as_ref().map(|guard| guard.lost()));
                        if let Some(lost) = lost.as_mut().as_pin_mut()
                            && lost.poll(cx).is_ready()
                        {
                            this.state.set(State::Done);
                            return Poll::Ready(Ok(this
                                .options
                                .reject(lost_rejection(request_info))));
                        }
                        return Poll::Pending;
                    };
                    let guard = guard.take().expect(TAKEN_ONCE);
                    // The handler goes before its lock.
                    this.state.set(State::Done);
                    let response = match result {
                        Ok(response) => finish(response, guard, request_info, this.options, cx),
                        Err(error) => return Poll::Ready(Err(error)),
                    };
                    return Poll::Ready(Ok(response));
                }
                StateProj::Done => panic!("`ResponseFuture` polled after completion"),
            }
        }
    }
}

/// The answer of the handler, with the lock if it is still needed, unless it came too late.
fn finish<B>(
    response: Response<B>,
    guard: LockGuard,
    request_info: RequestInfo,
    options: &Options,
    cx: &mut Context<'_>,
) -> Response<LockBody<B>>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let ends_at_head =
        options.release_at_head || request_info.head || is_tunnel(&response, request_info);
    let (mut head, body) = response.into_parts();
    prefer::confirm(&mut head.headers, request_info.applied_wait);
    let mut body = if ends_at_head {
        LockBody::unlocked(body)
    } else {
        LockBody::looked_at(body, cx)
    };
    // By the clock: the handler, or the look, may have taken longer in one go than the lease.
    if options.on_lost() == OnLost::Abort && !guard.is_held() {
        drop(body);
        return options.reject(lost_rejection(request_info));
    }
    if !ends_at_head {
        body.keep(guard, options.on_lost());
    }
    Response::from_parts(head, body)
}

/// Whether what follows the head is another protocol, which may go on for days.
fn is_tunnel<B>(response: &Response<B>, request_info: RequestInfo) -> bool {
    let status = response.status();
    status == StatusCode::SWITCHING_PROTOCOLS || (request_info.connect && status.is_success())
}

fn lost_rejection(request_info: RequestInfo) -> LockRejection {
    LockRejection::new(Error::new(ErrorKind::Lost), request_info, None)
}

impl<F, S, ReqBody> fmt::Debug for ResponseFuture<F, S, ReqBody> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Unlocked { .. } => "unlocked",
            State::Invalid { .. } => "invalid",
            State::Waiting { .. } => "waiting",
            State::Locked { .. } => "locked",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
