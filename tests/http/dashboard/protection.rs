//! Operators, headers and requests of other sites.

use axum::Extension;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use serde_json::json;
use tower_lock::LockManager;
use tower_lock::dashboard::{self, Dashboard, Operator};

use super::support::{HOST, MOUNT, ROUTES, ask, get, open, post, send, served};

/// The policy of each response, without its hashes. The browser tests show that they are those of the page.
const POLICY: &str = "default-src 'none'; script-src 'sha256-'; style-src 'sha256-'; img-src data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// Cuts the 44 digits of each hash.
fn without_hashes(policy: &str) -> String {
    let mut parts = policy.split("'sha256-");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        text.push_str("'sha256-");
        text.push_str(&part[44..]);
    }
    text
}

fn request(method: &str, path: &str) -> http::Request<axum::body::Body> {
    match method {
        "POST" => post(path, &json!({ "key": "order:42" })),
        _ => get(path),
    }
}

#[tokio::test]
async fn request_without_operator_is_forbidden() {
    let locks = LockManager::in_memory();
    let app = served(Dashboard::new(locks));
    for (method, path) in ROUTES {
        let (status, body) = ask(&app, request(method, path)).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{method} {path}");
        let text = body.as_str().unwrap();
        assert!(text.contains("dashboard::Operator"), "{path}: {text}");
    }
}

#[tokio::test]
async fn operator_opens_every_route() {
    let locks = LockManager::in_memory();
    let board = dashboard::router(locks).layer(Extension(Operator::new("ada")));
    let app = axum::Router::new().nest(MOUNT, board);
    for (method, path) in ROUTES {
        let status = send(&app, request(method, path)).await.status();
        let expected = match path {
            "/api/v1/nothing" => StatusCode::NOT_FOUND,
            "/api/v1/force-release" => StatusCode::METHOD_NOT_ALLOWED,
            _ => StatusCode::OK,
        };
        assert_eq!(status, expected, "{method} {path}");
    }
    let (_, summary) = ask(&app, get("/api/v1/summary")).await;
    assert_eq!(summary["operator"], "ada");
}

/// Responses of every status have the headers, so that no proxy stores data and no site frames the page.
#[tokio::test]
async fn every_response_has_protective_headers() {
    let locks = LockManager::in_memory();
    let closed = served(Dashboard::new(locks.clone()));
    let open = open(&locks);
    for (method, path) in ROUTES {
        for app in [&closed, &open] {
            let response = send(app, request(method, path)).await;
            let header = |name: &str| {
                let value = response.headers().get(name);
                value
                    .unwrap_or_else(|| panic!("{path}: {name}"))
                    .to_str()
                    .unwrap()
            };
            assert_eq!(header("cache-control"), "no-store");
            assert_eq!(header("x-content-type-options"), "nosniff");
            assert_eq!(header("x-frame-options"), "DENY");
            assert_eq!(header("referrer-policy"), "no-referrer");
            assert_eq!(header("cross-origin-opener-policy"), "same-origin");
            assert_eq!(header("cross-origin-resource-policy"), "same-origin");
            assert_eq!(header("x-tower-lock-instance").len(), 8);
            let policy = without_hashes(header("content-security-policy"));
            assert_eq!(policy, POLICY, "{path}");
        }
    }
}

/// Each request differs from that of the page in one header.
#[tokio::test]
async fn request_of_other_site_is_forbidden() {
    let app = open(&LockManager::in_memory());
    let good = || post("/api/v1/inspect", &json!({ "key": "order:42" }));
    assert_eq!(ask(&app, good()).await.0, StatusCode::OK);
    let bad: [(&str, Option<&str>); 13] = [
        ("x-tower-lock", None),
        ("x-tower-lock", Some("2")),
        ("content-type", None),
        ("content-type", Some("text/plain")),
        ("content-type", Some("application/x-www-form-urlencoded")),
        ("origin", None),
        ("origin", Some("null")),
        ("origin", Some("https://evil.example")),
        ("origin", Some("https://ops.example.com.evil.example")),
        ("origin", Some("https://ops.example.com:8443")),
        ("sec-fetch-site", Some("cross-site")),
        ("sec-fetch-site", Some("same-site")),
        ("sec-fetch-site", Some("none")),
    ];
    for (name, value) in bad {
        let mut request = good();
        let header = HeaderName::from_static(name);
        match value {
            None => drop(request.headers_mut().remove(header)),
            Some(value) => drop(
                request
                    .headers_mut()
                    .insert(header, HeaderValue::from_static(value)),
            ),
        }
        let status = ask(&app, request).await.0;
        assert_eq!(status, StatusCode::FORBIDDEN, "{name}: {value:?}");
    }
    let mut twice = good();
    twice
        .headers_mut()
        .append("origin", HeaderValue::from_static("https://evil.example"));
    assert_eq!(ask(&app, twice).await.0, StatusCode::FORBIDDEN);
}

/// Browsers that send no fetch metadata still send `Origin`.
#[tokio::test]
async fn request_without_fetch_metadata_is_admitted() {
    let app = open(&LockManager::in_memory());
    let mut request = post("/api/v1/inspect", &json!({ "key": "order:42" }));
    request.headers_mut().remove("sec-fetch-site");
    assert_eq!(ask(&app, request).await.0, StatusCode::OK);
}

#[tokio::test]
async fn other_methods_are_checked_as_well() {
    let app = open(&LockManager::in_memory());
    for method in [Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
        let mut request = get("/api/v1/summary");
        *request.method_mut() = method.clone();
        assert_eq!(
            ask(&app, request).await.0,
            StatusCode::FORBIDDEN,
            "{method}"
        );
    }
}

#[tokio::test]
async fn configured_origin_replaces_host() {
    let board = Dashboard::new(LockManager::in_memory()).unprotected();
    let app = served(board.origin("https://proxy.example"));
    let request = |origin: &'static str| {
        let mut request = post("/api/v1/inspect", &json!({ "key": "order:42" }));
        request
            .headers_mut()
            .insert("origin", HeaderValue::from_static(origin));
        request
    };
    assert_eq!(
        ask(&app, request("https://proxy.example")).await.0,
        StatusCode::OK
    );
    let by_host = format!("https://{HOST}");
    assert_eq!(by_host, "https://ops.example.com");
    assert_eq!(
        ask(&app, request("https://ops.example.com")).await.0,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        ask(&app, request("http://proxy.example")).await.0,
        StatusCode::FORBIDDEN
    );
}

/// A link from another site opens the page. Only the page reads data.
#[tokio::test]
async fn other_site_opens_page_and_reads_no_data() {
    let app = open(&LockManager::in_memory());
    for (method, path) in ROUTES {
        let mut request = request(method, path);
        let cross = HeaderValue::from_static("cross-site");
        request.headers_mut().insert("sec-fetch-site", cross);
        let status = send(&app, request).await.status();
        let expected = match path {
            "" => StatusCode::OK,
            _ => StatusCode::FORBIDDEN,
        };
        assert_eq!(status, expected, "{method} {path}");
    }
}
