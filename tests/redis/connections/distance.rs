//! Servers at a distance: the round trips of a connect, and its limits.

use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::time::Instant;
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{ConnectError, RedisBackend};

use crate::support::distance::Distance;
use crate::support::engine::{MS, SECOND};
use crate::support::errors::chain;
use crate::support::redis_server::RedisServer;

const ROUND_TRIP: Duration = Duration::from_millis(200);

/// Connects three times, and returns the fewest round trips that it took: other programs only add time. The rest of the
/// time is at most one.
async fn round_trips(builder: impl Fn() -> RedisBackendBuilder) -> f64 {
    let builder = || {
        builder()
            .response_timeout(SECOND)
            .connect_timeout(2 * SECOND)
    };
    let mut fewest = f64::INFINITY;
    for _ in 0..3 {
        let started = Instant::now();
        let backend = builder().connect().await.unwrap();
        fewest = fewest.min(started.elapsed().div_duration_f64(ROUND_TRIP));
        assert_eq!(backend.warnings(), [""; 0]);
    }
    fewest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_takes_at_most_eight_round_trips() {
    let server = RedisServer::start();
    let distance = Distance::start(server.port(), ROUND_TRIP).await;
    let mut trips = vec![round_trips(|| RedisBackend::builder(distance.url())).await];
    let several =
        || RedisBackend::builder(distance.url()).connections(NonZeroUsize::new(4).unwrap());
    trips.push(round_trips(several).await);
    eprintln!("round trips: {trips:.1?}");
    assert!(trips.iter().all(|it| *it < 9.0), "{trips:.1?}");
}

/// A server replies to no command of the trial in time.
#[tokio::test]
async fn round_trip_beyond_response_timeout_fails() {
    let server = RedisServer::start();
    let distance = Distance::start(server.port(), ROUND_TRIP).await;
    let builder = RedisBackend::builder(distance.url()).response_timeout(150 * MS);
    let started = Instant::now();
    let error = builder.connect().await.unwrap_err();
    let took = started.elapsed();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let text = chain(&error);
    assert!(text.ends_with("no reply within 150ms"), "{text}");
    // Three round trips of the dial and the response timeout, and far from those of the whole trial on a busy machine.
    assert!(took < 10 * ROUND_TRIP, "{took:?}");
}

#[tokio::test]
async fn connect_timeout_limits_dial_alone() {
    let server = RedisServer::start();
    let distance = Distance::start(server.port(), ROUND_TRIP).await;
    let connect = |timeout| {
        let builder = RedisBackend::builder(distance.url()).response_timeout(3 * SECOND);
        builder.connect_timeout(timeout).connect()
    };
    // The dial takes at most three round trips, and the commands more.
    connect(ROUND_TRIP * 5).await.unwrap();
    let error = connect(ROUND_TRIP * 3 / 2).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let text = chain(&error);
    assert!(text.ends_with("no connection within 300ms"), "{text}");
}
