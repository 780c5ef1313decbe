//! The page under the hands of an operator.

use std::future::IntoFuture as _;
use std::time::Duration;

use axum::Router;
use fantoccini::key::Key;
use futures_util::poll;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tower_lock::LockManager;
use tower_lock::dashboard::Dashboard;

use crate::driver::{Browser, CONFLICT, TOO_MANY};
use crate::server::Server;
use crate::support::simulated::{Simulated, unreleasing};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_follows_locks() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    assert_eq!(browser.text("#more").await, "No key is held or waited for.");
    let guard = server.locks.acquire("order:42").name("orders\u{202e}");
    let guard = guard.await.unwrap();
    let mut waiter = server.locks.acquire("order:42").into_future();
    assert!(poll!(&mut waiter).is_pending());
    browser.until_listed(1).await;
    browser
        .until("document.querySelector('#keys tbody .n')?.textContent === '1'")
        .await;
    assert_eq!(browser.text("#keys bdi").await, "order:42");
    assert_eq!(browser.text("#keys small").await, "orders\\u202e");
    browser.click_first_key().await;
    let list = browser.text("#d-list").await;
    assert!(list.contains("Layer\norders\\u202e"), "{list}");
    browser.press(Key::Escape).await;
    drop((guard, waiter));
    browser.until_listed(0).await;
    browser.finish(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_under_other_path_follows_locks() {
    let locks = LockManager::in_memory();
    let board = Dashboard::new(locks.clone()).unprotected().router();
    let server = Server::serve(locks, Router::new().nest("/a/b", board), 0).await;
    let browser = Browser::start().await;
    browser
        .open_live(&format!("http://{}/a/b", server.address))
        .await;
    let _guard = server.locks.acquire("order:42").await.unwrap();
    browser.until_listed(1).await;
    browser.click_first_key().await;
    browser.finish(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_is_looked_up_by_keyboard_alone() {
    let server = Server::start().await;
    let guard = server.locks.acquire("order:42").await.unwrap();
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.tab_to("#key").await;
    browser.keys("order:42").await;
    browser.press(Key::Enter).await;
    browser.until_details_open().await;
    // The dialog is drawn after it opens.
    for shown in [guard.owner().to_string(), guard.fencing_token().to_string()] {
        let list = "document.getElementById('d-list').innerText";
        browser.until(&format!("{list}.includes('{shown}')")).await;
    }
    browser.press(Key::Escape).await;
    browser
        .until("!document.getElementById('detail').open")
        .await;
    assert_eq!(
        browser.value("document.activeElement.id").await,
        json!("key")
    );
    // The list of keys comes after the search.
    browser.enter_first_key().await;
    drop(guard);
    browser.finish(&[]).await;
}

/// A row with the focus stays in its place, so that Enter opens the key that the operator sees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn focus_stays_on_key_across_frames() {
    let server = Server::start().await;
    let guards = [
        server.locks.acquire("a").await.unwrap(),
        server.locks.acquire("b").await.unwrap(),
    ];
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(2).await;
    browser.run("[...document.querySelectorAll('#keys td button')].find(it => it.textContent === 'b').focus()").await.unwrap();
    // Waiters would move `a` to the first place, and new keys come.
    let mut waiter = server.locks.acquire("a").into_future();
    assert!(poll!(&mut waiter).is_pending());
    let other = server.locks.acquire("c").await.unwrap();
    browser.until_listed(3).await;
    assert_eq!(
        browser.value("document.activeElement.textContent").await,
        json!("b")
    );
    drop((guards, other));
    browser
        .until("document.querySelectorAll('#keys tr.gone').length > 0")
        .await;
    assert_eq!(
        browser.value("document.activeElement.textContent").await,
        json!("b")
    );
    browser.run("document.activeElement.blur()").await.unwrap();
    drop(waiter);
    browser.until_listed(0).await;
    browser.finish(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_that_were_not_counted_are_shown() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    for (waits, missed, expected) in [
        (0, 0, "No acquire has waited in the last minutes."),
        (1, 0, ""),
        (1, 1234, "1,234 waits were not counted."),
    ] {
        let hot = vec![json!({ "key": "k", "waits": 1, "waited_ms": 1 }); waits];
        let script = format!(
            "const event = new MessageEvent('frame', {{
                data: JSON.stringify({{ ...frame, hot: {}, hot_missed: {missed} }}),
            }});
            source.dispatchEvent(event);
            return document.getElementById('hot-more').textContent;",
            json!(hot)
        );
        assert_eq!(browser.run(&script).await.unwrap(), json!(expected));
    }
    browser.finish(&[]).await;
}

