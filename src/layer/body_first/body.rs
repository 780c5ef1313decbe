//! The body of a request that the inner service receives.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tower::BoxError;

use crate::layer::size_hint;

/// The body of a request under [`LockLayer::read_body_first`](crate::LockLayer::read_body_first).
///
/// It is in memory, with its trailers. Only a request without a lock streams its body.
pub struct ReadBody<B> {
    read: Bytes,
    rest: Rest<B>,
}

/// What follows the bytes that the layer has read.
pub(super) enum Rest<B> {
    Unread(B),
    Trailers(HeaderMap),
    Failed(BoxError),
    Nothing,
}

impl<B> ReadBody<B> {
    pub(super) fn unread(body: B) -> Self {
        Self::new(Bytes::new(), Rest::Unread(body))
    }

    pub(super) fn new(read: Bytes, rest: Rest<B>) -> Self {
        Self { read, rest }
    }
}

impl<B> Body for ReadBody<B>
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
        if !self.read.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(mem::take(&mut self.read)))));
        }
        if let Rest::Unread(body) = &mut self.rest {
            let frame = Pin::new(body).poll_frame(cx);
            return frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)));
        }
        Poll::Ready(match mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Trailers(trailers) => Some(Ok(Frame::trailers(trailers))),
            Rest::Failed(error) => Some(Err(error)),
            Rest::Unread(_) | Rest::Nothing => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty()
            && match &self.rest {
                Rest::Unread(body) => body.is_end_stream(),
                Rest::Trailers(_) | Rest::Failed(_) => false,
                Rest::Nothing => true,
            }
    }

    fn size_hint(&self) -> SizeHint {
        let rest = match &self.rest {
            Rest::Unread(body) => body.size_hint(),
            // The length of a body that is cut off is unknown.
            Rest::Failed(_) => SizeHint::default(),
            Rest::Trailers(_) | Rest::Nothing => SizeHint::with_exact(0),
        };
        size_hint::after(self.read.len(), &rest)
    }
}

/// Creates an empty body, as middleware around the inner service requires.
impl<B> Default for ReadBody<B> {
    fn default() -> Self {
        Self::new(Bytes::new(), Rest::Nothing)
    }
}

impl<B> fmt::Debug for ReadBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBody")
            .field("read", &self.read.len())
            .finish_non_exhaustive()
    }
}
