//! Reads a body into memory, within its bounds.
//!
//! Its deadline uses the clock of tokio, which excludes the time for which this machine is suspended: the client cannot
//! send then, and no lock is held yet.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use http::HeaderMap;
use http_body::Body;
use tokio::time::Instant;
use tower::BoxError;

use super::setting::Limits;
use crate::ErrorKind;
use crate::layer::read_body::{ReadBody, Rest};
use crate::task::Timer;

pub(super) struct Reader<B> {
    body: B,
    // Copied: a client that sends single bytes must not hold a buffer for each.
    read: BytesMut,
    trailers: Option<HeaderMap>,
    error: Option<BoxError>,
    limits: Limits,
    // `None` until the body is late: most bodies arrive with the head.
    timer: Option<Pin<Box<Timer>>>,
}

impl<B> Reader<B>
where
    B: Body<Data = bytes::Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    pub(super) fn new(body: B, limits: Limits) -> Self {
        Self {
            body,
            read: BytesMut::new(),
            trailers: None,
            error: None,
            limits,
            timer: None,
        }
    }

    /// Completes when the body is complete, or with the reason why it cannot be.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ErrorKind>> {
        // Before a poll, which asks a client with `Expect: 100-continue` for the body.
        let announced = self.body.size_hint().lower();
        if announced.saturating_add(self.read.len() as u64) > self.limits.bytes as u64 {
            return Poll::Ready(Err(ErrorKind::BodyTooLarge));
        }
        let read = self.poll_frames(cx);
        if read.is_ready() {
            return read;
        }
        let deadline = self.limits.deadline;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(Timer::at(Instant::now() + deadline)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::BodyTimeout))
    }

    fn poll_frames(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ErrorKind>> {
        while !self.body.is_end_stream() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    self.error = Some(error.into());
                    return Poll::Ready(Err(ErrorKind::BodyFailed));
                }
                None => break,
            };
            match frame.into_data() {
                Ok(data) => self.read.extend_from_slice(&data),
                Err(frame) => self.trailers = frame.into_trailers().ok().or(self.trailers.take()),
            }
            if self.read.len() > self.limits.bytes {
                return Poll::Ready(Err(ErrorKind::BodyTooLarge));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the error with which the body ended.
    pub(super) fn take_error(&mut self) -> Option<BoxError> {
        self.error.take()
    }

    /// Returns the complete body.
    pub(super) fn into_complete(self) -> ReadBody<B> {
        let rest = self.trailers.map_or(Rest::Nothing, Rest::Trailers);
        ReadBody::new(self.read, rest)
    }

    /// Returns what has been read, and the rest as it comes.
    pub(super) fn into_partial(self) -> ReadBody<B> {
        let rest = self.error.map_or(Rest::Unread(self.body), Rest::Failed);
        ReadBody::new(self.read, rest)
    }
}
