//! Acquires, grants, holds, losses and waiters.

use std::pin::pin;
use std::time::Duration;

use futures_util::poll;
use tower_lock::backend::BackendErrorKind;
use tower_lock::manager::Via;
use tower_lock::{LockManager, Memory};

use crate::backend::{Fault, Faulty};
use crate::support::broken::broken;
use crate::support::recorder::Recorder;
use crate::{MS, SECOND, reported, run};

#[test]
fn acquires_are_counted_by_outcome() {
    let seen = reported(async {
        let locks = LockManager::in_memory();
        let guard = locks.acquire("k").await.unwrap();
        locks.acquire("k").no_wait().await.unwrap_err();
        locks.acquire("k").wait(20 * MS).await.unwrap_err();
        locks.acquire("").await.unwrap_err();
        let mut dropped = Box::pin(locks.acquire("k").into_future());
        assert!(poll!(&mut dropped).is_pending());
        tokio::time::sleep(40 * MS).await;
        drop(dropped);
        drop(guard);
    });
    let outcomes = seen.counts("tower_lock_acquires_total");
    let expected = [
        ("busy", 2),
        ("cancelled", 1),
        ("granted", 1),
        ("invalid_key", 1),
    ];
    let expected = expected.map(|(it, n)| (format!("{{outcome=\"{it}\"}}"), n));
    let outcomes: Vec<_> = outcomes
        .into_iter()
        .map(|(it, n)| (it.to_owned(), n))
        .collect();
    assert_eq!(outcomes, expected);
    let waits = |outcome| {
        let name = format!("tower_lock_wait_seconds{{outcome=\"{outcome}\"}}");
        seen.samples(&name).to_vec()
    };
    assert_eq!(waits("granted"), [0.0]);
    let rejected = waits("rejected");
    assert_eq!(rejected[..2], [0.0, 0.0]);
    assert!((0.018..0.023).contains(&rejected[2]), "{rejected:?}");
    let cancelled = waits("cancelled");
    assert!(
        cancelled.len() == 1 && (0.036..0.045).contains(&cancelled[0]),
        "{cancelled:?}"
    );
}

#[test]
fn rejections_by_mode_are_counted_by_outcome() {
    let seen = reported(async {
        let locks = LockManager::in_memory();
        let permit = locks.acquire("k").permits(1).await.unwrap();
        let full = locks.acquire("k").permits(1).no_wait();
        full.await.unwrap_err();
        let upgrade = locks.acquire("k").owner(permit.owner());
        upgrade.await.unwrap_err();
        // This backend has no shared locks.
        let locks = broken(BackendErrorKind::Unavailable);
        locks.acquire("k").shared().await.unwrap_err();
    });
    let outcomes = seen.counts("tower_lock_acquires_total");
    let expected = [
        ("{outcome=\"granted\"}", 1),
        ("{outcome=\"permits_exhausted\"}", 1),
        ("{outcome=\"unsupported\"}", 1),
        ("{outcome=\"upgrade\"}", 1),
    ];
    assert_eq!(outcomes, expected);
}

#[test]
fn grants_are_counted_by_way() {
    let seen = reported(async {
        let locks = LockManager::in_memory();
        let guard = locks.acquire("k").await.unwrap();
        let again = locks.acquire("k").owner(guard.owner()).await.unwrap();
        let mut next = pin!(locks.acquire("k").into_future());
        assert!(poll!(&mut next).is_pending());
        drop((guard, again));
        drop(next.await.unwrap());
        drop(locks.acquire(["a", "b"]).await.unwrap());
    });
    let grants = seen.counts("tower_lock_grants_total");
    let expected = [
        ("{via=\"backend\"}", 3),
        ("{via=\"handoff\"}", 1),
        ("{via=\"reentrant\"}", 1),
    ];
    assert_eq!(grants, expected);
}

