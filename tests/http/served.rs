//! Shared helpers of the HTTP tests.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::poll;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tower_lock::{LockKey, LockManager};

/// Returns the key of `LockLayer::by_path` for this path.
pub(crate) fn path_key(path: &str) -> LockKey {
    LockKey::from_path(path)
}

pub(crate) fn post(path: &str) -> Request<String> {
    Request::post(path).body(String::new()).unwrap()
}

/// Polls once and expects the future to wait.
pub(crate) async fn assert_waits<F: Future + Unpin>(future: &mut F)
where
    F::Output: std::fmt::Debug,
{
    let polled = poll!(future);
    assert!(polled.is_pending(), "ready too early: {polled:?}");
}

/// Returns `true` if a request or a guard holds a lock. The lease may still be in the process of its
/// release then, which blocks no acquire.
pub(crate) fn is_locked(locks: &LockManager) -> bool {
    locks.snapshot().held > 0
}

/// Returns the output of a future that waits for the clock, in paused time.
pub(crate) async fn in_time<F: Future>(future: F) -> F::Output {
    let outcome = tokio::time::timeout(Duration::from_secs(1_000), future).await;
    outcome.expect("not within 1000 s")
}

/// Runs the tasks of the engine and of a server until the condition is true. The number of turns only
/// bounds a failing test.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..20_000_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the condition never held");
}

/// The window that RFC 9113 §6.9.2 defines.
pub(crate) const WINDOW: u32 = 65_535;

/// Opens an HTTP/2 connection whose streams accept `window` bytes before the client reads. Also returns its socket:
/// the shutdown of it is the end of the client.
pub(crate) async fn over_http2<B>(
    address: SocketAddr,
    window: u32,
) -> (SendRequest<B>, std::net::TcpStream)
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let stream = TcpStream::connect(address).await.unwrap();
    let stream = stream.into_std().unwrap();
    let socket = stream.try_clone().unwrap();
    let stream = TokioIo::new(TcpStream::from_std(stream).unwrap());
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window);
    let (sender, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    (sender, socket)
}

/// Runs a closure when it is dropped.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A handler that reports its start and responds when the test lets it.
#[derive(Clone)]
pub(crate) struct Gate {
    entered: mpsc::UnboundedSender<Call>,
}

/// One call of a [`Gate`].
pub(crate) struct Call {
    pub(crate) request: http::request::Parts,
    answer: oneshot::Sender<Response<Stream>>,
}

impl Gate {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Call>) {
        let (entered, calls) = mpsc::unbounded_channel();
        (Self { entered }, calls)
    }

    pub(crate) async fn handle<B>(
        self,
        request: Request<B>,
    ) -> Result<Response<Stream>, Infallible> {
        let (answer, answered) = oneshot::channel();
        let (request, _) = request.into_parts();
        assert!(self.entered.send(Call { request, answer }).is_ok());
        Ok(answered.await.unwrap_or_default())
    }
}

impl Call {
    pub(crate) fn answer(self, response: Response<Stream>) {
        // The client may have disconnected, which some tests require.
        drop(self.answer.send(response));
    }

    pub(crate) fn finish(self) {
        self.answer(Response::default());
    }

    /// Returns `true` if the handler's future was dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.answer.is_closed()
    }
}

/// A body with frames from a channel. Its end is unknown until it arrives.
pub(crate) struct Stream {
    frames: mpsc::UnboundedReceiver<Result<Frame<Bytes>, Broken>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the body broke")]
pub(crate) struct Broken;

pub(crate) struct Frames(mpsc::UnboundedSender<Result<Frame<Bytes>, Broken>>);

impl Stream {
    pub(crate) fn new() -> (Self, Frames) {
        let (sender, frames) = mpsc::unbounded_channel();
        (Self { frames }, Frames(sender))
    }
}

/// Creates an empty body.
impl Default for Stream {
    fn default() -> Self {
        Self::new().0
    }
}

impl Frames {
    pub(crate) fn data(&self, text: &'static str) {
        let frame = Frame::data(Bytes::from_static(text.as_bytes()));
        assert!(self.0.send(Ok(frame)).is_ok(), "the body is gone");
    }

    pub(crate) fn fail(&self) {
        assert!(self.0.send(Err(Broken)).is_ok(), "the body is gone");
    }

    /// Returns `true` if the body was dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.frames.poll_recv(cx)
    }

    fn is_end_stream(&self) -> bool {
        false
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::new()
    }
}