/// Keys come and go while a row has the focus.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_beside_focus_are_bounded() {
    let server = Server::start().await;
    let _guard = server.locks.acquire("focus").await.unwrap();
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(1).await;
    browser
        .run("document.querySelector('#keys td button').focus()")
        .await
        .unwrap();
    for round in 0..4 {
        let mut guards = Vec::new();
        for key in 0..99 {
            let key = format!("{round}:{key}");
            guards.push(server.locks.acquire(key).await.unwrap());
        }
        let listed = format!(
            "[...document.querySelectorAll('#keys td button')].some(it => it.textContent === '{round}:0')"
        );
        browser.until(&listed).await;
    }
    browser
        .until("document.querySelectorAll('#keys tr.gone').length > 0")
        .await;
    let rows = browser
        .value("document.querySelectorAll('#keys tbody tr').length")
        .await;
    assert!(rows.as_u64().unwrap() <= 200, "{rows}");
    assert_eq!(
        browser.value("document.activeElement.textContent").await,
        json!("focus")
    );
    browser.finish(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_look_up_shows_its_reason() {
    let server = Server::start().await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    let script = "
        const texts = () => ['find-error', 'd-error'].map(id => document.getElementById(id).textContent);
        const observer = new MutationObserver(() => { window.seen ||= texts().includes('too many requests'); });
        observer.observe(document.body, { subtree: true, childList: true });
        document.getElementById('key').value = 'order:42';
        setInterval(() => document.getElementById('find').requestSubmit(), 20);";
    browser.run(script).await.unwrap();
    browser.until("window.seen === true").await;
    browser.finish(&[TOO_MANY]).await;
}

/// An operator releases a key with the keyboard alone, and only that of the owner on the page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_is_released_by_keyboard_alone() {
    let locks = LockManager::in_memory();
    let board = |board: Dashboard| board.unprotected().allow_force_release(|_| Ok(()));
    let server = Server::with(locks.clone(), board, 0).await;
    let first = locks.acquire("order:42").await.unwrap();
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(1).await;
    browser.enter_first_key().await;

    // The page rejects another text.
    browser.tab_to("#f-confirm").await;
    browser.keys("order:43").await;
    browser.tab_to("#f-reason").await;
    browser.keys("the handler hangs").await;
    browser.press(Key::Enter).await;
    browser
        .until("document.getElementById('f-result').textContent.includes('differs')")
        .await;
    assert!(first.is_held());

    // Another owner has acquired the key since.
    drop(first);
    let second = locks.acquire("order:42").await.unwrap();
    browser
        .run("document.getElementById('f-confirm').value = ''")
        .await
        .unwrap();
    browser.keys("order:42").await;
    browser.press(Key::Enter).await;
    browser
        .until("document.getElementById('f-result').textContent.startsWith('Another owner')")
        .await;
    assert!(second.is_held());

    // The page shows the new owner now. At most one release per second is admitted.
    let owner = second.owner().to_string();
    browser
        .until(&format!(
            "document.getElementById('d-list').textContent.includes('{owner}')"
        ))
        .await;
    // The confirmation was for the owner before.
    browser
        .until("document.getElementById('f-confirm').value === ''")
        .await;
    browser.keys("order:42").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    browser.press(Key::Enter).await;
    browser
        .until("document.getElementById('f-result').textContent === 'Released.'")
        .await;
    assert!(!second.is_held());
    browser.finish(&[CONFLICT]).await;
}

