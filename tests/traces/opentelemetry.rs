//! What an exporter of OpenTelemetry receives.

use std::convert::Infallible;

use futures_util::poll;
use http::{Request, Response};
use opentelemetry::trace::{Status, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tower::{ServiceBuilder, ServiceExt as _};
use tower_http::trace::TraceLayer;
use tower_lock::manager::TraceKeys;
use tower_lock::{LockLayer, LockManager, Memory, OnLost};
use tracing::{Instrument as _, info_span};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::support::engine::{MS, SECOND};
use crate::support::log::ask_each_subscriber;

/// Runs `work` in a runtime whose time is paused, and returns the spans that ended.
fn exported(work: impl Future<Output = ()>) -> Vec<SpanData> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder();
    let provider = provider.with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    ask_each_subscriber();
    let subscriber = tracing_subscriber::registry().with(layer);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    tracing::subscriber::with_default(subscriber, || runtime.block_on(work));
    provider.force_flush().unwrap();
    exporter.get_finished_spans().unwrap()
}

/// Returns the only span with this name.
fn named<'a>(spans: &'a [SpanData], name: &str) -> &'a SpanData {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    let [span] = found[..] else {
        panic!("one {name}: {spans:#?}");
    };
    span
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let mut attributes = span.attributes.iter();
    let found = attributes.find(|it| it.key.as_str() == name)?;
    Some(found.value.to_string())
}

#[test]
fn loss_is_event_of_its_request() {
    let spans = exported(async {
        let locks = LockManager::in_memory();
        let of = |name| match name {
            "loser" => info_span!("loser"),
            _ => info_span!("other"),
        };
        let (loser, other) = (of("loser"), of("other"));
        let acquire = locks.acquire("k").name("orders").max_hold(SECOND);
        let lost = acquire
            .into_future()
            .instrument(loser.clone())
            .await
            .unwrap();
        let acquire = locks.acquire("other").into_future();
        let kept = acquire.instrument(other.clone()).await.unwrap();
        // Nothing polls the two requests, so the watchdog detects the loss.
        tokio::time::sleep(2 * SECOND).await;
        drop((lost, kept));
    });
    let events = |name: &str| -> Vec<_> {
        let events = named(&spans, name).events.iter();
        events.map(|event| event.name.to_string()).collect()
    };
    assert_eq!(events("other"), ["lock granted"]);
    assert_eq!(events("loser"), ["lock granted", "lock lost"]);
    let lost = named(&spans, "loser").events.iter();
    let lost = lost.clone().find(|it| it.name == "lock lost").unwrap();
    let reason = lost.attributes.iter();
    let reason = reason
        .clone()
        .find(|it| it.key.as_str() == "lock.lost_reason");
    assert_eq!(reason.unwrap().value.as_str(), "max_hold");
}

/// The layer detects the loss of a request that ends with it, and the watchdog that of a request that continues.
#[test]
fn loss_under_layer_is_event_of_its_request() {
    for (on_lost, status) in [(OnLost::Abort, 500), (OnLost::Continue, 200)] {
        let spans = exported(async {
            let lock = LockLayer::by_path(LockManager::in_memory());
            let service = ServiceBuilder::new()
                .layer(TraceLayer::new_for_http())
                .layer(lock.name("orders").max_hold(SECOND).on_lost(on_lost))
                .service_fn(async |_: Request<String>| {
                    tokio::time::sleep(2 * SECOND).await;
                    Ok::<_, Infallible>(Response::new(String::new()))
                });
            let request = Request::put("/orders/42").body(String::new()).unwrap();
            let response = service.oneshot(request).await.unwrap();
            assert_eq!(response.status(), status);
        });
        let events = named(&spans, "request").events.iter();
        let lost: Vec<_> = events.filter(|it| it.name == "lock lost").collect();
        let [lost] = lost[..] else {
            panic!("{on_lost:?}: {spans:#?}");
        };
        let mut attributes = lost.attributes.iter();
        let layer = attributes.find(|it| it.key.as_str() == "lock.layer");
        assert_eq!(layer.unwrap().value.as_str(), "orders");
    }
}

#[test]
fn only_waiting_acquire_is_child_of_request() {
    let spans = exported(async {
        let locks = LockManager::in_memory();
        let acquire = locks.acquire("k").into_future();
        let guard = acquire.instrument(info_span!("first")).await.unwrap();
        let mut waiting = Vec::new();
        for name in [info_span!("second"), info_span!("third")] {
            let acquire = locks.acquire("k").wait(50 * MS).into_future();
            let mut acquire = Box::pin(acquire.instrument(name));
            assert!(poll!(&mut acquire).is_pending());
            waiting.push(acquire);
        }
        tokio::time::sleep(20 * MS).await;
        drop(guard);
        let mut waiting = waiting.into_iter();
        let guard = waiting.next().unwrap().await.unwrap();
        waiting.next().unwrap().await.unwrap_err();
        drop(guard);
    });
    let waits: Vec<_> = spans
        .iter()
        .filter(|it| it.name == "lock.acquire")
        .collect();
    assert_eq!(waits.len(), 2, "{spans:#?}");
    for (request, position, outcome) in [("second", "1", "granted"), ("third", "2", "busy")] {
        let request = named(&spans, request);
        let parent = request.span_context.span_id();
        let wait = waits.iter().find(|it| it.parent_span_id == parent);
        let wait = wait.unwrap_or_else(|| panic!("no child: {spans:#?}"));
        let attribute = |name| attribute(wait, name);
        assert_eq!(attribute("lock.queue_position").as_deref(), Some(position));
        assert_eq!(attribute("lock.outcome").as_deref(), Some(outcome));
        let is_error = matches!(wait.status, Status::Error { .. });
        assert_eq!(is_error, outcome == "busy", "{:?}", wait.status);
    }
}

#[test]
fn exported_spans_contain_keys_only_as_set() {
    let waits = |trace_keys: Option<TraceKeys>| {
        let spans = exported(async {
            let mut builder = LockManager::builder(Memory::new());
            if let Some(trace_keys) = trace_keys {
                builder = builder.trace_keys(trace_keys);
            }
            let locks = builder.build().unwrap();
            let request = async {
                let guard = locks.acquire("canary").max_hold(SECOND).await.unwrap();
                locks.acquire("canary").wait(MS).await.unwrap_err();
                guard.lost().await;
            };
            request.instrument(info_span!("request")).await;
        });
        // The grant, the failed acquire and the loss.
        assert_eq!(named(&spans, "request").events.len(), 3, "{spans:#?}");
        format!("{spans:?}")
    };
    assert!(!waits(None).contains("canary"));
    let hashed = waits(Some(TraceKeys::hashed("secret")));
    assert!(hashed.contains("lock.keys") && !hashed.contains("canary"));
    let plain = waits(Some(TraceKeys::with(|key| key.as_str().into())));
    assert!(plain.contains("canary"));
}
