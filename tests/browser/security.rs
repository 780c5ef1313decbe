//! The policy of the page, and pages of other sites.

use axum::Router;
use axum::response::Html;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;
use tower_lock::LockManager;

use crate::driver::Browser;
use crate::server::Server;

/// The other tests rely on this: a violation is visible to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliberate_violation_is_seen() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    assert_eq!(browser.console().await, Vec::<String>::new());

    let add = |name: &str, field: &str, value: &str| {
        format!(
            "const it = document.createElement('{name}'); it.{field} = '{value}'; document.body.append(it)"
        )
    };
    for (what, script) in [
        ("style-src", add("style", "textContent", "body { color: red }")),
        ("img-src", add("img", "src", "http://127.0.0.1:1/x.png")),
        ("connect-src", "fetch('http://127.0.0.1:1/').catch(() => {})".to_owned()),
        ("form-action", "const it = document.createElement('form'); it.action = 'http://127.0.0.1:1/'; document.body.append(it); it.submit()".to_owned()),
    ] {
        browser.run(&script).await.unwrap();
        let mut log = Vec::new();
        for _ in 0..100 {
            log.extend(browser.console().await);
            if log.iter().any(|line| line.contains(what)) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(log.iter().any(|line| line.contains(what)), "{what}: {log:?}");
    }

    // Text cannot become markup or code, even by mistake.
    for script in [
        "document.body.innerHTML = '<b>x</b>'",
        "document.createElement('script').text = '1'",
        "new DOMParser().parseFromString('<b>', 'text/html')",
        "window.trustedTypes.createPolicy('p', {})",
    ] {
        let error = browser.run(script).await.unwrap_err().to_string();
        assert!(
            error.contains("TypeError") || error.contains("rusted"),
            "{script}: {error}"
        );
    }
    browser.finish(&["violates", "Trusted"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_is_not_framed() {
    let server = Server::start().await;
    let frame = format!("<iframe src='{}'></iframe>", server.url());
    let other = Router::new().route("/", get(move || std::future::ready(Html(frame.clone()))));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(axum::serve(listener, other).into_future());
    let browser = Browser::start().await;
    browser.open(&format!("http://{address}/")).await;
    let mut log = Vec::new();
    for _ in 0..100 {
        log.extend(browser.console().await);
        if log.iter().any(|line| line.contains("frame")) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let refused =
        |line: &String| line.contains("frame-ancestors") || line.contains("X-Frame-Options");
    assert!(log.iter().any(refused), "{log:?}");
    serving.abort();
    browser.finish(&["frame", "/favicon.ico"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_dashboard_explains_protection() {
    let server = Server::with(LockManager::in_memory(), |board| board, 0).await;
    let browser = Browser::start().await;
    browser.open(&server.url()).await;
    let text = browser.text("body").await;
    assert!(text.contains("The lock dashboard is closed"), "{text}");
    browser.finish(&["status of 403"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_page_offers_no_release() {
    let server = Server::start().await;
    let guard = server.locks.acquire("order:42").await.unwrap();
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(1).await;
    browser.click_first_key().await;
    let hidden = "document.getElementById('force').checkVisibility()";
    assert_eq!(browser.value(hidden).await, json!(false));
    drop(guard);
    browser.finish(&[]).await;
}
