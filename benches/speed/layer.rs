//! The cost that the layer adds to a request, on memory.

use std::convert::Infallible;
use std::hint::black_box;

use http::{Request, Response};
use tokio::time::Instant;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_lock::{LockLayer, LockManager};

use crate::table::{Series, Table};

const REQUESTS: usize = 200_000;
const ROUNDS: usize = 11;

type Body = http_body_util::Empty<bytes::Bytes>;

async fn trivial(_request: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::new()))
}

/// Creates a request. Each call needs one, also of a service that does not read it.
fn request() -> Request<Body> {
    let request = Request::put("/orders/42").body(Body::new());
    black_box(request.expect("a request"))
}

/// Creates a request as a router forwards it: with an extension. The first extension of a request also
/// allocates the map.
fn routed() -> Request<Body> {
    let mut request = request();
    request.extensions_mut().insert("of the router");
    request
}

async fn micros<S, B>(service: &mut S) -> f64
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let start = Instant::now();
    for _ in 0..REQUESTS {
        let ready = service.ready().await.expect("infallible");
        drop(black_box(ready.call(request()).await));
    }
    start.elapsed().as_secs_f64() * 1e6 / REQUESTS as f64
}

pub(crate) async fn overhead(table: &mut Table) {
    let locks = LockManager::in_memory();
    let mut bare = service_fn(trivial);
    let mut locked = ServiceBuilder::new()
        .layer(LockLayer::by_path(locks.clone()))
        .service_fn(trivial);
    let (mut bare_series, mut locked_series) = (Series::new(), Series::new());
    for _ in 0..ROUNDS {
        bare_series.add(micros(&mut bare).await);
        locked_series.add(micros(&mut locked).await);
    }
    let added = locked_series.median() - bare_series.median();
    table.row(
        "the service without the layer, a request".to_owned(),
        bare_series.micros(),
        String::new(),
    );
    table.row(
        "the same under `LockLayer::by_path` on memory".to_owned(),
        locked_series.micros(),
        format!("{added:.2} µs more"),
    );
}

/// Counts the allocations of a request. A runtime of one thread runs all that the request causes.
pub(crate) fn allocations(table: &mut Table) {
    const COUNTED: u64 = 10_000;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let count = |request: fn() -> Request<Body>, locked: bool| {
        let locks = LockManager::in_memory();
        runtime.block_on(async {
            let mut bare = service_fn(trivial);
            let mut service = ServiceBuilder::new()
                .layer(LockLayer::by_path(locks))
                .service_fn(trivial);
            let mut serve = async |requests: u64| {
                for _ in 0..requests {
                    if locked {
                        drop(
                            service
                                .ready()
                                .await
                                .expect("infallible")
                                .call(request())
                                .await,
                        );
                    } else {
                        drop(bare.call(request()).await);
                    }
                    tokio::task::yield_now().await;
                }
            };
            serve(1_000).await;
            let mut counted = 0;
            // The background release runs at the yield, so it is included.
            let info = measured(&mut serve, COUNTED).await;
            counted += info;
            counted as f64 / COUNTED as f64
        })
    };
    for (what, request) in [
        (
            "a request under the layer",
            request as fn() -> Request<Body>,
        ),
        (
            "a request that has extensions already, as behind a router",
            routed,
        ),
    ] {
        let more = count(request, true) - count(request, false);
        table.row(
            format!("allocations of {what}, background release included"),
            format!("{more:.2}"),
            "more than without the layer".to_owned(),
        );
    }
}

async fn measured(serve: &mut impl AsyncFnMut(u64), requests: u64) -> u64 {
    let mut serve = std::pin::pin!(serve(requests));
    let mut count = 0;
    std::future::poll_fn(|cx| {
        let mut poll = std::task::Poll::Pending;
        let info = allocation_counter::measure(|| poll = serve.as_mut().poll(cx));
        count += info.count_total;
        poll
    })
    .await;
    count
}
