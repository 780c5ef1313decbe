//! The events and spans of locks, and the requests to which they belong.

use futures_util::poll;
use tower_lock::manager::TraceKeys;
use tower_lock::{LockManager, Memory};
use tracing::{Instrument, info_span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::backend::{Fault, Faulty};
use crate::support::log::{Log, ask_each_subscriber};
use crate::{MS, SECOND, run};

/// Runs `work` in a runtime whose time is paused, and returns its log, with a line for the end of each span.
fn logged(work: impl Future<Output = ()>) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(LevelFilter::TRACE)
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .finish();
    ask_each_subscriber();
    tracing::subscriber::with_default(subscriber, || run(work));
    log.text()
}

/// Returns the only line with this text.
fn line<'a>(log: &'a str, text: &str) -> &'a str {
    let mut lines = log.lines().filter(|line| line.contains(text));
    let line = lines
        .next()
        .unwrap_or_else(|| panic!("no `{text}` in {log}"));
    assert_eq!(lines.next(), None, "{log}");
    line
}

#[test]
fn loss_found_by_watchdog_belongs_to_its_request() {
    let log = logged(async {
        let locks = LockManager::in_memory();
        let request = info_span!("request", id = 7);
        let guard = async {
            let acquire = locks.acquire("k").name("orders").max_hold(SECOND);
            acquire.await.unwrap()
        };
        let guard = guard.instrument(request.clone()).await;
        // The request does not ask.
        tokio::time::sleep(2 * SECOND).await;
        drop(guard);
        drop(request);
    });
    let lost = line(&log, "lock lost");
    assert!(lost.contains("WARN request{id=7}: tower_lock: "), "{log}");
    for field in [
        "lock.layer=\"orders\"",
        "lock.lost_reason=\"max_hold\"",
        "lock.via=\"backend\"",
        "lock.wait_ms=0",
        "lock.hold_ms=100",
    ] {
        assert!(lost.contains(field), "{field}: {log}");
    }
}

#[test]
fn loss_after_hand_off_belongs_to_next_request() {
    let log = logged(async {
        let locks = LockManager::in_memory();
        let (first, second) = (info_span!("first"), info_span!("second"));
        let guard = locks.acquire("k").into_future();
        let guard = guard.instrument(first.clone()).await.unwrap();
        let next = locks.acquire("k").max_hold(SECOND).into_future();
        let mut next = Box::pin(next.instrument(second.clone()));
        assert!(poll!(&mut next).is_pending());
        first.in_scope(|| drop(guard));
        let guard = next.await.unwrap();
        tokio::time::sleep(2 * SECOND).await;
        drop((guard, first, second));
    });
    let lost = line(&log, "lock lost");
    assert!(
        lost.contains(" second: ") && !lost.contains("first"),
        "{log}"
    );
    assert!(lost.contains("lock.via=\"handoff\""), "{log}");
    let granted: Vec<_> = log
        .lines()
        .filter(|it| it.contains("lock granted"))
        .collect();
    assert!(
        granted[0].contains(" first: ") && granted[1].contains(" second: "),
        "{log}"
    );
}

#[test]
fn loss_after_end_of_span_is_still_logged() {
    let log = logged(async {
        let locks = LockManager::in_memory();
        let acquire = locks.acquire("k").max_hold(SECOND).into_future();
        let guard = acquire.instrument(info_span!("ended")).await.unwrap();
        tokio::time::sleep(2 * SECOND).await;
        drop(guard);
    });
    assert!(!line(&log, "lock lost").contains("ended"), "{log}");
}

#[test]
fn loss_by_downgrade_belongs_to_its_request() {
    let log = logged(async {
        let locks = LockManager::builder(Faulty::default()).build().unwrap();
        let work = async {
            let mut guard = locks.acquire("k").await.unwrap();
            guard.downgrade().await.unwrap_err();
        };
        work.instrument(info_span!("request", id = 7)).await;
    });
    let lost = line(&log, "lock lost");
    assert!(lost.contains("WARN request{id=7}: tower_lock: "), "{log}");
    assert!(lost.contains("lock.lost_reason=\"downgrade\""), "{log}");
}

