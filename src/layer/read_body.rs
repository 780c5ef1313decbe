//! The body of a request that the inner service receives.

use std::error::Error as StdError;
use std::fmt;
use std::iter;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::LengthLimitError;
use tower::BoxError;

use super::size_hint;
use crate::lock::{ReadBudget, ReadShare};
use crate::{Error, ErrorKind};

/// The body of a request under [`LockLayer::read_body_first`](crate::LockLayer::read_body_first) or
/// [`LockLayer::read_body_ahead`](crate::LockLayer::read_body_ahead).
///
/// What the layer has read is in memory. With `read_body_first`, this is the whole body with its trailers, and only a
/// request without a lock streams it.
pub struct ReadBody<B> {
    /// Copied: a client that sends single bytes must not hold a buffer for each.
    pub(super) read: BytesMut,
    rest: Rest<B>,
    /// The memory of `read`.
    share: Option<ReadShare>,
}

/// What follows the bytes that the layer has read.
pub(super) enum Rest<B> {
    Unread(B),
    Trailers(HeaderMap),
    Failed(BoxError),
    Nothing,
}

#[derive(Debug, thiserror::Error)]
#[error("request body failed")]
pub(super) struct BodyError(#[source] pub(super) BoxError);

impl<B> ReadBody<B> {
    pub(super) fn unread(body: B) -> Self {
        Self::new(BytesMut::new(), Rest::Unread(body))
    }

    pub(super) fn new(read: BytesMut, rest: Rest<B>) -> Self {
        Self {
            read,
            rest,
            share: None,
        }
    }

    /// Returns the error with which the body ended, if it did.
    pub(super) fn take_error(&mut self) -> Option<BoxError> {
        match mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Failed(error) => Some(error),
            rest => {
                self.rest = rest;
                None
            }
        }
    }

    fn push(&mut self, data: &Bytes, budget: Option<&Arc<ReadBudget>>) {
        let length = self.read.len() + data.len();
        if let Some(budget) = budget
            && length > self.read.capacity()
        {
            let doubled = (2 * self.read.capacity()).min(budget.of_each);
            let mut larger = BytesMut::with_capacity(length.max(doubled));
            self.share = Some(budget.share(larger.capacity()));
            larger.extend_from_slice(&self.read);
            self.read = larger;
        }
        self.read.extend_from_slice(data);
    }
}

impl<B> ReadBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    /// Reads the next bytes, while `budget` has memory for them. Completes if the body fails.
    pub(crate) fn poll_ahead(
        &mut self,
        budget: &Arc<ReadBudget>,
        cx: &mut Context<'_>,
    ) -> Poll<Error> {
        ready!(self.poll_read(Some(budget), |read| budget.admits(read), cx));
        let error = self.take_error();
        error.map_or(Poll::Pending, |error| Poll::Ready(failed(error)))
    }

    /// Reads on while `admits` the number of bytes that were read. Completes when it does not, or at the end of the body,
    /// with `false` for a body that failed.
    pub(super) fn poll_read(
        &mut self,
        budget: Option<&Arc<ReadBudget>>,
        admits: impl Fn(usize) -> bool,
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        while let Rest::Unread(body) = &mut self.rest
            && admits(self.read.len())
        {
            let frame = match body.is_end_stream() {
                true => None,
                false => ready!(Pin::new(body).poll_frame(cx)),
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.push(&data, budget),
                Some(Ok(Err(frame))) => {
                    self.rest = frame.into_trailers().map_or(Rest::Nothing, Rest::Trailers);
                }
                Some(Err(error)) => self.rest = Rest::Failed(error.into()),
                None => self.rest = Rest::Nothing,
            }
        }
        Poll::Ready(!matches!(self.rest, Rest::Failed(_)))
    }
}

/// A body that a layer outside has limited is too large, and any other one has failed.
fn failed(error: BoxError) -> Error {
    let mut causes = iter::successors(Some(&*error as &dyn StdError), |&error| error.source());
    let kind = match causes.any(<dyn StdError>::is::<LengthLimitError>) {
        true => ErrorKind::BodyTooLarge,
        false => ErrorKind::BodyFailed,
    };
    Error::new(kind).with_source(BodyError(error))
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
            self.share = None;
            let read = mem::take(&mut self.read).freeze();
            return Poll::Ready(Some(Ok(Frame::data(read))));
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
        Self::new(BytesMut::new(), Rest::Nothing)
    }
}

impl<B> fmt::Debug for ReadBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBody")
            .field("read", &self.read.len())
            .finish_non_exhaustive()
    }
}
