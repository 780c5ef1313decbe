//! Keys that a hostile client chooses.

use std::time::Duration;

use serde_json::json;
use tower_lock::LockKey;

use crate::driver::Browser;
use crate::server::Server;

/// Keys that would run code, leave their place or deceive an operator if the page did not treat them as text.
fn corpus() -> Vec<LockKey> {
    let long = "<b>".repeat(200);
    let texts = [
        "<script>window.pwned=1</script>",
        "</script><script>window.pwned=1</script>",
        "</style><style>*{display:none}</style>",
        "<img src=x onerror=window.pwned=1>",
        "<svg onload=window.pwned=1>",
        "<svg><script>window.pwned=1</script></svg>",
        "<iframe srcdoc=\"<script>parent.pwned=1</script>\">",
        "<a href=javascript:window.pwned=1>order:42</a>",
        "javascript:window.pwned=1",
        "\" onmouseover=\"window.pwned=1",
        "' onfocus='window.pwned=1' autofocus='",
        "`${window.pwned=1}`",
        "{{constructor.constructor('window.pwned=1')()}}",
        "<!--",
        "]]>",
        "<base href=//evil.example/>",
        "<meta http-equiv=refresh content=0;url=//evil.example/>",
        "<form action=//evil.example/><input name=key>",
        "<template><b>",
        "<table><tr><td>",
        "__proto__",
        "constructor",
        "toString",
        "a\n\nevent: frame\ndata: {\"held\":999}\n\n",
        "a\r\rdata: x",
        "nul\0byte",
        "line\u{2028}separator\u{2029}",
        "evil\u{202e}gpj.exe",
        "\u{2066}isolate\u{2069}",
        "\u{200b}invisible\u{feff}",
        "soft\u{ad}hyphen",
        "no\u{a0}break",
        "back\\u202eslash",
        "\u{1b}[31mred",
        "e\u{301}\u{301}\u{301}\u{301}\u{301}\u{301}\u{301}\u{301}",
        "مفتاح:42",
        "&lt;b&gt;&#x3c;",
        "%3Cscript%3E",
        "\u{e000}private",
        &long,
    ];
    let mut keys: Vec<_> = texts.iter().map(LockKey::new).collect();
    keys.push(LockKey::from_parts([&b"\xff\xfe"[..], &b"<script>"[..]]));
    keys
}

/// Returns the text by which the page shows a key.
fn shown(key: &str) -> String {
    let mut text = String::new();
    for c in key.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\u{a0}' | '\u{ad}' | '\u{200b}' | '\u{feff}' | '\u{e000}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => text.push(c),
        }
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_keys_are_shown_as_text() {
    let server = Server::start().await;
    let keys = corpus();
    assert!(keys.len() >= 30);
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(server.locks.acquire(key).await.unwrap());
    }
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(keys.len()).await;
    let mut expected: Vec<_> = keys.iter().map(|key| shown(key.as_str())).collect();
    expected.sort_unstable();
    assert_eq!(texts_in(&browser, "#keys").await, expected);

    // Each key is looked up as it is listed.
    for at in [0, 7, 20, keys.len() - 1] {
        let row = format!("document.querySelectorAll('#keys td button')[{at}]");
        let click = format!("window.row = {row}; window.row.click()");
        browser.run(&click).await.unwrap();
        browser.until_details_open().await;
        let found = "document.querySelector('#d-list dd').textContent";
        assert_eq!(browser.value(found).await, json!("held by this process"));
        let same = "document.querySelector('#d-key bdi').textContent === window.row.textContent";
        assert_eq!(browser.value(same).await, json!(true));
        browser
            .run("document.getElementById('d-close').click()")
            .await
            .unwrap();
        // Below the rate limit.
        browser
            .until("!document.getElementById('detail').open")
            .await;
    }

    expect_harmless(&browser).await;
    drop(guards);
    browser.finish(&[]).await;
}

/// The page lists twenty hot keys: the next ones wait more often than those before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_hot_keys_are_shown_as_text() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    for (keys, waits) in corpus().chunks(20).zip(1..) {
        for key in keys {
            let guard = server.locks.acquire(key).await.unwrap();
            for _ in 0..waits {
                let waiter = server.locks.acquire(key).wait(Duration::from_millis(1));
                waiter.await.unwrap_err();
            }
            drop(guard);
        }
        let waited = format!(
            "[...document.querySelectorAll('#hot tr')].filter(it => it.cells[1].textContent === '{waits}').length"
        );
        browser.until(&format!("{waited} === {}", keys.len())).await;
        let seen = texts_in(&browser, "#hot").await;
        for key in keys {
            let key = shown(key.as_str());
            assert!(seen.contains(&key), "{key} in {seen:?}");
        }
    }
    expect_harmless(&browser).await;
    browser.finish(&[]).await;
}

/// Returns the keys in a table, in the order of their characters.
async fn texts_in(browser: &Browser, table: &str) -> Vec<String> {
    let texts =
        format!("[...document.querySelectorAll('{table} bdi')].map(bdi => bdi.textContent)");
    let mut seen: Vec<String> = serde_json::from_value(browser.value(&texts).await).unwrap();
    seen.sort_unstable();
    seen
}

/// Expects that no key has run code or added elements.
async fn expect_harmless(browser: &Browser) {
    assert_eq!(
        browser.value("window.pwned === undefined").await,
        json!(true)
    );
    let foreign = "document.querySelectorAll('main img, main iframe, main script, main base, main svg script, table form').length";
    assert_eq!(browser.value(foreign).await, json!(0));
    assert_eq!(browser.value("document.scripts.length").await, json!(1));
    let wide = "document.documentElement.scrollWidth <= window.innerWidth";
    assert_eq!(
        browser.value(wide).await,
        json!(true),
        "a key widens the page"
    );
}

/// An operator copies a key from the page into the field of the search.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shown_key_is_found_when_pasted() {
    let server = Server::start().await;
    let keys = [
        "evil\u{202e}gpj.exe",
        "back\\u202eslash",
        "two\\\\",
        "tag\u{e0041}",
    ];
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    for key in keys {
        let guard = server.locks.acquire(LockKey::new(key)).await.unwrap();
        browser.until_listed(1).await;
        let paste = "document.getElementById('key').value = document.querySelector('#keys bdi').textContent;
            document.getElementById('find').requestSubmit();";
        browser.run(paste).await.unwrap();
        browser.until_details_open().await;
        let token = guard.fencing_token().to_string();
        let list = "document.getElementById('d-list').innerText";
        browser.until(&format!("{list}.includes('{token}')")).await;
        browser
            .run("document.getElementById('detail').close()")
            .await
            .unwrap();
        drop(guard);
        browser.until_listed(0).await;
    }
    browser.finish(&[]).await;
}
