//! `Retry-After` under load: beside it, when a retry is served.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::{LockLayer, LockManager, LockRejection, Memory};

use crate::served::{path_key, post};
use crate::support::engine::SECOND;

/// Clients of several processes that request one key, again at once after an answer, or when `Retry-After` says.
#[derive(Debug, Clone, Copy)]
struct Load {
    processes: usize,
    clients: usize,
    hold: Duration,
    wait: Duration,
}

/// One rejection: what it said, and when a retry was served.
#[derive(Debug, Clone, Copy)]
struct Seen {
    said: Duration,
    served: Duration,
}

impl Seen {
    /// Within a factor of 2, or 1 s, whichever is more.
    fn is_close(self) -> bool {
        let Self { said, served } = self;
        said <= (2 * served).max(served + SECOND) && served <= (2 * said).max(said + SECOND)
    }
}

async fn client(
    locks: LockManager,
    load: Load,
    start: Instant,
    probes: Arc<Semaphore>,
    seen: Arc<Mutex<Vec<Seen>>>,
) {
    let hold = load.hold;
    let layer = LockLayer::by_path(locks.clone()).wait(load.wait);
    let service = layer.layer(service_fn(move |_: Request<String>| async move {
        sleep(hold).await;
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let end = 2 * SECOND + load.wait * 2 + load.hold * 10;
    let has_few = || seen.lock().unwrap().len() < MIN_REJECTIONS;
    // A minute is enough for each of these loads.
    while start.elapsed() < end || (has_few() && start.elapsed() < end + 60 * SECOND) {
        let response = service.clone().oneshot(post("/a")).await.unwrap();
        if response.status() == StatusCode::OK {
            continue;
        }
        let said = response.headers()["retry-after"].to_str().unwrap();
        let said = Duration::from_secs(said.parse().unwrap());
        let rejection: &LockRejection = response.extensions().get().unwrap();
        assert!(rejection.error().is_busy());
        // After the first waits, and so few at a time that the retries are not the load.
        let probes = probes.try_acquire();
        if start.elapsed() > load.wait + load.hold * 4 && probes.is_ok() {
            let asked = Instant::now();
            let retry = locks.acquire(path_key("/a")).wait_forever();
            drop(
                timeout(60 * SECOND, retry)
                    .await
                    .expect("in its turn")
                    .unwrap(),
            );
            let served = asked.elapsed();
            seen.lock().unwrap().push(Seen { said, served });
        } else {
            sleep(said).await;
        }
    }
}

async fn under(load: Load) -> Vec<Seen> {
    let memory = Memory::new();
    let seen = Arc::default();
    let probes = Arc::new(Semaphore::new(1 + load.clients / 100));
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..load.processes {
        let locks = LockManager::builder(memory.clone()).build().unwrap();
        for _ in 0..load.clients.div_ceil(load.processes) {
            let (locks, probes, seen) = (locks.clone(), Arc::clone(&probes), Arc::clone(&seen));
            clients.spawn(client(locks, load, start, probes, seen));
        }
    }
    clients.join_all().await;
    Arc::into_inner(seen).unwrap().into_inner().unwrap()
}

/// The fewest rejections that are a measurement of a load.
const MIN_REJECTIONS: usize = 10;

fn medians(seen: &[Seen]) -> Seen {
    let median = |of: fn(&Seen) -> Duration| {
        let mut values: Vec<_> = seen.iter().map(of).collect();
        values.sort();
        values[values.len() / 2]
    };
    Seen {
        said: median(|seen| seen.said),
        served: median(|seen| seen.served),
    }
}

/// With several processes, a retry is served in one of two times, about equally often: in the turn of its process, or
/// after the turn of another. The median of the few times is one or the other, so it also suffices that half of the
/// rejections are close to their own retries.
#[tokio::test(start_paused = true)]
async fn retry_after_is_close_to_when_retry_succeeds() {
    let mut wrong = Vec::new();
    for processes in [1, 4] {
        for (clients, wait) in [(2, 10), (40, 100), (200, 1_000), (1_000, 5_000)] {
            for hold in [1, 20, 100, 500] {
                let load = Load {
                    processes,
                    clients,
                    hold: Duration::from_millis(hold),
                    // All clients in turn take longer, so some are rejected.
                    wait: Duration::from_millis(wait.min(clients as u64 * hold / 4)),
                };
                let seen = under(load).await;
                assert!(seen.len() >= MIN_REJECTIONS, "{load:?}: {}", seen.len());
                let close = seen.iter().filter(|seen| seen.is_close()).count();
                let line = format!("{load:?}: {close} of {}", seen.len());
                let half_is_close = processes > 1 && 2 * close >= seen.len();
                let is_close = half_is_close || medians(&seen).is_close();
                if !is_close {
                    wrong.push(line);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
