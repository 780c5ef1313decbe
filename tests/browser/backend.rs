//! The page while the server of the locks is down.

use std::future::IntoFuture as _;
use std::time::Duration;

use tower_lock::dashboard::Dashboard;

use crate::driver::{Browser, UNAVAILABLE};
use crate::server::Server;
use crate::support::engine::{PATIENCE, manager};
use crate::support::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(60);

async fn look_up(browser: &Browser, key: &str, shown: &[&str]) {
    let script = format!(
        "document.getElementById('detail').close();
         document.getElementById('key').value = '{key}';
         document.getElementById('find').requestSubmit();"
    );
    browser.run(&script).await.unwrap();
    browser.until_details_open().await;
    for text in shown {
        let dialog = "document.getElementById('detail').innerText";
        browser.until(&format!("{dialog}.includes('{text}')")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_show_unavailable_backend() {
    let mut redis = RedisServer::start();
    let here = manager(redis.url(), LEASE).await;
    let there = manager(redis.url(), LEASE).await;
    let own = here.acquire("own").await.unwrap();
    let other = there.acquire("other").await.unwrap();
    let waiter = tokio::spawn(here.acquire("other").wait(PATIENCE * 3).into_future());
    let service = Server::with(here, Dashboard::unprotected, 0).await;
    let browser = Browser::start().await;
    browser.open_live(&service.url()).await;
    let cells = |text: &str| {
        format!(
            "[...document.querySelectorAll('#keys td')].some(it => it.textContent === '{text}')"
        )
    };
    browser.until(&cells("elsewhere")).await;
    redis.kill();
    browser.until(&cells("backend unavailable")).await;

    let unavailable = "lock backend is unavailable: ";
    let token = own.fencing_token().to_string();
    let own_lock = "held by this process, not confirmed by the backend";
    look_up(&browser, "own", &[own_lock, &token, unavailable]).await;
    let others_lock = "unknown: the backend did not reply";
    look_up(&browser, "other", &[others_lock, unavailable]).await;
    waiter.abort();
    drop((own, other));
    browser.finish(&[UNAVAILABLE]).await;
}
