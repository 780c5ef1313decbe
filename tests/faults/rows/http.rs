//! Clients that disconnect and handlers that panic, through axum.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use futures_util::stream;
use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::{Held, LockLayer, LockManager};

use super::Row;
use crate::load::{millis, random};
use crate::referee::{CheckedGuard, Referee};
use crate::run::Run;
use crate::store::Topology::Single;
use crate::support::engine::{MS, SECOND};

pub(super) fn rows() -> Vec<Row> {
    vec![Row::new(
        Single(&[]),
        "clients hang up, handlers panic",
        |run| Box::pin(hung_up(run)),
    )]
}

/// The number of requests of each outcome.
#[derive(Default)]
struct Seen {
    panics: AtomicU64,
    bodies: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    hung_up: AtomicU64,
}

impl Seen {
    fn counts(&self) -> [u64; 5] {
        let Self {
            panics,
            bodies,
            dropped,
            refused,
            hung_up,
        } = self;
        [panics, bodies, dropped, refused, hung_up].map(|it| it.load(Ordering::SeqCst))
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::SeqCst)
}

/// Counts a handler that is dropped before its end.
struct Unfinished(Option<Arc<Seen>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(seen) = &self.0 {
            count(&seen.dropped);
        }
    }
}

async fn handler(
    referee: Arc<Referee>,
    process: usize,
    lease: Duration,
    seen: Arc<Seen>,
    held: Held,
) -> Response {
    let mut unfinished = Unfinished(Some(Arc::clone(&seen)));
    let checked = referee.shown(held, process, Instant::now(), (lease, true));
    // I14.
    let is_held = checked.look();
    referee.expect(is_held, "I14", || "a handler without its lock".to_owned());
    checked.keep(millis(0..20)).await;
    match random(5) {
        0 => {
            unfinished.0 = None;
            count(&seen.panics);
            // A panic without a message.
            std::panic::resume_unwind(Box::new("of a handler"));
        }
        1 => {
            unfinished.0 = None;
            count(&seen.bodies);
            Body::from_stream(stream::unfold((checked, 0), frame)).into_response()
        }
        2 => {
            // The handler sleeps until the client disconnects, or the sleep ends.
            checked.keep(millis(0..200)).await;
            unfinished.0 = None;
            StatusCode::OK.into_response()
        }
        n => {
            unfinished.0 = None;
            let status = if n == 3 {
                StatusCode::OK
            } else {
                StatusCode::INTERNAL_SERVER_ERROR
            };
            status.into_response()
        }
    }
}

/// Creates a body of a few frames, all of them under the lock.
async fn frame(
    (checked, n): (CheckedGuard, u32),
) -> Option<(Result<Bytes, std::io::Error>, (CheckedGuard, u32))> {
    if n == 4 || !checked.keep(millis(0..10)).await {
        return None;
    }
    Some((Ok(Bytes::from_static(b"frame")), (checked, n + 1)))
}

/// Starts the server of one process.
async fn serve(
    run: &Run,
    process: usize,
    locks: LockManager,
    seen: &Arc<Seen>,
) -> (SocketAddr, JoinHandle<()>) {
    let (referee, seen) = (Arc::clone(&run.referee), Arc::clone(seen));
    let lease = run.row.lease;
    let handler = move |held: Held| handler(referee, process, lease, seen, held);
    let layer = LockLayer::by_path(locks).wait(300 * MS);
    let app = Router::new()
        .route("/{key}", post(handler))
        .route_layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its number");
    let server = tokio::spawn(async move { drop(axum::serve(listener, app).await) });
    (address, server)
}

/// The prefix of all paths, and so of all keys.
const WORD: &str = "narwhal";

/// Sends one request, and reads its response or disconnects.
async fn request(
    address: SocketAddr,
    referee: Arc<Referee>,
    seen: Arc<Seen>,
) -> std::io::Result<()> {
    let mut connection = TcpStream::connect(address).await?;
    let path = random(2);
    let head = format!(
        "POST /{WORD}{path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    let whole = connection.read_to_end(&mut answer);
    let whole = if random(2) == 0 {
        let whole = timeout(millis(0..40), whole).await;
        if whole.is_err() {
            count(&seen.hung_up);
        }
        whole.unwrap_or(Ok(0))
    } else {
        whole.await
    };
    let answer = String::from_utf8_lossy(&answer);
    referee.expect(!answer.contains(WORD), "I16", || answer.to_string());
    referee.shows(&*answer);
    whole?;
    if answer.starts_with("HTTP/1.1 409") {
        count(&seen.refused);
    }
    Ok(())
}

async fn hung_up(run: &mut Run) {
    let seen = Arc::new(Seen::default());
    let mut servers = Vec::new();
    for (process, locks) in run.managers.iter().enumerate() {
        servers.push(serve(run, process, locks.clone(), &seen).await);
    }
    // The load runs for two seconds, and until each outcome has occurred.
    let (enough, late) = (Instant::now() + 2 * SECOND, Instant::now() + 20 * SECOND);
    let goes_on = || {
        let all_seen = || seen.counts().iter().all(|count| *count > 0);
        let now = Instant::now();
        now < enough || now < late && !all_seen()
    };
    let mut clients = Vec::new();
    while goes_on() {
        for (address, _) in &servers {
            let (referee, seen) = (Arc::clone(&run.referee), Arc::clone(&seen));
            clients.push(tokio::spawn(request(*address, referee, seen)));
        }
        sleep(millis(5..25)).await;
    }
    for client in clients {
        // A reset by a handler that panicked also counts as a response.
        drop(client.await);
    }
    // All connections are closed, so all clients have ended.
    servers.iter().for_each(|(_, server)| server.abort());
    let counts = seen.counts();
    let [panics, bodies, dropped, refused, hung_up] = counts;
    run.proof(
        counts.iter().all(|count| *count > 0),
        format!("{panics} panics, {bodies} bodies, {dropped} handlers dropped, {refused} rejected, {hung_up} clients gone"),
    );
}