#[test]
fn only_waiting_acquire_has_span() {
    let log = logged(async {
        let locks = LockManager::in_memory();
        let guard = locks.acquire("k").await.unwrap();
        locks.acquire("k").no_wait().await.unwrap_err();
        drop(locks.acquire(["a", "b"]).await.unwrap());
        locks.acquire(["a", "k"]).no_wait().await.unwrap_err();
        drop(guard);
    });
    assert!(!log.contains("lock.acquire"), "{log}");

    let log = logged(async {
        let locks = LockManager::in_memory();
        let guard = locks.acquire("k").await.unwrap();
        let request = info_span!("request");
        let mut next = Box::pin(locks.acquire("k").name("orders").into_future());
        request.in_scope(|| assert!(futures_util::FutureExt::now_or_never(&mut next).is_none()));
        tokio::time::sleep(20 * MS).await;
        drop(guard);
        drop(next.await.unwrap());
        let guard = locks.acquire("k").await.unwrap();
        locks.acquire("k").wait(MS).await.unwrap_err();
        drop(guard);
    });
    let spans: Vec<_> = log.lines().filter(|it| it.contains("close")).collect();
    let granted = spans.iter().find(|it| it.contains("lock.via=\"handoff\""));
    let granted = granted.unwrap_or_else(|| panic!("{log}"));
    assert!(granted.contains("request:lock.acquire{"), "{log}");
    for field in [
        "lock.layer=\"orders\"",
        "lock.outcome=\"granted\"",
        "otel.kind=\"internal\"",
    ] {
        assert!(granted.contains(field), "{field}: {log}");
    }
    assert!(!granted.contains("lock.keys"), "{log}");
    let busy = spans.iter().find(|it| it.contains("lock.outcome=\"busy\""));
    let busy = busy.unwrap_or_else(|| panic!("{log}"));
    for field in ["error.type=\"busy\"", "otel.status_code=\"ERROR\""] {
        assert!(busy.contains(field), "{field}: {log}");
    }
}

#[test]
fn keys_are_in_traces_only_as_set() {
    let waits = |trace_keys: Option<TraceKeys>| {
        logged(async {
            let mut builder = LockManager::builder(Memory::new());
            if let Some(trace_keys) = trace_keys {
                builder = builder.trace_keys(trace_keys);
            }
            let locks = builder.build().unwrap();
            let guard = locks.acquire("canary").await.unwrap();
            locks.acquire("canary").wait(MS).await.unwrap_err();
            locks.acquire(["canary", "a"]).wait(MS).await.unwrap_err();
            drop(guard);
        })
    };
    assert!(!waits(None).contains("canary"));
    let hashed = waits(Some(TraceKeys::hashed("secret")));
    assert!(
        !hashed.contains("canary") && hashed.contains("lock.keys="),
        "{hashed}"
    );
    let plain = waits(Some(TraceKeys::with(|key| key.as_str().into())));
    assert!(plain.contains("lock.keys=\"canary\""), "{plain}");
    assert!(plain.contains("lock.keys=\"a,canary\""), "{plain}");
}

#[test]
fn keys_are_not_written_for_disabled_span() {
    let waits = || {
        run(async {
            let keys = TraceKeys::with(|_| panic!("no subscriber records the span"));
            let builder = LockManager::builder(Memory::new()).trace_keys(keys);
            let locks = builder.build().unwrap();
            let _guard = locks.acquire("k").await.unwrap();
            locks.acquire("k").wait(MS).await.unwrap_err();
        });
    };
    ask_each_subscriber();
    waits();
    let subscriber = tracing_subscriber::fmt().with_max_level(LevelFilter::INFO);
    tracing::subscriber::with_default(subscriber.finish(), waits);
}

#[test]
fn grants_and_releases_are_logged() {
    let log = logged(async {
        let locks = LockManager::in_memory();
        let guard = locks.acquire("k").name("orders").await.unwrap();
        let again = locks.acquire("k").owner(guard.owner()).await.unwrap();
        tokio::time::sleep(20 * MS).await;
        drop((guard, again));
    });
    let granted = line(&log, "lock granted");
    assert!(
        granted.contains("DEBUG") && granted.contains("lock.token="),
        "{log}"
    );
    let released = line(&log, "lock released");
    assert!(
        released.contains("DEBUG") && released.contains("lock.hold_ms=2"),
        "{log}"
    );
}

#[test]
fn outage_of_renewals_warns_every_ten_seconds() {
    let log = logged(async {
        let backend = Faulty::default();
        let locks = LockManager::builder(backend.clone()).build().unwrap();
        let guard = locks.acquire("k").await.unwrap();
        backend.renewals_fail_by(Fault::Refused);
        guard.lost().await;
    });
    let failed: Vec<_> = log
        .lines()
        .filter(|it| it.contains("renewal failed"))
        .collect();
    assert!(failed.len() > 1, "{log}");
    assert!(
        failed[0].contains("WARN") && failed[0].contains("count=1"),
        "{log}"
    );
    assert!(
        failed[0].contains("left_ms=") && failed[0].contains("refused"),
        "{log}"
    );
    // The renewals fail for 20 s, until the lease of 30 s ends.
    let warnings = failed.iter().filter(|it| it.contains("WARN")).count();
    assert_eq!(warnings, 2, "{log}");
    assert!(failed[1].contains("DEBUG"), "{log}");
    assert!(
        line(&log, "lock lost").contains("lock.lost_reason=\"expired\""),
        "{log}"
    );
}

#[test]
fn end_of_outage_of_renewals_is_logged_once() {
    let log = logged(async {
        let backend = Faulty::default();
        let locks = LockManager::builder(backend.clone()).build().unwrap();
        let guard = locks.acquire("k").await.unwrap();
        backend.renewals_fail_by(Fault::Refused);
        tokio::time::sleep(15 * SECOND).await;
        backend.renewals_succeed();
        tokio::time::sleep(60 * SECOND).await;
        assert!(guard.is_held());
    });
    assert!(line(&log, "renewals succeed again").contains("INFO"));
}
