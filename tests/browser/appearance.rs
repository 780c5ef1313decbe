//! Light and dark, small screens, and the picture of the documentation.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fantoccini::key::Key;
use serde_json::{Value, json};
use tower_lock::LockGuard;
use tower_lock::dashboard::Dashboard;

use crate::driver::{Browser, SILENT};
use crate::server::Server;
use crate::support::engine::{PATIENCE, manager};
use crate::support::example;
use crate::support::redis_server::RedisServer;

/// Returns the text of visible elements whose contrast with their background is below 4.5. Opacity counts.
const FAINT: &str = "(() => {
    const parse = color => {
        const c = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
        c.fillStyle = color; c.fillRect(0, 0, 1, 1);
        return [...c.getImageData(0, 0, 1, 1).data];
    };
    const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, at) => sum + v * [.2126, .7152, .0722][at], 0);
    const background = element => {
        for (let it = element; it; it = it.parentElement) {
            const color = parse(getComputedStyle(it).backgroundColor);
            if (color[3] === 255) return color;
        }
        return [255, 255, 255, 255];
    };
    const faint = [];
    for (const element of document.querySelectorAll('body *')) {
        const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (!own || !element.checkVisibility() || element.tagName === 'SCRIPT') continue;
        const behind = background(element), color = parse(getComputedStyle(element).color);
        let share = color[3] / 255;
        for (let it = element; it; it = it.parentElement) share *= getComputedStyle(it).opacity;
        const mixed = behind.map((v, at) => v + (color[at] - v) * share);
        const [a, b] = [mixed, behind].map(luminance).sort((x, y) => y - x);
        const contrast = (a + .05) / (b + .05);
        if (contrast < 4.5) faint.push(`${element.textContent.slice(0, 40)}: ${contrast.toFixed(2)}`);
    }
    return faint;
})()";

/// Returns the elements that do not fit on a small screen.
const WIDE: &str = "[...document.querySelectorAll('body *')]
    .filter(it => it.checkVisibility() && it.getBoundingClientRect().right > 361 && !it.closest('legend, svg'))
    .map(it => it.tagName + it.id)";

async fn expect_contrast(browser: &Browser, state: &str) {
    for scheme in ["light", "dark"] {
        browser.prefers("color-scheme", scheme).await;
        assert_eq!(browser.value(FAINT).await, json!([]), "{state}, {scheme}");
        browser.screenshot(&format!("{state}-{scheme}.png")).await;
    }
}

async fn expect_narrow(browser: &Browser, state: &str) {
    browser.resize(360, 740).await;
    assert_eq!(browser.value(WIDE).await, json!([]), "{state}");
    assert_eq!(
        browser.value("document.documentElement.scrollWidth").await,
        json!(360),
        "{state}"
    );
    browser.screenshot(&format!("{state}-small.png")).await;
    browser.resize(1280, 900).await;
}

