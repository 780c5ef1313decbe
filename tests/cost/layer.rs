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
async fn layer_allocates_three_times_per_request() {
    let locks = LockManager::in_memory();
    let layered = || LockLayer::by_path(locks.clone()).layer(service_fn(handler));
    // Tables grow, and the next request reuses what the last one left.
    serve(layered(), REQUESTS).await;
    let bare = allocations(serve(service_fn(handler), REQUESTS)).await;
    let layered = allocations(serve(layered(), REQUESTS)).await;
    let each = (layered - bare) as f64 / REQUESTS as f64;
    assert!(each < 3.01, "{each} allocations a request");
}

/// The allocations of a request with a body, beyond those of the same request without one.
#[cfg(feature = "axum")]
mod bodies {
    use axum::body::Body;
    use tower_lock::LockScopeLayer;

    use super::*;

    async fn dropped(_request: Request<Body>) -> Result<Response<Empty<Bytes>>, Infallible> {
        Ok(Response::new(Empty::new()))
    }

    async fn serve<S, B>(mut service: S, body: fn() -> Body, requests: u64)
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    {
        for _ in 0..requests {
            let request = routed().map(|_| body());
            drop(service.ready().await.unwrap().call(request).await);
            tokio::task::yield_now().await;
        }
    }

    async fn of_body<S, B>(service: S) -> f64
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
    {
        serve(service.clone(), Body::empty, REQUESTS).await;
        let full = || Body::from("body");
        let without = allocations(serve(service.clone(), Body::empty, REQUESTS)).await;
        let with = allocations(serve(service, full, REQUESTS)).await;
        (with - without) as f64 / REQUESTS as f64
    }

    #[tokio::test(start_paused = true)]
    async fn unread_body_costs_layer_nothing_and_scope_one() {
        let bare = of_body(service_fn(dropped)).await;
        let layer = LockLayer::by_path(LockManager::in_memory());
        let layered = of_body(layer.layer(service_fn(dropped))).await;
        assert!((layered - bare).abs() < 0.01, "{layered} after {bare}");
        let scoped = of_body(LockScopeLayer::new().layer(service_fn(dropped))).await;
        assert!(scoped - bare < 1.01, "{scoped} after {bare}");
    }
}
