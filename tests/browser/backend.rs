//! The page while the server of the locks is down.

use std::future::IntoFuture as _;
use std::time::Duration;

use fantoccini::key::Key;
use serde_json::json;
use tower_lock::ErrorKind;
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

/// A frame has the last eight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_incidents_are_listed_on_request() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    let receive = |incidents: usize| {
        format!(
            "const real = window.fetch;
            window.all = Array.from({{ length: 256 }}, (_, n) => ({{ at: n, text: 'incident ' + n }}));
            window.fetch = async (url, options) => url.endsWith('incidents') ? Response.json(all) : real(url, options);
            source.close();
            receive({{ data: JSON.stringify({{ ...frame, incidents: all.slice(256 - {incidents}) }}) }});
            return document.getElementById('earlier').checkVisibility();"
        )
    };
    let is_shown = browser.run(&receive(7)).await.unwrap();
    assert_eq!(is_shown, json!(false));
    let is_shown = browser.run(&receive(8)).await.unwrap();
    assert_eq!(is_shown, json!(true));
    let texts =
        |id: &str| format!("[...document.querySelectorAll('#{id} li')].map(it => it.textContent)");
    assert_eq!(
        browser
            .value(&format!("{}.length", texts("incidents")))
            .await,
        json!(8)
    );
    browser.tab_to("#earlier summary").await;
    browser.press(Key::Enter).await;
    browser
        .until(&format!("{}.length === 256", texts("all")))
        .await;
    for (at, last) in [(0, "incident 255"), (255, "incident 0")] {
        browser
            .until(&format!("{}[{at}].endsWith(' {last}')", texts("all")))
            .await;
    }
    browser.finish(&[]).await;
}

/// Returns an expression that is true if the plot has a line in each of its series.
fn has_lines(title: &str) -> String {
    format!(
        "[...[...document.querySelectorAll('figure')].find(it => it.querySelector('b').textContent === '{title}')
            .querySelectorAll('path')].every(it => it.getAttribute('d').includes('L'))"
    )
}

/// Returns an expression that is true if a line of a total matches: 0 is its value, and 1 its note.
fn tile(name: &str, line: usize, expected: &str) -> String {
    format!(
        "/{expected}/.test([...document.querySelectorAll('#totals div')]
            .find(it => it.querySelector('dt').textContent === '{name}')?.querySelectorAll('dd')[{line}].textContent)"
    )
}

/// The reply for a day, which a process has only after some time: 90 points, the first of them 89.5 minutes old.
const DAY: &str = "
    const real = window.fetch, column = figure => Array.from({ length: 90 }, (_, n) => figure(n));
    const day = { at: column(n => frame.at - (89.5 - n) * 60e3), held: column(n => n) };
    const reply = async (url, options) => url.endsWith('range=24h') ? Response.json(day) : real(url, options);
    window.fetch = reply;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losses_and_plots_follow_locks() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    assert_eq!(browser.text("#losses").await, "");
    let guard = server.locks.acquire("order:42").await.unwrap();
    let rejected = server.locks.acquire("order:42").no_wait().await;
    assert_eq!(rejected.unwrap_err().kind(), ErrorKind::Busy);
    browser.until(&tile("Rejected", 1, "^busy 1$")).await;
    browser
        .until(&tile("Oldest hold", 0, r"^[\d.]+ m?s$"))
        .await;
    assert!(server.locks.force_release("order:42").await.unwrap());
    let losses = "document.getElementById('losses').textContent";
    browser
        .until(&format!(
            "/^1 lock was lost at .*: forced 1\\.$/.test({losses})"
        ))
        .await;
    browser.until(&tile("Lost", 0, "^1$")).await;
    browser.until(&tile("Lost", 1, "^forced 1$")).await;
    drop(guard);
    browser.until(&tile("Oldest hold", 0, "^–$")).await;
    // Waits and holds have a point in each second with an event.
    browser
        .until("[...document.querySelectorAll('path')].every(it => it.getAttribute('d') !== '')")
        .await;
    for title in [
        "Grants",
        "Waiting acquires",
        "Held keys",
        "Rejected and lost",
    ] {
        browser.until(&has_lines(title)).await;
    }

    let ranges = "[...document.querySelectorAll('.axis span:first-child:not(:last-child)')].map(it => it.textContent)";
    let all =
        |text: &str| format!("{ranges}.length === 6 && {ranges}.every(it => it === '{text}')");
    browser.until(&all("1 min ago")).await;
    browser.run(DAY).await.unwrap();
    let select =
        |range: &str| format!("document.querySelector('#range input[value=\"{range}\"]').click()");
    browser.run(&select("24h")).await.unwrap();
    browser.until(&all("90 min ago")).await;
    let held = "document.querySelectorAll('figure')[4]";
    let points = format!("{held}.querySelector('path').getAttribute('d').split('L').length");
    assert_eq!(browser.value(&points).await, json!(90));
    let label = browser
        .value(&format!(
            "{held}.querySelector('svg').getAttribute('aria-label')"
        ))
        .await;
    assert_eq!(label, json!("Held keys: now 89; axis from 0 to 100"));
    browser.run(&select("15m")).await.unwrap();
    browser.until(&all("1 min ago")).await;
    browser.until(&has_lines("Held keys")).await;
    browser.finish(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_is_shown_with_cause_and_end() {
    let mut redis = RedisServer::start();
    let address = redis.address();
    let locks = manager(redis.url(), LEASE).await;
    let server = Server::with(locks.clone(), Dashboard::unprotected, 0).await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    // Other tests of this program have servers, too.
    let has = |list: &str, expected: &str| {
        format!(
            "[...document.querySelectorAll('#{list} li')].some(it => /{expected}/.test(it.textContent))"
        )
    };
    let up = has("servers", &format!("^up {address} · commands since "));
    browser.until(&up).await;
    redis.kill();
    locks.inspect("order:42").await.unwrap_err();
    let down = has(
        "servers",
        &format!("^DOWN {address} · commands since .* · 1 incident · .+"),
    );
    let began = has("incidents", &format!("{address} commands is down: .+"));
    browser.until(&format!("{down} && {began}")).await;
    redis.launch_again();
    let ended = has("incidents", &format!("{address} commands is up again$"));
    browser.until(&format!("{up} && {ended}")).await;
    browser.finish(&[]).await;
}
