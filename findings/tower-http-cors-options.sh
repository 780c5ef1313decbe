#!/usr/bin/env bash
# tower-http 0.7.1, `CorsLayer`: it takes each request with the method OPTIONS for a preflight, and responds with 200 itself.
# The service never receives an OPTIONS request, neither one without the headers of a preflight nor the one for `*` that
# asks about the server. A handler of the program for OPTIONS, such as one of WebDAV, is never called.
#
# From the crates tower-http 0.7.1, tower 0.5.3 and http 1.5.0 (requires Rust).
#
# Output seen:
#
#   GET / with 0 headers: 418 by the service
#   OPTIONS / with 2 headers: 200 by the layer
#   OPTIONS / with 1 headers: 200 by the layer
#   OPTIONS / with 0 headers: 200 by the layer
#   OPTIONS * with 0 headers: 200 by the layer
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.0.0"
edition = "2021"

[dependencies]
http = "=1.5.0"
tokio = { version = "1", features = ["macros", "rt"] }
tower = { version = "=0.5.3", features = ["util"] }
tower-http = { version = "=0.7.1", features = ["cors"] }
TOML
cat >src/main.rs <<'RUST'
use std::convert::Infallible;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::CorsLayer;

async fn service(_: Request<String>) -> Result<Response<String>, Infallible> {
    Ok(Response::builder().status(418).body(String::new()).unwrap())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let requests = [
        ("GET", "/", &[][..]),
        ("OPTIONS", "/", &[("origin", "https://a.example"), ("access-control-request-method", "PUT")]),
        ("OPTIONS", "/", &[("origin", "https://a.example")]),
        ("OPTIONS", "/", &[]),
        ("OPTIONS", "*", &[]),
    ];
    for (method, target, headers) in requests {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let cors = CorsLayer::new().layer(service_fn(service));
        let response = cors.oneshot(request.body(String::new()).unwrap()).await.unwrap();
        let by = if response.status() == 418 { "the service" } else { "the layer" };
        println!("{method} {target} with {} headers: {} by {by}", headers.len(), response.status().as_u16());
    }
}
RUST
cargo run --quiet >seen 2>errors || { cat errors >&2; exit 1; }
cat seen
cd - >/dev/null
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") "$folder/seen"
