//! The way of one request through the lock.

use std::fmt;
use std::future::Future;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{EXPECT, HeaderName, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::{BoxError, Service};

use super::ahead::{Ahead, ReadAhead};
use super::body::LockBody;
use super::config::{Options, mark_unlocked};
use super::locks::Locks;
use super::rejection::{LockRejection, RequestInfo};
use super::request_locks::RequestLocks;
use super::scope::Watch;
use crate::AcquireFuture;
use crate::observe::Permit;

pin_project! {
    /// The response future of [`LockService`](crate::service::LockService): it waits for the lock, and then for the inner
    /// service.
    ///
    /// # Cancel safety
    ///
    /// If dropped while it waits, the request leaves the queue, and nothing remains. If dropped later, the future
    /// of the inner service is dropped first, and then the lock is released.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, S, ReqBody> {
        #[pin]
        state: RequestState<F, S, ReqBody>,
        options: Arc<Options>,
        // A later version may hold a value of its own that must be pinned.
        #[pin]
        pinned: PhantomPinned,
    }
}

pin_project! {
    #[project = RequestStateProj]
    enum RequestState<F, S, ReqBody> {
        /// The request has no usable key.
        Invalid { rejection: LockRejection },
        Waiting {
            acquire: AcquireFuture,
            // Taken when the lock is acquired. The service is ready: `poll_ready` was called on it and not on a
            // clone.
            call: Option<(S, Request<ReqBody>)>,
            request_info: RequestInfo,
            read_ahead: ReadAhead<ReqBody>,
            // Opened before the grant if it has the body.
            watch: Option<Watch>,
        },
        // The order of the fields is the order of their drops. However this request ends, its handler is
        // dropped before the next request acquires the lock.
        Running {
            #[pin]
            future: F,
            // Taken when the handler has responded.
            locks: Option<Locks>,
            // Why the request runs without the lock that it should have.
            passed: Option<Permit>,
            request_info: RequestInfo,
        },
        Done,
    }
}

const TAKEN_ONCE: &str = "BUG: it is taken here only";

impl<F, S, ReqBody> ResponseFuture<F, S, ReqBody> {
    fn of(state: RequestState<F, S, ReqBody>, options: Arc<Options>) -> Self {
        let pinned = PhantomPinned;
        Self {
            state,
            options,
            pinned,
        }
    }

    /// The request needs no lock of this layer. Its scope is open.
    pub(super) fn unlocked(
        future: F,
        watch: Watch,
        request_info: RequestInfo,
        options: Arc<Options>,
    ) -> Self {
        let state = RequestState::Running {
            future,
            locks: Some(Locks::new(watch, None)),
            passed: None,
            request_info,
        };
        Self::of(state, options)
    }

    pub(super) fn invalid(rejection: LockRejection, options: Arc<Options>) -> Self {
        let state = RequestState::Invalid { rejection };
        Self::of(state, options)
    }

    pub(super) fn waiting(
        acquire: AcquireFuture,
        call: (S, Request<ReqBody>),
        request_info: RequestInfo,
        options: Arc<Options>,
        read_ahead: ReadAhead<ReqBody>,
    ) -> Self {
        let state = RequestState::Waiting {
            acquire,
            call: Some(call),
            request_info,
            read_ahead,
            watch: None,
        };
        Self::of(state, options)
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
                RequestStateProj::Invalid { rejection } => {
                    let response = this.options.reject(rejection.clone());
                    this.state.set(RequestState::Done);
                    return Poll::Ready(Ok(response));
                }
                RequestStateProj::Waiting {
                    acquire,
                    call,
                    request_info,
                    read_ahead,
                    watch,
                } => {
                    let acquired = match Pin::new(&mut *acquire).poll(cx) {
                        Poll::Ready(acquired) => acquired,
                        Poll::Pending => {
                            let (Some((_, request)), Some(budget)) = (&mut *call, acquire.budget())
                            else {
                                return Poll::Pending;
                            };
                            // A single attempt is no wait. The first poll asks a client that sent `Expect` for the body.
                            if this.options.passing.observe_only
                                || request.headers().contains_key(EXPECT)
                            {
                                return Poll::Pending;
                            }
                            let ahead = Ahead {
                                watch,
                                options: this.options,
                                budget,
                            };
                            acquire.fail(ready!(read_ahead(request, ahead, cx)))
                        }
                    };
                    let request_info = *request_info;
                    let call = call.take();
                    let watch = watch.take();
                    let passed = match &acquired {
                        Ok(_) => {
                            this.options.passing.granted();
                            None
                        }
                        Err(error) => this.options.passing.pass(error),
                    };
                    let acquired = match acquired {
                        Err(error) if passed.is_none() => {
                            let waited = acquire.waited;
                            drop(call);
                            this.state.set(RequestState::Done);
                            let rejection = LockRejection::new(error, request_info, Some(waited));
                            return Poll::Ready(Ok(this.options.reject(rejection)));
                        }
                        acquired => acquired,
                    };
                    let (mut service, mut request) = call.expect(TAKEN_ONCE);
                    let watch = watch.unwrap_or_else(|| Watch::open(this.options));
                    let extensions = request.extensions_mut();
                    let guard = match acquired {
                        Ok(guard) => {
                            RequestLocks::set_held(extensions, guard.held(), watch.scope());
                            Some(guard)
                        }
                        Err(error) => {
                            RequestLocks::set_scope(extensions, watch.scope());
                            RequestLocks::set_unlocked(extensions, error);
                            None
                        }
                    };
                    // Before the call, which may panic, so that they are dropped in their order.
                    let locks = Some(Locks::new(watch, guard));
                    let future = service.call(request);
                    this.state.set(RequestState::Running {
                        future,
                        locks,
                        passed,
                        request_info,
                    });
                }
                RequestStateProj::Running {
                    future,
                    locks,
                    passed,
                    request_info,
                } => {
                    let (passed, request_info) = (*passed, *request_info);
                    let watched = locks.as_mut().expect(TAKEN_ONCE);
                    let mut lost = watched.lost_before(cx);
                    if !lost {
                        if let Poll::Ready(result) = future.poll(cx) {
                            let locks = locks.take().expect(TAKEN_ONCE);
                            // The handler and its response go before its locks, also in a panic.
                            let result = result;
                            this.state.set(RequestState::Done);
                            let options = this.options;
                            let mut response = result
                                .map(|response| finish(locks, response, request_info, options, cx));
                            if let Ok(response) = &mut response
                                && passed == Some(Permit::OnUnavailable)
                            {
                                mark_unlocked(response.headers_mut());
                            }
                            return Poll::Ready(response);
                        }
                        lost = watched.lost_after(cx);
                    }
                    if lost {
                        let locks = locks.take().expect(TAKEN_ONCE);
                        let rejection = locks.rejection(request_info);
                        // The handler goes before its locks.
                        this.state.set(RequestState::Done);
                        drop(locks);
                        return Poll::Ready(Ok(this.options.reject(rejection)));
                    }
                    return Poll::Pending;
                }
                RequestStateProj::Done => panic!("`ResponseFuture` polled after completion"),
            }
        }
    }
}