#[test]
fn withdrawn_grant_is_not_counted() {
    let seen = reported(async {
        let locks = LockManager::in_memory();
        let guard = locks.acquire("k").await.unwrap();
        let mut forgotten = pin!(locks.acquire("k").wait(20 * MS).into_future());
        assert!(poll!(&mut forgotten).is_pending());
        drop(guard);
        // The watchdog gives the lock to others.
        drop(locks.acquire("k").await.unwrap());
        assert!(forgotten.await.unwrap_err().is_busy());
    });
    assert_eq!(seen.samples("tower_lock_hold_seconds").len(), 2);
    let grants = seen.counts("tower_lock_grants_total");
    assert_eq!(grants.into_iter().map(|(_, n)| n).sum::<u64>(), 2);
}

#[test]
fn lease_during_its_release_is_reclaimed() {
    let seen = reported(async {
        let locks = LockManager::builder(Faulty::default()).build().unwrap();
        drop(locks.acquire("k").await.unwrap());
        drop(locks.acquire("k").await.unwrap());
    });
    let reclaimed = seen.count("tower_lock_grants_total{via=\"reclaimed\"}");
    assert_eq!(reclaimed, 1, "{seen:#?}");
}

#[test]
fn kept_lease_is_shown_until_its_take() {
    let recorder = Recorder::new();
    recorder.run(|| {
        run(async {
            let locks = LockManager::builder(Faulty::default()).keep_released(MS * 50);
            let locks = locks.build().unwrap();
            for _ in 0..2 {
                drop(locks.acquire("k").await.unwrap());
            }
            locks.flush_metrics();
            let seen = recorder.read();
            assert_eq!(seen.gauge("tower_lock_kept"), 1.0);
            assert_eq!(seen.gauge("tower_lock_unreleased"), 0.0);
            let guard = locks.acquire("k").await.unwrap();
            assert_eq!(guard.via(), Via::Kept);
            locks.flush_metrics();
            let seen = recorder.read();
            assert_eq!(seen.count("tower_lock_grants_total{via=\"kept\"}"), 1);
        });
    });
}

#[test]
fn holds_are_timed_from_grant_to_last_release() {
    let seen = reported(async {
        let locks = LockManager::in_memory();
        let guard = locks.acquire("k").await.unwrap();
        let again = locks.acquire("k").owner(guard.owner()).await.unwrap();
        drop(guard);
        tokio::time::sleep(300 * MS).await;
        drop(again);
    });
    let holds = seen.samples("tower_lock_hold_seconds");
    assert!(
        holds.len() == 1 && (0.27..0.33).contains(&holds[0]),
        "{holds:?}"
    );
}

#[test]
fn losses_are_counted_by_reason() {
    let seen = reported(async {
        let locks = LockManager::in_memory();
        let ended = locks.acquire("ended").lease(SECOND).await.unwrap();
        let limited = locks.acquire("limited").max_hold(SECOND).await.unwrap();
        let forced = locks.acquire("forced").await.unwrap();
        locks.force_release("forced").await.unwrap();
        for guard in [&ended, &limited, &forced] {
            guard.lost().await;
        }
        for fault in [Fault::NotHeld, Fault::Refused] {
            let backend = Faulty::default();
            let locks = LockManager::builder(backend.clone()).build().unwrap();
            let guard = locks.acquire("k").await.unwrap();
            backend.renewals_fail_by(fault);
            guard.lost().await;
            tokio::time::sleep(SECOND).await;
        }
        let locks = LockManager::builder(Faulty::default()).build().unwrap();
        let mut guard = locks.acquire("k").await.unwrap();
        guard.downgrade().await.unwrap_err();
    });
    let lost = seen.counts("tower_lock_lost_total");
    let expected = [
        "downgrade",
        "expired",
        "forced",
        "lease_ended",
        "max_hold",
        "not_held",
    ];
    let expected = expected.map(|reason| format!("{{reason=\"{reason}\"}}"));
    let reasons: Vec<_> = lost
        .iter()
        .map(|(reason, _)| (*reason).to_owned())
        .collect();
    assert_eq!(reasons, expected);
    assert!(lost.iter().all(|(_, count)| *count == 1), "{lost:?}");
    // Each loss ends a hold.
    assert_eq!(seen.samples("tower_lock_hold_seconds").len(), 6);
}

