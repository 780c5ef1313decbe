//! Reads a body into memory, within its bounds.
//!
//! Its deadline uses the clock of tokio, which excludes the time for which this machine is suspended: the client cannot
//! send then, and no lock is held yet.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::Body;
use tokio::time::Instant;
use tower::BoxError;

use super::setting::Limits;
use crate::ErrorKind;
use crate::layer::read_body::ReadBody;
use crate::task::Timer;

pub(super) struct Reader<B> {
    pub(super) body: ReadBody<B>,
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
            body: ReadBody::unread(body),
            limits,
            timer: None,
        }
    }

    /// Completes when the body is complete, or with the reason why it cannot be.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ErrorKind>> {
        let Limits { bytes, deadline } = self.limits;
        // Before a poll, which asks a client with `Expect: 100-continue` for the body.
        if self.body.size_hint().lower() > bytes as u64 {
            return Poll::Ready(Err(ErrorKind::BodyTooLarge));
        }
        let read = self.body.poll_read(None, |read| read <= bytes, cx);
        if let Poll::Ready(is_sound) = read {
            return Poll::Ready(match is_sound {
                _ if self.body.read.len() > bytes => Err(ErrorKind::BodyTooLarge),
                true => Ok(()),
                false => Err(ErrorKind::BodyFailed),
            });
        }
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(Timer::at(Instant::now() + deadline)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::BodyTimeout))
    }
}
