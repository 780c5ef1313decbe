//! What the layer costs a request, on memory.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_lock::{LockLayer, LockManager};

use crate::allocations;

const REQUESTS: u64 = 1_000;

type Body = Empty<Bytes>;

async fn handler(_request: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::new()))
}

/// As a router passes it on: with an extension. The first one of a request also allocates the map.
fn routed() -> Request<Body> {
    let mut request = Request::put("/orders/42").body(Body::new()).unwrap();
    request.extensions_mut().insert("of the router");
    request
}

async fn serve<S, B>(mut service: S, requests: u64)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    for _ in 0..requests {
        drop(service.ready().await.unwrap().call(routed()).await);
        // The background release runs here.
        tokio::task::yield_now().await;
    }
}

/// The grant, and two extensions: `Held`, and the owner with the scope.
// Time is paused: a watchdog that finds no lock drops its index, which then grows again.
#[tokio::test(start_paused = true)]
async fn request_in_layer_allocates_three_times() {
    let locks = LockManager::in_memory();
    let layered = || LockLayer::by_path(locks.clone()).layer(service_fn(handler));
    // Tables grow, and the next request reuses what the last one left.
    serve(layered(), REQUESTS).await;
    let bare = allocations(serve(service_fn(handler), REQUESTS)).await;
    let layered = allocations(serve(layered(), REQUESTS)).await;
    let each = (layered - bare) as f64 / REQUESTS as f64;
    assert!(each < 3.01, "{each} allocations a request");
}