#[test]
fn gauges_show_present_holders_and_waiters() {
    let recorder = Recorder::new();
    recorder.run(|| {
        run(async {
            let locks = LockManager::in_memory();
            let other = LockManager::builder(Memory::new())
                .max_waiters(10)
                .build()
                .unwrap();
            let guards = (
                locks.acquire("a").await.unwrap(),
                locks.acquire("b").name("orders").await.unwrap(),
            );
            let elsewhere = (
                other.acquire("c").await.unwrap(),
                other.acquire("d").name("orders").await.unwrap(),
            );
            tokio::time::sleep(2 * SECOND).await;
            let mut waiting = Box::pin(locks.acquire("a").name("jobs").into_future());
            assert!(poll!(&mut waiting).is_pending());
            tokio::time::sleep(SECOND).await;
            locks.flush_metrics();
            other.flush_metrics();
            let seen = recorder.read();
            // The sum over both managers, by name, and the maximum.
            for (layer, held, waiting) in [
                ("", 2.0, 0.0),
                (",layer=\"orders\"", 2.0, 0.0),
                (",layer=\"jobs\"", 0.0, 1.0),
            ] {
                let series = format!("tower_lock_held{{mode=\"exclusive\"{layer}}}");
                assert_eq!(seen.gauge(&series), held);
                let layer = layer.replace(',', "");
                let series = format!("tower_lock_waiting{{{layer}}}").replace("{}", "");
                assert_eq!(seen.gauge(&series), waiting);
            }
            assert_eq!(seen.gauge("tower_lock_waiting_limit"), 65_546.0);
            assert_eq!(seen.gauge("tower_lock_waiting_ratio"), 1.0 / 65_536.0);
            assert_eq!(seen.gauge("tower_lock_oldest_hold_seconds"), 3.0);
            assert_eq!(seen.gauge("tower_lock_oldest_wait_seconds"), 1.0);
            drop((guards, elsewhere, waiting));
        });
    });
}

/// Owners that share a key count one each.
#[test]
fn gauge_counts_owners_of_each_mode() {
    let recorder = Recorder::new();
    recorder.run(|| {
        run(async {
            let locks = LockManager::in_memory();
            let guards = [
                locks.acquire("e").await.unwrap(),
                locks.acquire("s").shared().await.unwrap(),
                locks.acquire("s").shared().await.unwrap(),
                locks.acquire("p").permits(5).await.unwrap(),
                locks.acquire("p").permits(5).await.unwrap(),
                locks.acquire("q").permits(5).await.unwrap(),
            ];
            locks.flush_metrics();
            let seen = recorder.read();
            for (mode, owners) in [("exclusive", 1.0), ("shared", 2.0), ("permit", 3.0)] {
                let held = seen.gauge(&format!("tower_lock_held{{mode=\"{mode}\"}}"));
                assert_eq!(held, owners, "{mode}");
            }
            drop(guards);
        });
    });
}

/// The sum over both managers is far from the sum of their limits.
#[test]
fn waiting_ratio_shows_fullest_manager() {
    let recorder = Recorder::new();
    recorder.run(|| {
        run(async {
            let empty = LockManager::in_memory();
            let builder = LockManager::builder(Memory::new()).max_waiters(4);
            let full = builder.build().unwrap();
            let guard = full.acquire("k").await.unwrap();
            let wait = || Box::pin(full.acquire("k").into_future());
            let mut waiting = [wait(), wait(), wait()];
            for it in &mut waiting {
                assert!(poll!(it).is_pending());
            }
            full.flush_metrics();
            empty.flush_metrics();
            let ratio = || recorder.read().gauge("tower_lock_waiting_ratio");
            assert_eq!(ratio(), 0.75);
            drop(waiting);
            full.flush_metrics();
            assert_eq!(ratio(), 0.0);
            drop(guard);
        });
    });
}

