//! The body of a response, which holds the lock until it is complete.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tower::BoxError;

use super::config::BoxedBody;
use super::locks::Locks;
use super::size_hint;
use crate::{Error, ErrorKind};

/// The body of a response from [`LockService`](crate::service::LockService) or [`LockScopeService`](crate::service::LockScopeService).
///
/// It holds the lock until it ends, fails or is dropped. Under [`OnLost::Abort`](crate::OnLost::Abort), a body whose lock
/// is lost ends with an [`Error`] of kind [`Lost`](ErrorKind::Lost).
pub struct LockBody<B> {
    kind: Kind<B>,
}

enum Kind<B> {
    Inner(Inner<B>),
    /// A rejection from `on_reject`.
    Boxed(BoxedBody),
}

/// The inner service's body, or a text.
///
/// The order of the fields is the order of their drops: the body's own work ends before its lock.
struct Inner<B> {
    /// `None` once it has ended, failed or lost its lock.
    body: Option<B>,
    /// The frame that the first poll returned.
    first: Option<Result<Frame<Bytes>, BoxError>>,
    /// Boxed because only a body that streams has them.
    locks: Option<Box<Locks>>,
}

impl<B> LockBody<B> {
    /// A body that needs no lock, or none any more.
    pub(super) fn unlocked(body: B) -> Self {
        Self {
            kind: Kind::Inner(Inner::new(body)),
        }
    }

    /// A rejection.
    pub(super) fn text(text: String) -> Self {
        let first = (!text.is_empty()).then(|| Ok(Frame::data(text.into())));
        let (body, locks) = (None, None);
        Self {
            kind: Kind::Inner(Inner { body, first, locks }),
        }
    }

    pub(super) fn boxed(body: BoxedBody) -> Self {
        Self {
            kind: Kind::Boxed(body),
        }
    }
}

impl<B> LockBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    /// Creates the body after one poll, which shows whether it is in memory.
    pub(super) fn looked_at(body: B, cx: &mut Context<'_>) -> Self {
        let mut inner = Inner::new(body);
        // The waker of a pending look is the server's task, which polls the body next anyway.
        match inner.poll_body(cx) {
            Poll::Ready(Some(first)) => inner.first = Some(first),
            Poll::Ready(None) | Poll::Pending => {}
        }
        Self {
            kind: Kind::Inner(inner),
        }
    }

    /// Keeps the locks until the end of the body.
    pub(super) fn keep(&mut self, mut locks: Locks) {
        if let Kind::Inner(inner) = &mut self.kind {
            locks.look_first();
            inner.locks = Some(Box::new(locks));
        }
    }

    /// Returns `true` if no more of the body follows than a frame that is here.
    pub(super) fn has_ended(&self) -> bool {
        matches!(&self.kind, Kind::Inner(inner) if inner.has_ended())
    }
}

impl<B> Inner<B> {
    fn new(body: B) -> Self {
        Self {
            body: Some(body),
            first: None,
            locks: None,
        }
    }
}

impl<B> Inner<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(locks) = &mut self.locks
            && locks.lost_before(cx)
        {
            return Poll::Ready(Some(Err(self.abort())));
        }
        let frame = match self.first.take() {
            Some(first) => Some(first),
            None => match self.poll_body(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    let locks = self.locks.as_mut();
                    if locks.is_some_and(|locks| locks.lost_after(cx)) {
                        return Poll::Ready(Some(Err(self.abort())));
                    }
                    return Poll::Pending;
                }
            },
        };
        // The frame may have taken its time.
        if self.locks.as_ref().is_some_and(|locks| locks.are_lost()) {
            return Poll::Ready(Some(Err(self.abort())));
        }
        if self.has_ended() {
            self.locks = None;
        }
        Poll::Ready(frame)
    }

    /// Polls the body proper and drops it as soon as nothing more can come.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            self.body = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn has_ended(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    /// Ends the body: first its work, then its lock.
    fn abort(&mut self) -> BoxError {
        self.first = None;
        self.body = None;
        self.locks = None;
        Error::new(ErrorKind::Lost).into()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.body.as_ref().map(Body::size_hint);
        let rest = rest.unwrap_or_else(|| SizeHint::with_exact(0));
        let first = match &self.first {
            None => return rest,
            // With an exact zero, the response would look empty and complete.
            Some(Err(_)) => return SizeHint::default(),
            Some(Ok(first)) => first,
        };
        size_hint::after(first.data_ref().map_or(0, Bytes::len), &rest)
    }
}

/// Returns an empty body without a lock, as middleware around the layer requires.
impl<B: Default> Default for LockBody<B> {
    fn default() -> Self {
        Self::unlocked(B::default())
    }
}

impl<B> Body for LockBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.kind {
            Kind::Inner(inner) => inner.poll_frame(cx),
            Kind::Boxed(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner(inner) => inner.first.is_none() && inner.has_ended(),
            Kind::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner(inner) => inner.size_hint(),
            Kind::Boxed(body) => body.size_hint(),
        }
    }
}

impl<B> fmt::Debug for LockBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds_lock = matches!(&self.kind, Kind::Inner(inner) if inner.locks.is_some());
        f.debug_struct("LockBody")
            .field("holds_lock", &holds_lock)
            .finish_non_exhaustive()
    }
}
