//! What a request reads of its body while it waits for a lock.
//!
//! The type of a body has no bounds by which a service could read it, so a service recognizes that of axum. With
//! [`read_body_ahead`](crate::LockLayer::read_body_ahead), the type has bounds.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;

use super::config::Options;
#[cfg(feature = "axum")]
use super::request_locks::RequestLocks;
use super::scope::Watch;
use crate::Error;
use crate::lock::ReadBudget;

#[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "no body is known"))]
pub(super) struct Ahead<'a> {
    /// Opened before the grant if it has the body.
    pub(super) watch: &'a mut Option<Watch>,
    pub(super) options: &'a Arc<Options>,
    pub(super) budget: &'a Arc<ReadBudget>,
}

/// Reads the next bytes. Completes if the body fails.
pub(super) type ReadAhead<B> = fn(&mut Request<B>, Ahead<'_>, &mut Context<'_>) -> Poll<Error>;

#[cfg(not(feature = "axum"))]
pub(super) fn read_ahead<B>(_: &mut Request<B>, _: Ahead<'_>, _: &mut Context<'_>) -> Poll<Error> {
    Poll::Pending
}

#[cfg(feature = "axum")]
pub(super) fn read_ahead<B: 'static>(
    request: &mut Request<B>,
    ahead: Ahead<'_>,
    cx: &mut Context<'_>,
) -> Poll<Error> {
    if ahead.watch.is_none() && ahead.budget.admits(0) && readable(request).is_some() {
        let watch = ahead.watch.insert(Watch::open(ahead.options));
        take_body(request, watch);
    }
    match ahead.watch {
        Some(watch) => watch.scope().poll_ahead(ahead.budget, cx),
        None => Poll::Pending,
    }
}

/// Gives the body to the scope of a request that may wait.
#[cfg(feature = "axum")]
pub(super) fn take_body<B: 'static>(request: &mut Request<B>, watch: &Watch) {
    if let Some(body) = readable(request) {
        watch.scope().take_body(body);
        RequestLocks::set_unread(request.extensions_mut(), watch.scope());
    }
}

/// Returns the body if it is one of axum, and if it is incomplete. The first poll of a body asks a client that sent
/// `Expect` for it.
#[cfg(feature = "axum")]
fn readable<B: 'static>(request: &mut Request<B>) -> Option<&mut axum::body::Body> {
    let is_expected = request.headers().contains_key(http::header::EXPECT);
    let body = (request.body_mut() as &mut dyn std::any::Any).downcast_mut();
    body.filter(|body| !is_expected && !http_body::Body::is_end_stream(&**body))
}
