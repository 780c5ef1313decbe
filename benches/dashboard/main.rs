//! The CPU time of an open dashboard: `cargo bench -p tests --bench dashboard --features dashboard`. It prints a Markdown table.
//! With `-- 900`, it first waits for so many seconds, after which the plots are full.
//!
//! It requires Chromium, which `make browser` installs, and Linux.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr
)]

#[path = "../../tests/browser/actions.rs"]
#[allow(dead_code)]
mod actions;
mod cpu;
#[path = "../../tests/browser/driver.rs"]
#[allow(dead_code)]
mod driver;
#[path = "../../tests/browser/server.rs"]
#[allow(dead_code)]
mod server;
#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../speed/table.rs"]
#[allow(dead_code)]
mod table;

use std::time::Duration;

use tokio::time::sleep;
use tower_lock::LockManager;

use driver::Browser;
use server::Server;
use table::{Series, Table};

const KEYS: usize = 100_000;
const ROUNDS: usize = 5;
/// A window has as many rounds of the watchdog as any other.
const WINDOW: Duration = Duration::from_secs(20);
const SETTLING: Duration = Duration::from_secs(3);

/// Acquires one key again and again, so that the figures on the page change.
async fn acquire_hot_key(locks: LockManager) {
    while let Ok(guard) = locks.acquire("hot").await {
        sleep(Duration::from_millis(20)).await;
        drop(guard);
    }
}

async fn measure(warm_up: Duration) -> Table {
    let server = Server::start().await;
    let mut guards = Vec::with_capacity(KEYS);
    for n in 0..KEYS {
        guards.push(server.locks.acquire(format!("order:{n}")).await.unwrap());
    }
    for _ in 0..3 {
        tokio::spawn(acquire_hot_key(server.locks.clone()));
    }
    sleep(warm_up).await;
    let browser = Browser::start().await;
    let [mut idle_server, mut more, mut idle_browser, mut page] = [(); 4].map(|()| Series::new());
    for round in 1..=ROUNDS {
        browser.open("about:blank").await;
        sleep(SETTLING).await;
        let idle = cpu::shares(WINDOW).await;
        browser.open_live(&server.url()).await;
        browser.until_listed(100).await;
        sleep(SETTLING).await;
        let open = cpu::shares(WINDOW).await;
        idle_server.add(idle.server);
        more.add(open.server - idle.server);
        idle_browser.add(idle.browser);
        page.add(open.browser);
        eprintln!("round {round} of {ROUNDS}");
    }
    browser.finish(&[]).await;
    let mut table = Table::new();
    let share = |series: &Series| format!("{} % of a core", series.plain());
    let mut row = |what: &str, series: &Series, limit: &str| {
        table.row(what.to_owned(), share(series), limit.to_owned());
    };
    row(
        "the server, 100,000 keys held, no page open",
        &idle_server,
        "",
    );
    row(
        "the server with a page open, beyond that",
        &more,
        "at most 1 %",
    );
    row("the browser with an empty page", &idle_browser, "");
    row(
        "the browser with the dashboard: 100 rows, 6 plots, 1 Hz, no GPU",
        &page,
        "at most 5 %",
    );
    drop(guards);
    table
}

fn main() {
    // `cargo test --benches` passes this option, and this program has no tests.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let seconds = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let warm_up = Duration::from_secs(seconds.unwrap_or_default());
    runtime.block_on(measure(warm_up)).print();
}