/// The response of the handler, with the locks if they are still needed, unless it came too late.
///
/// The order of the first two parameters is that of their drops in a panic, reversed.
fn finish<B>(
    mut locks: Locks,
    response: Response<B>,
    request_info: RequestInfo,
    options: &Options,
    cx: &mut Context<'_>,
) -> Response<LockBody<B>>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let rejection = LockRejection::of_handler(&response, request_info);
    if let Some(rejection) = rejection.filter(|rejection| options.renders(rejection)) {
        let answer = if locks.are_lost() {
            options.reject(locks.rejection(request_info))
        } else {
            with_headers_of(&response, options.reject(rejection))
        };
        // The body goes before its locks.
        drop(response);
        return answer;
    }
    if locks.are_unused() {
        return response.map(LockBody::unlocked);
    }
    let ends_at_head =
        options.release_at_head || request_info.head || is_tunnel(&response, request_info);
    let (head, body) = response.into_parts();
    let mut body = if ends_at_head {
        LockBody::unlocked(body)
    } else {
        LockBody::looked_at(body, cx)
    };
    // By the clock: the handler, or the look, may have taken longer in one go than the lease.
    // Decided once: a renewal may be confirmed between two looks.
    let lost = if ends_at_head || body.has_ended() {
        locks.drop_unless_lost().err()
    } else if locks.are_lost() {
        Some(locks)
    } else {
        body.keep(locks);
        None
    };
    if let Some(locks) = lost {
        drop(body);
        return options.reject(locks.rejection(request_info));
    }
    Response::from_parts(head, body)
}

/// Adds the headers that the handler or a layer added to its rejection, such as cookies.
fn with_headers_of<B, C>(added: &Response<B>, mut response: Response<C>) -> Response<C> {
    let headers = response.headers_mut();
    let own: Vec<_> = headers.keys().cloned().collect();
    for (name, value) in added.headers() {
        if !own.contains(name) && *name != RETRY_AFTER && !is_of_body(name) {
            headers.append(name, value.clone());
        }
    }
    response
}

/// The headers that describe the body of a response, besides those of the content (RFC 9110, RFC 9530).
const OF_BODY: [&str; 7] = [
    "accept-ranges",
    "digest",
    "etag",
    "last-modified",
    "repr-digest",
    "trailer",
    "transfer-encoding",
];

/// Returns `true` for a header that describes the body of its response, which is replaced.
fn is_of_body(name: &HeaderName) -> bool {
    let name = name.as_str();
    // `content-security-policy` is about the page, and a header of its own kind.
    let is_content = name.starts_with("content-") && !name.starts_with("content-security-policy");
    is_content || OF_BODY.contains(&name)
}

/// Returns `true` if another protocol follows the head, possibly for days.
fn is_tunnel<B>(response: &Response<B>, request_info: RequestInfo) -> bool {
    let status = response.status();
    status == StatusCode::SWITCHING_PROTOCOLS || (request_info.connect && status.is_success())
}

impl<F, S, ReqBody> fmt::Debug for ResponseFuture<F, S, ReqBody> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            RequestState::Invalid { .. } => "invalid",
            RequestState::Waiting { .. } => "waiting",
            RequestState::Running { .. } => "running",
            RequestState::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
