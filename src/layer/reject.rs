//! The response to a rejected request, as the settings of a layer or scope define it.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderValue};
use http::{Response, StatusCode};
use http_body::Body;
use tower::BoxError;

use super::body::LockBody;
use super::config::{BoxedBody, Options};
use super::rejection::LockRejection;

impl Options {
    pub(super) fn set_on_reject<F, B>(&mut self, on_reject: F)
    where
        F: Fn(LockRejection) -> Response<B> + Send + Sync + 'static,
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        // `unlocked` only makes one error type of all.
        self.on_reject = Some(Arc::new(move |rejection| {
            on_reject(rejection).map(|body| Box::pin(LockBody::unlocked(body)) as BoxedBody)
        }));
    }

    /// The response in place of the handler's, always with the rejection in its extensions.
    pub(super) fn reject<B>(&self, rejection: LockRejection) -> Response<LockBody<B>> {
        let rejection = rejection.busy_status(self.busy_status);
        self.render(&rejection.into_rendered(self.on_reject.is_some()))
    }

    /// Returns `true` if this layer or scope renders the rejection of its handler, or of a layer inside, again.
    pub(super) fn renders(&self, rejection: &LockRejection) -> bool {
        let has_status = self.busy_status.is_some() && rejection.takes_busy_status();
        rejection.is_fresh() || self.on_reject.is_some() || has_status
    }

    fn render<B>(&self, rejection: &LockRejection) -> Response<LockBody<B>> {
        let Some(on_reject) = &self.on_reject else {
            return rejection.to_response().map(LockBody::text);
        };
        let mut response = on_reject(rejection.clone()).map(LockBody::boxed);
        response.extensions_mut().insert(rejection.clone());
        // No success and no redirect, which the request had not. A response to gRPC states its status in a header.
        let is_error = response.status() >= StatusCode::BAD_REQUEST;
        if !is_error && !response.headers().contains_key("grpc-status") {
            *response.status_mut() = rejection.status();
        }
        let headers = response.headers_mut();
        rejection.put_retry_after(headers);
        let no_store = HeaderValue::from_static("no-store");
        headers.entry(CACHE_CONTROL).or_insert(no_store);
        response
    }
}
