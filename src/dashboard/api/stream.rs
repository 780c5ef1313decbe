//! The stream of frames, as server-sent events.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http_body::Frame;
use tokio::time::{Sleep, sleep};

use super::response::refuse;
use crate::dashboard::board::Board;
use crate::dashboard::readings::{LONGEST_STREAM, Latest, Subscription};

/// The page reconnects after 0.5 s.
const OPENING: &str = "retry: 500\n\n";

/// Returns frames until the stream has been open for a minute, or the manager shuts down: an open stream would block
/// the graceful shutdown of the server.
pub(in crate::dashboard) async fn stream(State(board): State<Arc<Board>>) -> Response {
    let Some(subscription) = board.publisher.subscribe() else {
        return refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many pages are open, or the process is shutting down",
        );
    };
    let frames = Frames {
        opening: Some(Bytes::from_static(OPENING.as_bytes())),
        ends: Box::pin(sleep(LONGEST_STREAM)),
        next: Box::pin(next(subscription)),
    };
    ([(CONTENT_TYPE, "text/event-stream")], Body::new(frames)).into_response()
}

type Next = Pin<Box<dyn Future<Output = Option<(Bytes, Subscription)>> + Send>>;

struct Frames {
    opening: Option<Bytes>,
    ends: Pin<Box<Sleep>>,
    next: Next,
}

/// Completes with the next frame, or with `None` at the end.
async fn next(mut subscription: Subscription) -> Option<(Bytes, Subscription)> {
    loop {
        subscription.frames.changed().await.ok()?;
        let latest = subscription.frames.borrow_and_update().clone();
        match latest {
            Latest::Nothing => {}
            Latest::Frame(frame, _) => return Some((frame, subscription)),
            Latest::Ended => return None,
        }
    }
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(opening) = self.opening.take() {
            return Poll::Ready(Some(Ok(Frame::data(opening))));
        }
        if self.ends.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        match ready!(self.next.as_mut().poll(cx)) {
            Some((frame, subscription)) => {
                self.next = Box::pin(next(subscription));
                Poll::Ready(Some(Ok(Frame::data(frame))))
            }
            None => {
                self.next = Box::pin(std::future::ready(None));
                Poll::Ready(None)
            }
        }
    }
}
