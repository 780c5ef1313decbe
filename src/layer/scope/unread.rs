//! The body of a request, which a wait for a lock may read.
//!
//! An unread body fills the window of its HTTP/2 connection, which other requests need, and hides the end of an HTTP/1.1
//! client. While a request waits for its lock, the scope has its body, and reads the first part of it. The handler
//! takes the body from the scope with its first poll, and the scope reads no further: a body wakes only its last
//! reader.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tower::BoxError;

use super::lock_scope::{LockScope, Shared};
use crate::Error;
use crate::layer::read_body::ReadBody;
use crate::lock::ReadBudget;

impl LockScope {
    /// Takes the body of a request, and replaces it by one that reads on.
    pub(in crate::layer) fn take_body(&self, body: &mut Body) {
        let reads_on = ReadsOn {
            shared: Some(Arc::clone(&self.shared)),
            body: ReadBody::default(),
        };
        let body = mem::replace(body, Body::new(reads_on));
        *self.shared.unread.lock() = ReadBody::unread(body);
    }

    /// Reads the next bytes for a request that waits. Completes if its body fails.
    pub(crate) fn poll_ahead(&self, budget: &Arc<ReadBudget>, cx: &mut Context<'_>) -> Poll<Error> {
        self.shared.unread.lock().poll_ahead(budget, cx)
    }
}

/// The body that replaces the one in the scope.
struct ReadsOn {
    /// Has the body until the first poll.
    shared: Option<Arc<Shared>>,
    body: ReadBody<Body>,
}

impl ReadsOn {
    fn take(&mut self) -> &mut ReadBody<Body> {
        if let Some(shared) = self.shared.take() {
            self.body = mem::take(&mut shared.unread.lock());
        }
        &mut self.body
    }
}

/// The scope may remain, and the body must not.
impl Drop for ReadsOn {
    fn drop(&mut self) {
        self.take();
    }
}

impl http_body::Body for ReadsOn {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(self.take()).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        match &self.shared {
            Some(shared) => shared.unread.lock().is_end_stream(),
            None => self.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.shared {
            Some(shared) => shared.unread.lock().size_hint(),
            None => self.body.size_hint(),
        }
    }
}