async fn with_keys(server: &Server) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    let long =
        "/customers/4711/orders/000000000000000000042/items/a-long-name-without-any-space-in-it";
    for key in ["order:1", "order:2", long, "evil\u{202e}gpj.exe"] {
        let layer = "orders-with-a-name-that-is-longer-than-the-screen-is-wide-and-has-no-space";
        guards.push(server.locks.acquire(key).name(layer).await.unwrap());
    }
    guards
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_has_contrast_in_light_and_dark() {
    let server = Server::start().await;
    let guards = with_keys(&server).await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(4).await;
    expect_contrast(&browser, "fresh").await;
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefers("color-scheme", scheme).await;
        backgrounds.push(
            browser
                .value("getComputedStyle(document.documentElement).backgroundColor")
                .await,
        );
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    drop(guards);
    browser.finish(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reduced_motion_has_no_animation() {
    let server = Server::start().await;
    let guards = with_keys(&server).await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(4).await;
    browser.click_first_key().await;
    let moving = "[...document.querySelectorAll('*')].some(it => getComputedStyle(it).animationName !== 'none' || getComputedStyle(it).transitionDuration !== '0s')";
    for (motion, is_moving) in [("no-preference", true), ("reduce", false)] {
        browser.prefers("reduced-motion", motion).await;
        assert_eq!(browser.value(moving).await, json!(is_moving), "{motion}");
    }
    drop(guards);
    browser.finish(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_screen_needs_no_horizontal_scroll() {
    let server = Server::start().await;
    let guards = with_keys(&server).await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(4).await;
    expect_narrow(&browser, "fresh").await;
    browser.click_first_key().await;
    expect_narrow(&browser, "dialog").await;
    drop(guards);
    browser.finish(&[]).await;
}

/// Losses, a notice, the form of a forced release, keys that left, an outage, and a process that does not reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_is_readable_in_every_state() {
    let mut redis = RedisServer::start();
    let locks = manager(redis.url(), PATIENCE).await;
    let board = |board: Dashboard| board.unprotected().allow_force_release(|_| Ok(()));
    let server = Server::with(locks.clone(), board, 0).await;
    let guards = with_keys(&server).await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(4).await;
    assert!(locks.force_release("order:1").await.unwrap());
    browser
        .until("document.getElementById('losses').textContent !== ''")
        .await;
    browser.run("instance('another process')").await.unwrap();
    browser
        .until("document.querySelector('#notices li') !== null")
        .await;

    browser.enter_first_key().await;
    browser.tab_to("#f-confirm").await;
    browser.keys("another key").await;
    browser.tab_to("#f-reason").await;
    browser.keys("the handler hangs").await;
    browser.press(Key::Enter).await;
    browser
        .until("document.getElementById('f-result').textContent !== ''")
        .await;
    expect_contrast(&browser, "release").await;
    expect_narrow(&browser, "release").await;

    // The focus returns to the row, so that those of keys that left stay.
    browser.press(Key::Escape).await;
    drop(guards);
    browser
        .until("document.querySelectorAll('tr.gone').length > 0")
        .await;
    redis.kill();
    locks.inspect("order:1").await.unwrap_err();
    browser
        .until("document.querySelector('#servers .bad') !== null")
        .await;
    expect_contrast(&browser, "outage").await;
    expect_narrow(&browser, "outage").await;

    server.stop().await;
    browser
        .until("document.body.classList.contains('stale')")
        .await;
    expect_contrast(&browser, "silence").await;
    expect_narrow(&browser, "silence").await;
    let border = "getComputedStyle(document.querySelector('figure')).borderTopStyle";
    assert_eq!(browser.value(border).await, json!("dashed"));
    browser.finish(&[SILENT]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controls_and_plots_have_names() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    let nameless = "[...document.querySelectorAll('input, select')].filter(it => !it.labels.length).map(it => it.id)";
    assert_eq!(browser.value(nameless).await, json!([]));
    let plots = "[...document.querySelectorAll('svg')].map(it => it.getAttribute('aria-label'))";
    let Value::Array(plots) = browser.value(plots).await else {
        panic!("a list");
    };
    assert_eq!(plots.len(), 6);
    assert!(
        plots.iter().all(|label| label
            .as_str()
            .is_some_and(|label| label.contains("axis from 0 to"))),
        "{plots:?}"
    );
    let tables = "[...document.querySelectorAll('table')].every(it => it.caption && [...it.tHead.rows[0].cells].every(th => th.scope === 'col'))";
    assert_eq!(browser.value(tables).await, json!(true));
    assert_eq!(
        browser
            .value("document.querySelectorAll('[role=status]').length")
            .await,
        json!(1)
    );
    browser.finish(&[]).await;
}

/// The example `bank`, which ends with the test.
struct Bank(Child);

impl Drop for Bank {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The picture in the README and in the guide. `STORE=1` replaces it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bank_shows_its_locks() {
    let mut bank = Bank(
        Command::new(example::program("bank"))
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let lines = BufReader::new(bank.0.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let url = lines.find_map(|line| {
        let words = line.split(' ');
        let mut urls = words.filter(|word| word.ends_with("/ops/locks"));
        urls.next().map(str::to_owned)
    });
    let url = url.expect("the bank names its dashboard");
    // The pipe must not fill up.
    let reading = std::thread::spawn(move || lines.for_each(drop));
    let browser = Browser::start().await;
    browser.open_live(&url).await;
    browser
        .until("document.querySelectorAll('#keys tbody tr').length >= 3")
        .await;
    browser
        .until("+document.querySelector('#keys tbody .n')?.textContent >= 1")
        .await;
    // The plots show some seconds.
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    browser.resize(1240, 1000).await;
    let picture = browser.screenshot("bank.png").await;
    assert!(picture.len() < 200 * 1024, "{} bytes", picture.len());
    if std::env::var_os("STORE").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/dashboard.png");
        std::fs::write(path, &picture).unwrap();
    }
    browser.finish(&[]).await;
    drop(bank);
    reading.join().unwrap();
}
