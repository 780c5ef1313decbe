//! The page while its service stops, restarts and is under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use serde_json::json;
use tower::ServiceExt as _;
use tower_lock::LockManager;
use tower_lock::dashboard::Dashboard;

use crate::driver::{Browser, SILENT};
use crate::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_with_open_page_stops_within_one_second() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    let took = server.stop().await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    browser.finish(&[SILENT]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_reports_silence_and_reconnects() {
    let server = Server::start().await;
    let (url, port) = (server.url(), server.address.port());
    let browser = Browser::start().await;
    browser.open_live(&url).await;
    let live = "document.getElementById('live').textContent";
    server.stop().await;
    browser
        .until(&format!("{live}.startsWith('No data for')"))
        .await;
    browser
        .until("document.body.classList.contains('stale')")
        .await;

    let server = Server::with(LockManager::in_memory(), Dashboard::unprotected, port).await;
    browser.until(&format!("{live}.startsWith('Live')")).await;
    browser
        .until("!document.body.classList.contains('stale')")
        .await;
    // Another process has the port now.
    browser
        .until("document.getElementById('n-instance') !== null")
        .await;
    server.stop().await;
    browser.finish(&[SILENT]).await;
}

/// The stream stays with one process, and two processes answer the other requests in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unpinned_page_asks_for_few_summaries() {
    let managers = [(); 2].map(|()| LockManager::in_memory());
    let boards = managers.clone().map(|locks| {
        let board = Dashboard::new(locks).unprotected().router();
        Router::new().nest("/ops/locks", board)
    });
    let [requests, summaries] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&summaries);
    let balancer = move |request: Request| {
        let path = request.uri().path();
        // The first summary is of another process than the stream, whatever the page asks for in between.
        let turn = match path {
            _ if path.ends_with("/stream") => 0,
            _ if path.ends_with("/summary") => (counted.fetch_add(1, Ordering::SeqCst) + 1) % 2,
            _ => requests.fetch_add(1, Ordering::SeqCst) % 2,
        };
        boards[turn].clone().oneshot(request)
    };
    let [locks, _] = managers;
    let server = Server::serve(locks, Router::new().fallback(balancer), 0).await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    // The page also asks for the keys, by age, every two seconds.
    let select = "const sort = document.getElementById('sort');
        sort.value = [...sort.options].map(it => it.value).find(it => it !== 'waiters');
        sort.dispatchEvent(new Event('change'));";
    browser.run(select).await.unwrap();
    browser
        .until("document.getElementById('n-instance') !== null")
        .await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    browser.until("summary.instance === frame.instance").await;
    let summaries = summaries.load(Ordering::SeqCst);
    // One when it opens, and one every two seconds until the process of the stream replies.
    assert!(summaries <= 6, "{summaries} requests");
    browser.finish(&[]).await;
}

/// A page in the background costs nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_page_closes_its_stream() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.hide().await;
    browser.until("document.hidden").await;
    browser.until("source === null").await;
    let guard = server.locks.acquire("order:42").await.unwrap();
    browser.show().await;
    browser
        .until("source?.readyState === EventSource.OPEN")
        .await;
    browser.until_listed(1).await;
    drop(guard);
    browser.finish(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_shows_first_of_many_keys() {
    const KEYS: usize = 100_000;
    let server = Server::start().await;
    let mut guards = Vec::with_capacity(KEYS);
    for n in 0..KEYS {
        guards.push(server.locks.acquire(format!("order:{n}")).await.unwrap());
    }
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(100).await;
    assert_eq!(browser.text("#totals div:first-child dd").await, "100,000");
    assert_eq!(
        browser.text("#more").await,
        "99,900 more keys are not listed."
    );
    // Two more frames come in time.
    let live = browser.text("#live").await;
    browser
        .until(&format!(
            "document.getElementById('live').textContent > {}",
            json!(live)
        ))
        .await;
    drop(guards);
    browser.finish(&[]).await;
}
