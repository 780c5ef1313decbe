//! A layer that keeps the keys of running requests in a set: the least that a lock for each request costs there. It has no
//! queue, no wait, no lease and no watchdog, so it is not a lock to use.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use axum::extract::Request;
use axum::response::Response;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use crate::serving::fail;

type Keys = Arc<Mutex<HashSet<String>>>;

#[derive(Clone, Default)]
pub(crate) struct SetLayer(Keys);

#[derive(Clone)]
pub(crate) struct SetService<S> {
    keys: Keys,
    inner: S,
}

/// Removes its key when dropped.
struct Held {
    keys: Keys,
    key: String,
}

pin_project! {
    pub(crate) struct SetFuture<F> {
        #[pin]
        response: F,
        held: Option<Held>,
    }
}

impl<S> Layer<S> for SetLayer {
    type Service = SetService<S>;

    fn layer(&self, inner: S) -> SetService<S> {
        let keys = Arc::clone(&self.0);
        SetService { keys, inner }
    }
}

impl<S: Service<Request, Response = Response>> Service<Request> for SetService<S> {
    type Response = Response;
    type Error = S::Error;
    type Future = SetFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> SetFuture<S::Future> {
        let (keys, key) = (Arc::clone(&self.keys), request.uri().path().to_owned());
        if !keys.lock().expect("no panic").insert(key.clone()) {
            fail("the key is taken");
        }
        SetFuture {
            response: self.inner.call(request),
            held: Some(Held { keys, key }),
        }
    }
}

impl<F: Future> Future for SetFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let response = ready!(this.response.poll(context));
        drop(this.held.take());
        Poll::Ready(response)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keys.lock().expect("no panic").remove(&self.key);
    }
}