/// The owner of a lock in another process is a lease, which may belong to another request by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_in_other_process_has_warning() {
    let store = unreleasing();
    let manager = |backend: Simulated| LockManager::builder(backend).build().unwrap();
    let (here, there) = (manager(store.clone()), manager(store.another_wire()));
    for key in ["released", "acquired since"] {
        drop(here.acquire(key).await.unwrap());
    }
    assert!(there.force_release("acquired since").await.unwrap());
    let guards = [
        here.acquire("here").await.unwrap(),
        there.acquire("there").await.unwrap(),
        there.acquire("acquired since").await.unwrap(),
    ];
    let board = |board: Dashboard| board.unprotected().allow_force_release(|_| Ok(()));
    let server = Server::with(here, board, 0).await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    let other = "held by another process";
    for (key, state, is_elsewhere) in [
        ("here", "held by this process", false),
        ("there", other, true),
        (
            "released",
            "released by this process, not confirmed by the backend",
            false,
        ),
        ("acquired since", other, true),
    ] {
        let look_up = format!(
            "document.getElementById('key').value = '{key}';
             document.getElementById('find').requestSubmit();"
        );
        browser.run(&look_up).await.unwrap();
        browser.until_details_open().await;
        let shown = |id: &str| format!("document.getElementById('{id}').checkVisibility()");
        browser.until(&shown("force")).await;
        assert_eq!(browser.text("#d-list dd").await, state, "{key}");
        assert_eq!(browser.value(&shown("f-other")).await, json!(is_elsewhere));
        browser.press(Key::Escape).await;
    }
    drop(guards);
    browser.finish(&[]).await;
}

/// Each mode is named with its owners, and an operator releases one of several.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_owners_is_released() {
    let locks = LockManager::in_memory();
    let permits = [
        locks.acquire("p").permits(9).await.unwrap(),
        locks.acquire("p").permits(9).await.unwrap(),
        locks.acquire("p").permits(9).await.unwrap(),
    ];
    let _others = [
        locks.acquire("s").shared().await.unwrap(),
        locks.acquire("s").shared().await.unwrap(),
        locks.acquire("q").permits(9).await.unwrap(),
        locks.acquire("e").await.unwrap(),
    ];
    let board = |board: Dashboard| board.unprotected().allow_force_release(|_| Ok(()));
    let server = Server::with(locks.clone(), board, 0).await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(4).await;
    let modes = "Object.fromEntries([...document.querySelectorAll('#keys tbody tr')]
        .map(it => [it.cells[0].textContent, it.cells[1].textContent]))";
    assert_eq!(
        browser.value(modes).await,
        json!({ "p": "3 permits", "s": "2 shared", "q": "1 permit", "e": "exclusive" })
    );
    let note = "document.querySelector('#totals dd + dd').textContent";
    assert_eq!(
        browser.value(note).await,
        json!("keys, by this process, 1 exclusive, 2 shared, 4 permits")
    );

    let look_up = "document.getElementById('key').value = 'p';
        document.getElementById('find').requestSubmit();";
    browser.run(look_up).await.unwrap();
    browser.until_details_open().await;
    let list = browser.text("#d-list").await;
    assert!(list.contains("Mode\n3 permits"), "{list}");
    let listed = "[...document.querySelectorAll('#owners button')].map(it => it.textContent)";
    let owners = permits.each_ref().map(|guard| guard.owner().to_string());
    assert_eq!(browser.value(listed).await, json!(owners));
    browser
        .run("document.querySelectorAll('#owners button')[1].click()")
        .await
        .unwrap();
    let only = format!("Only {} is released.", owners[1]);
    assert_eq!(browser.text("#f-owner").await, only);
    browser.tab_to("#f-confirm").await;
    browser.keys("p").await;
    browser.tab_to("#f-reason").await;
    browser.keys("the handler hangs").await;
    browser.press(Key::Enter).await;
    browser
        .until("document.getElementById('f-result').textContent === 'Released.'")
        .await;
    let held = permits.each_ref().map(|guard| guard.is_held());
    assert_eq!(held, [true, false, true]);
    browser
        .until("document.querySelectorAll('#owners button').length === 2")
        .await;
    browser.finish(&[]).await;
}

