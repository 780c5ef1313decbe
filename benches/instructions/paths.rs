//! The hot paths of requests on memory, which exclude the cost of a store.

use std::convert::Infallible;
use std::hint::black_box;
use std::time::Duration;

use http::{Request, Response};
use tokio::runtime::{Builder, Runtime};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_lock::{LockKey, LockLayer, LockManager};

type Path = fn(times: u64);
type Body = http_body_util::Empty<bytes::Bytes>;

pub(crate) const PATHS: [(&str, Path); 8] = [
    ("a key of two parts", key),
    ("acquire and release, without contention", uncontended),
    ("acquire again by the same owner, and release", again),
    ("join a shared lock, and leave it", joined),
    ("is_held of a guard", is_held),
    ("hand-off between two tasks", handed_on),
    ("two keys, without contention", two_keys),
    ("a request under the layer", request),
];

pub(crate) fn run(name: &str, times: u64) {
    let path = PATHS.iter().find(|(path, _)| *path == name);
    let (_, path) = path.expect("one of the paths");
    path(times);
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

fn key(times: u64) {
    for _ in 0..times {
        drop(black_box(LockKey::from_parts(black_box([
            "account", "4711",
        ]))));
    }
}

fn uncontended(times: u64) {
    let (locks, key) = (LockManager::in_memory(), LockKey::new("order:42"));
    runtime().block_on(async {
        for _ in 0..times {
            drop(black_box(locks.acquire(&key).await.expect("it is free")));
        }
    });
}

fn again(times: u64) {
    let (locks, key) = (LockManager::in_memory(), LockKey::new("order:42"));
    runtime().block_on(async {
        let guard = locks.acquire(&key).await.expect("it is free");
        for _ in 0..times {
            let again = locks.acquire(&key).owner(guard.owner()).await;
            drop(black_box(again.expect("it is its own")));
        }
    });
}

fn joined(times: u64) {
    let (locks, key) = (LockManager::in_memory(), LockKey::new("order:42"));
    runtime().block_on(async {
        let first = locks.acquire(&key).shared().await.expect("it is free");
        for _ in 0..times {
            let joined = locks.acquire(&key).shared().await;
            drop(black_box(joined.expect("it is shared")));
        }
        drop(first);
    });
}

fn is_held(times: u64) {
    let locks = LockManager::in_memory();
    runtime().block_on(async {
        let guard = locks.acquire("order:42").await.expect("it is free");
        for _ in 0..times {
            black_box(black_box(&guard).is_held());
        }
    });
}

fn handed_on(times: u64) {
    let locks = LockManager::in_memory();
    let worker = || {
        let locks = locks.clone();
        async move {
            for _ in 0..times / 2 {
                // On a busy machine, a program under callgrind may hang for seconds.
                let acquire = locks.acquire("order:42").wait(Duration::from_secs(600));
                let guard = acquire.await.expect("in its turn");
                // The other task queues during the hold.
                tokio::task::yield_now().await;
                drop(guard);
            }
        }
    };
    runtime().block_on(async { tokio::join!(worker(), worker()) });
}

fn two_keys(times: u64) {
    let locks = LockManager::in_memory();
    runtime().block_on(async {
        for _ in 0..times {
            let guard = locks.acquire(["account:1", "account:2"]).await;
            drop(black_box(guard.expect("they are free")));
        }
    });
}

fn request(times: u64) {
    async fn trivial(_request: Request<Body>) -> Result<Response<Body>, Infallible> {
        Ok(Response::new(Body::new()))
    }
    let mut service = ServiceBuilder::new()
        .layer(LockLayer::by_path(LockManager::in_memory()))
        .service_fn(trivial);
    runtime().block_on(async {
        for _ in 0..times {
            let request = Request::put("/orders/42").body(Body::new());
            let request = request.expect("a request");
            let ready = service.ready().await.expect("infallible");
            drop(black_box(ready.call(request).await));
        }
    });
}