#[test]
fn gauges_return_to_zero_with_their_manager() {
    let seen = reported(async {
        let locks = LockManager::in_memory();
        let guard = locks.acquire("k").await.unwrap();
        tokio::time::sleep(SECOND).await;
        locks.flush_metrics();
        drop((guard, locks));
    });
    for name in [
        "held{mode=\"exclusive\"}",
        "waiting",
        "waiting_limit",
        "oldest_hold_seconds",
    ] {
        assert_eq!(seen.gauge(&format!("tower_lock_{name}")), 0.0, "{name}");
    }
}

#[test]
fn unconfirmed_releases_are_shown() {
    let recorder = Recorder::new();
    recorder.run(|| {
        run(async {
            let backend = Faulty::default();
            let locks = LockManager::builder(backend.clone()).build().unwrap();
            let guard = locks.acquire("k").await.unwrap();
            backend.releases_fail_by(Fault::Unknown);
            drop(guard);
            tokio::time::sleep(SECOND).await;
            locks.flush_metrics();
            assert_eq!(recorder.read().gauge("tower_lock_unreleased"), 1.0);
        });
    });
}

/// The backend has replied to neither of the two releases.
#[test]
fn releases_in_flight_are_shown() {
    let recorder = Recorder::new();
    recorder.run(|| {
        run(async {
            let backend = Faulty::default();
            let locks = LockManager::builder(backend.clone()).build().unwrap();
            let guards = [
                locks.acquire("a").await.unwrap(),
                locks.acquire("b").await.unwrap(),
            ];
            drop(guards);
            locks.flush_metrics();
            assert_eq!(recorder.read().gauge("tower_lock_unreleased"), 2.0);
        });
    });
}

#[test]
fn late_watchdog_is_shown() {
    let recorder = Recorder::new();
    recorder.run(|| {
        run(async {
            let locks = LockManager::in_memory();
            let _guard = locks.acquire("k").await.unwrap();
            tokio::time::sleep(MS).await;
            tokio::time::advance(Duration::from_secs(13)).await;
            tokio::time::sleep(100 * MS).await;
            locks.flush_metrics();
            let lag = recorder.read().gauge("tower_lock_watchdog_lag_seconds");
            assert!((2.9..3.2).contains(&lag), "{lag}");
            let shown = || {
                locks.flush_metrics();
                recorder.read().gauge("tower_lock_watchdog_lag_seconds")
            };
            // A server that scrapes every minute sees it.
            tokio::time::sleep(59 * SECOND).await;
            assert_eq!(shown(), lag);
            tokio::time::sleep(120 * SECOND).await;
            assert!(shown() < 0.1);
        });
    });
}

#[test]
fn forced_releases_are_counted_by_outcome() {
    let seen = reported(async {
        let locks = LockManager::in_memory();
        let guard = locks.acquire("k").await.unwrap();
        locks.force_release("k").await.unwrap();
        locks.force_release("free").await.unwrap();
        drop(guard);
        let guard = locks.acquire("k").await.unwrap();
        let owner = guard.owner().to_string();
        assert!(!locks.force_release_held_by("free", &owner).await.unwrap());
        assert!(locks.force_release_held_by("k", &owner).await.unwrap());
        assert!(!guard.is_held());
        let backend = Faulty::default();
        backend.releases_fail_by(Fault::Refused);
        let locks = LockManager::builder(backend).build().unwrap();
        locks.force_release("k").await.unwrap_err();
    });
    let counts = seen.counts("tower_lock_force_releases_total");
    let expected = [
        ("{outcome=\"failed\"}", 1),
        ("{outcome=\"not_held\"}", 2),
        ("{outcome=\"released\"}", 2),
    ];
    assert_eq!(counts, expected);
}
