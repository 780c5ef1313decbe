//! The names of layers, and the number of series.

use std::collections::BTreeSet;
use std::convert::Infallible;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::{LockLayer, LockManager};

use crate::backend::Faulty;
use crate::support::recorder::{Recorder, Seen, Value};
use crate::{reported, run};

#[test]
fn layer_counts_under_its_name() {
    let seen = reported(async {
        let locks = LockManager::in_memory();
        let layer = LockLayer::by_path(locks.clone()).name("orders");
        let service = layer.layer(service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
        let request = Request::put("/orders/42").body(String::new()).unwrap();
        drop(service.oneshot(request).await.unwrap());
        drop(locks.acquire("job").name("jobs").await.unwrap());
    });
    let acquires = seen.counts("tower_lock_acquires_total");
    let expected = [
        ("{outcome=\"granted\",layer=\"jobs\"}", 1),
        ("{outcome=\"granted\",layer=\"orders\"}", 1),
    ];
    assert_eq!(acquires, expected);
    for layer in ["jobs", "orders"] {
        let holds = seen.samples(&format!("tower_lock_hold_seconds{{layer=\"{layer}\"}}"));
        assert_eq!(holds.len(), 1, "{layer}");
    }
}

#[cfg(feature = "axum")]
#[test]
fn scope_counts_under_its_name() {
    use axum::{Router, body::Body, extract::Path, routing::put};
    use tower_lock::{LockKeys, LockScopeLayer, LockTarget, Locked};

    #[derive(serde::Deserialize)]
    struct Order(String);

    impl LockTarget for Order {
        fn lock_keys(&self) -> LockKeys {
            self.0.as_str().into()
        }
    }

    let seen = reported(async {
        let locks = LockManager::in_memory();
        let _guard = locks.acquire("42").await.unwrap();
        let router = Router::new().route("/orders/{id}", put(async |_: Locked<Path<Order>>| ()));
        // A later setting changes nothing but itself.
        let scope = LockScopeLayer::new().no_wait().name("orders");
        // A layer is a scope, too.
        let layer = LockLayer::by_path(locks.clone()).no_wait().name("paths");
        for app in [router.clone().layer(scope), router.layer(layer)] {
            let request = Request::put("/orders/42").body(Body::empty()).unwrap();
            let app = app.with_state(locks.clone());
            drop(app.oneshot(request).await.unwrap());
        }
    });
    let acquires = seen.counts("tower_lock_acquires_total");
    let expected = [
        ("{outcome=\"busy\",layer=\"orders\"}", 1),
        ("{outcome=\"busy\",layer=\"paths\"}", 1),
        // The request through the layer by path counts under its own name.
        ("{outcome=\"granted\",layer=\"paths\"}", 1),
        ("{outcome=\"granted\"}", 1),
    ];
    assert_eq!(acquires, expected);
    let waits = seen.samples("tower_lock_wait_seconds{outcome=\"rejected\",layer=\"orders\"}");
    assert_eq!(waits, [0.0]);
}

#[test]
fn names_beyond_limit_are_other() {
    let seen = reported(async {
        let locks = LockManager::in_memory();
        for n in 0..40 {
            drop(locks.acquire("k").name(format!("name-{n}")).await.unwrap());
        }
    });
    let grants = seen.counts("tower_lock_grants_total");
    assert_eq!(grants.len(), 33);
    assert!(grants.contains(&("{via=\"backend\",layer=\"name-31\"}", 1)));
    assert!(grants.contains(&("{via=\"backend\",layer=\"other\"}", 8)));
}

#[test]
fn series_begin_at_zero_when_manager_is_built() {
    let recorder = Recorder::new();
    recorder.run(|| {
        run(async {
            let locks = LockManager::in_memory();
            let before = recorder.read();
            drop(LockLayer::by_path(locks.clone()).name("orders"));
            let seen = recorder.read();
            // Without a name, and with one.
            for series in [
                "tower_lock_acquires_total{outcome=\"unavailable\"}",
                "tower_lock_grants_total{via=\"handoff\"}",
                "tower_lock_lost_total{reason=\"expired\"}",
                "tower_lock_renewals_total{outcome=\"failed\"}",
                "tower_lock_releases_total{outcome=\"failed\"}",
                "tower_lock_wakeups_total{by=\"backstop\"}",
                "tower_lock_force_releases_total{outcome=\"released\"}",
                "tower_lock_unlocked_total{option=\"on_unavailable\"}",
            ] {
                assert_eq!(before.count(series), 0, "{series}");
            }
            let named = "tower_lock_lost_total{reason=\"expired\",layer=\"orders\"}";
            assert_eq!(seen.count(named), 0);
            for series in [
                "held{mode=\"permit\"}",
                "waiting",
                "unreleased",
                "kept",
                "watchdog_lag_seconds",
            ] {
                assert_eq!(
                    before.gauge(&format!("tower_lock_{series}")),
                    0.0,
                    "{series}"
                );
            }
            assert_eq!(before.gauge("tower_lock_waiting_limit"), 65_536.0);
            drop(locks.acquire("k").name("orders").await.unwrap());
            locks.acquire("").name("orders").await.unwrap_err();
            locks.flush_metrics();
            // No series is added later.
            assert_eq!(recorder.read().0.len(), seen.0.len());
        });
    });
}

/// The series of a histogram: its buckets, `+Inf`, the sum and the number.
const PER_HISTOGRAM: usize = tower_lock::metrics::BUCKETS.len() + 3;

/// Returns the number of series as Prometheus has them: with the layer `orders`, the same without a name, and others.
fn series(seen: &Seen) -> [usize; 3] {
    let layer = "layer=\"orders\"";
    let without = |series: &str| {
        series
            .replace(&format!(",{layer}"), "")
            .replace(&format!("{{{layer}}}"), "")
    };
    let named: BTreeSet<_> = seen
        .0
        .keys()
        .filter(|it| it.contains(layer))
        .map(|it| without(it))
        .collect();
    let mut counts = [0; 3];
    for (series, value) in &seen.0 {
        let class = match (series.contains(layer), named.contains(series)) {
            (true, _) => 0,
            (_, true) => 1,
            _ => 2,
        };
        counts[class] += match value {
            Value::Samples(_) => PER_HISTOGRAM,
            _ => 1,
        };
    }
    counts
}

/// The documentation of `tower_lock::metrics` has these numbers.
#[test]
fn series_are_as_many_as_documented() {
    let of = |locks: fn() -> LockManager| {
        reported(async move {
            drop(LockLayer::by_path(locks()).name("orders"));
        })
    };
    let memory = series(&of(LockManager::in_memory));
    assert_eq!(memory, [128, 128, 21]);
    let commands = series(&of(|| {
        LockManager::builder(Faulty::default()).build().unwrap()
    }));
    assert_eq!(commands, [128, 128, 21 + 25 + 27 * PER_HISTOGRAM]);
}

#[test]
fn no_label_contains_key() {
    const KEY: &str = "canary-key";
    let seen = reported(async {
        let locks = LockManager::in_memory();
        let guard = locks.acquire(KEY).await.unwrap();
        locks.acquire(KEY).no_wait().await.unwrap_err();
        locks.force_release(KEY).await.unwrap();
        guard.lost().await;
    });
    assert!(seen.0.keys().all(|series| !series.contains(KEY)));
}
