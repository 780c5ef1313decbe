//! What must hold for each request.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version};
use tokio::time::timeout;
use tower::ServiceExt;
use tower_lock::LockManager;
use tower_lock::backend::Mode;
use tower_lock::manager::Acquire;

use super::routes::{ALL, LIMIT, PERMITS, Seen, Sight, app};

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum End {
    Complete,
    Failed,
    /// The client sends no more, and stays connected.
    Missing,
}

#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) frames: Vec<Bytes>,
    pub(crate) end: End,
}

impl Sent {
    fn request(&self) -> Request<Body> {
        let mut request = Request::new(self.body());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.version_mut() = self.version;
        *request.headers_mut() = self.headers.clone();
        request
    }

    fn body(&self) -> Body {
        // The length of this one is known.
        if let ([frame], End::Complete) = (&*self.frames, self.end) {
            return Body::from(frame.clone());
        }
        let frames = stream::iter(self.frames.clone()).map(Ok);
        let broken = || io::Error::other("broken on purpose");
        match self.end {
            End::Complete => Body::from_stream(frames.map(|frame: io::Result<_>| frame)),
            End::Failed => Body::from_stream(frames.chain(stream::iter([Err(broken())]))),
            End::Missing => Body::from_stream(frames.chain(stream::pending::<io::Result<Bytes>>())),
        }
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Outcome {
    /// Its handler ran under the locks that are due.
    Locked,
    /// Its handler ran, and no lock was due.
    Passed,
    Rejected,
    /// It waited for its body until the client disconnected.
    Abandoned,
}

/// More than the deadline of a body.
const PATIENCE: Duration = Duration::from_secs(60);

/// The routers of all kinds of layers.
pub(crate) struct Apps {
    locks: LockManager,
    seen: Seen,
    apps: [Router; ALL.len()],
}

impl Apps {
    pub(crate) fn new() -> Self {
        let locks = LockManager::in_memory();
        let seen = Seen::default();
        let apps = ALL.map(|by| app(by, &locks, &seen));
        Self { locks, seen, apps }
    }

    fn last_seen(&self) -> Option<Sight> {
        self.seen.lock().unwrap().take()
    }

    /// Returns the status, that of gRPC included, or `None` if the request waits for its body.
    async fn status(&self, at: usize, sent: &Sent) -> Option<StatusCode> {
        let response = self.apps[at].clone().oneshot(sent.request());
        let response = timeout(PATIENCE, response).await.ok()?;
        let response = response.unwrap();
        Some(match response.headers().get("grpc-status") {
            None => response.status(),
            Some(status) => match status.as_bytes() {
                b"0" => StatusCode::OK,
                // The client has to change or repeat the call.
                b"3" | b"4" | b"8" | b"10" | b"12" => StatusCode::BAD_REQUEST,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
        })
    }

    /// Sends a copy of a request while another owner holds one of its keys. Returns its status, and whether it ran.
    async fn beside(&self, other: Acquire, at: usize, sent: &Sent) -> (StatusCode, bool) {
        let _guard = other.no_wait().await.expect("a free key");
        let status = self.status(at, sent).await.expect("a response");
        (status, self.last_seen().is_some())
    }

    /// Sends a request through the layer `ALL[at]`.
    ///
    /// Panics if the response is a 5xx, if the handler ran without the locks that its values name, if a copy of the
    /// request runs while one of them is held exclusively, or if a copy that shares it does not run beside another.
    pub(crate) async fn check(&self, at: usize, sent: &Sent) -> Outcome {
        let by = ALL[at];
        let Some(status) = self.status(at, sent).await else {
            let is_right = sent.end == End::Missing && !by.reads_body_first();
            assert!(is_right, "no response: {by:?}, {sent:?}");
            assert!(self.last_seen().is_none());
            return Outcome::Abandoned;
        };
        let context = || format!("{by:?}, {sent:?}: {status}");
        assert!(!status.is_server_error(), "{}", context());
        let Some(mut sight) = self.last_seen() else {
            assert!(status.is_client_error(), "{}", context());
            return Outcome::Rejected;
        };
        sight.due.sort();
        sight.due.dedup();
        sight.held.sort();
        assert_eq!(sight.held, sight.due, "{}", context());
        if let Some(held) = sight.held_mode {
            assert_eq!(held, sight.mode, "{}", context());
        }
        if let Some(body) = &sight.body {
            assert_eq!(*body, sent.frames.concat(), "{}", context());
            assert!(body.len() <= LIMIT && sent.end == End::Complete);
        }
        for key in &sight.due {
            let acquire = || self.locks.acquire(key);
            let (copy, ran) = self.beside(acquire(), at, sent).await;
            assert!(!ran, "runs beside the holder: {}", context());
            assert!(copy.is_client_error(), "{copy}: {}", context());
            let other = match sight.mode {
                Mode::Shared => acquire().shared(),
                Mode::Permit => acquire().permits(PERMITS),
                _ => continue,
            };
            let (copy, ran) = self.beside(other, at, sent).await;
            assert!(ran, "excludes another: {copy}: {}", context());
        }
        match sight.due.is_empty() {
            true if by.can_pass() => Outcome::Passed,
            true => panic!("unlocked: {}", context()),
            false => Outcome::Locked,
        }
    }
}
