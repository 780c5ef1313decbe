//! Services and lookups of the tests of the layer.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::service::LockBody;
use tower_lock::{Held, LockKey, LockLayer, LockManager};

use crate::served::{Stream, path_key, post};

pub(super) type Handler =
    fn(Request<String>) -> BoxFuture<'static, Result<Response<String>, Infallible>>;

/// A service that responds at once with the state of its lock.
pub(super) async fn show_held(request: Request<String>) -> Result<Response<String>, Infallible> {
    let text = match request.extensions().get::<Held>() {
        Some(held) => {
            assert!(held.is_held());
            let keys: Vec<_> = held.keys().map(LockKey::as_str).collect();
            keys.join(" ")
        }
        None => "unlocked".to_owned(),
    };
    Ok(Response::new(text))
}

pub(super) async fn text<B>(response: Response<B>) -> String
where
    B: Body,
    B::Error: std::fmt::Debug,
{
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Sends one request whose response has this body.
pub(super) async fn respond<K: tower_lock::keys::KeyExtractor>(
    layer: LockLayer<K>,
    body: Stream,
    status: StatusCode,
    method: Method,
) -> Response<LockBody<Stream>> {
    let body = Arc::new(Mutex::new(Some(body)));
    let service = layer.layer(service_fn(move |_: Request<String>| {
        let mut response = Response::new(body.lock().unwrap().take().unwrap());
        *response.status_mut() = status;
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    let mut request = post("/a");
    *request.method_mut() = method;
    service.oneshot(request).await.unwrap()
}

pub(super) async fn until_free(locks: &LockManager, path: &str) {
    drop(locks.acquire(path_key(path)).await.unwrap());
}