/// A peer is a link, and an address of another scheme is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_are_links_to_web_pages_only() {
    let settings = |board: Dashboard| {
        let board = board.unprotected();
        let board = board.peer("b", "https://b.example.com/ops/locks");
        let board = board.peer("<img src=x>", "/c/ops/locks");
        board.peer("hostile", "javascript:document.body.remove()")
    };
    let server = Server::with(LockManager::in_memory(), settings, 0).await;
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    let links = "[...document.querySelectorAll('#peers a')]";
    browser.until(&format!("{links}.length === 2")).await;
    let text = browser.text("#peers").await;
    assert_eq!(text, "Other processes: b · <img src=x>");
    let origin = format!("http://{}", server.address);
    assert_eq!(
        browser.value(&format!("{links}.map(it => it.href)")).await,
        json!([
            "https://b.example.com/ops/locks",
            format!("{origin}/c/ops/locks")
        ])
    );
    browser.finish(&[]).await;
}

/// A key that is too long to type has check digits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_key_is_confirmed_by_check_digits() {
    let locks = LockManager::in_memory();
    let board = |board: Dashboard| board.unprotected().allow_force_release(|_| Ok(()));
    let server = Server::with(locks.clone(), board, 0).await;
    // The last key that is typed, and the first that is not.
    let (short, long) = ("k".repeat(40), "l".repeat(41));
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    let guard = locks.acquire(&*short).await.unwrap();
    browser.until_listed(1).await;
    browser.click_first_key().await;
    assert_eq!(browser.text("#f-what").await, "Type the key as it is shown");
    browser.press(Key::Escape).await;
    drop(guard);
    browser.until_listed(0).await;

    let guard = locks.acquire(&*long).await.unwrap();
    browser.until_listed(1).await;
    browser.click_first_key().await;
    let digest = Sha256::digest(&long);
    let digits: String = digest[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let what = format!("Type {digits}, the check digits of this key");
    assert_eq!(browser.text("#f-what").await, what);
    browser.tab_to("#f-confirm").await;
    browser.keys(&long).await;
    browser.tab_to("#f-reason").await;
    browser.keys("the handler hangs").await;
    browser.press(Key::Enter).await;
    browser
        .until("document.getElementById('f-result').textContent.includes('differs')")
        .await;
    assert!(guard.is_held());
    browser
        .run("document.getElementById('f-confirm').value = ''")
        .await
        .unwrap();
    browser.keys(&digits).await;
    browser.press(Key::Enter).await;
    browser
        .until("document.getElementById('f-result').textContent === 'Released.'")
        .await;
    assert!(!guard.is_held());
    browser.finish(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_sorted_as_selected() {
    let server = Server::start().await;
    let old = server.locks.acquire("old").await.unwrap();
    let short = server.locks.acquire("short").lease(Duration::from_secs(25));
    let short = short.await.unwrap();
    let wanted = server.locks.acquire("wanted").await.unwrap();
    let waiter = server.locks.acquire("wanted").wait(Duration::from_secs(60));
    let mut waiter = std::pin::pin!(waiter.into_future());
    assert!(poll!(&mut waiter).is_pending());
    let browser = Browser::start().await;
    browser.open_live(&server.url()).await;
    browser.until_listed(3).await;
    for (sort, first) in [
        ("waiters", "wanted"),
        ("age", "old"),
        ("remaining", "short"),
        ("waiters", "wanted"),
    ] {
        let select = format!(
            "const sort = document.getElementById('sort');
            sort.value = '{sort}';
            sort.dispatchEvent(new Event('change'));"
        );
        browser.run(&select).await.unwrap();
        browser
            .until(&format!(
                "document.querySelector('#keys bdi')?.textContent === '{first}'"
            ))
            .await;
    }
    drop((old, short, wanted));
    browser.finish(&[]).await;
}
