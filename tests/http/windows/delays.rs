//! Waiters with bodies on one HTTP/2 connection: the holder and other keys are not delayed.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::routing::any;
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use http::{Method, Request, StatusCode};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::http2::SendRequest;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::Service;
use tower_lock::keys::ByPath;
use tower_lock::{LockLayer, LockManager, LockScopeLayer, Locked};

use crate::scope::support::LockedId;
use crate::served::{OnDrop, WINDOW, over_http2};
use crate::support::engine::{PATIENCE, within};

type Client = SendRequest<BoxBody<Bytes, Infallible>>;

/// With one more request, the streams that hyper permits on one connection.
const WAITERS: usize = 199;
const KIB: usize = 1024;
const PART: usize = 16 * KIB;
const ROUNDS: usize = 9;
const BOUND: Duration = Duration::from_millis(100);

pub(super) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// The bytes that handlers have read.
type Read = Arc<AtomicUsize>;

async fn count(Extension(read): Extension<Read>, body: Body) {
    let mut frames = body.into_data_stream();
    while let Some(frame) = frames.next().await {
        read.fetch_add(frame.unwrap().len(), Ordering::Relaxed);
    }
}

async fn send(
    mut client: Client,
    address: SocketAddr,
    method: Method,
    path: &str,
    body: BoxBody<Bytes, Infallible>,
) -> StatusCode {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"));
    let request = request.body(body).unwrap();
    client.send_request(request).await.unwrap().status()
}

/// The shortest delay of several rounds. A full window delays all of them, and a busy machine only some.
async fn shortest(mut round: impl AsyncFnMut()) -> Duration {
    let mut shortest = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round().await;
        shortest = shortest.min(start.elapsed());
    }
    shortest
}

/// The body that a client has sent is dropped.
fn body(each: usize, sent: &Arc<AtomicUsize>) -> BoxBody<Bytes, Infallible> {
    let ended = Arc::clone(sent);
    let whole = OnDrop(move || {
        ended.fetch_add(1, Ordering::Relaxed);
    });
    let body = Full::new(Bytes::from(vec![b'x'; each]));
    BodyExt::boxed(body.map_frame(move |frame| {
        let _until_the_end = &whole;
        frame
    }))
}

/// A request whose body the test sends in parts.
struct Upload {
    parts: mpsc::UnboundedSender<Bytes>,
    response: JoinHandle<StatusCode>,
    sent: usize,
}

impl Upload {
    fn begin(client: &Client, address: SocketAddr, path: &'static str) -> Self {
        let (parts, received) = mpsc::unbounded_channel::<Bytes>();
        let body = stream::unfold(received, |mut received| async {
            let part = received.recv().await?;
            Some((Ok::<_, Infallible>(Frame::data(part)), received))
        });
        let body = BodyExt::boxed(StreamBody::new(body));
        let response = tokio::spawn(send(client.clone(), address, Method::POST, path, body));
        Self {
            parts,
            response,
            sent: 0,
        }
    }

    /// Returns how long the handler waits for a part.
    async fn delay(&mut self, read: &AtomicUsize) -> Duration {
        shortest(async || {
            self.parts.send(vec![b'y'; PART].into()).unwrap();
            self.sent += PART;
            let is_read = || read.load(Ordering::Relaxed) == self.sent;
            within(PATIENCE, "the part", is_read).await;
        })
        .await
    }

    async fn end(self) {
        drop(self.parts);
        assert_eq!(self.response.await.unwrap(), StatusCode::OK);
    }
}

/// The request whose delay is measured, on the connection of the waiters.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Measured {
    Holder,
    OtherKey,
}

/// Waiters have sent `each` bytes over one connection, and one more request uploads over it in parts.
async fn waiters_delay_nothing(
    locks: &LockManager,
    address: SocketAddr,
    read: &AtomicUsize,
    waits: Method,
    each: usize,
) {
    // The cases would delay each other.
    static ALONE: Mutex<()> = Mutex::const_new(());
    let _alone = ALONE.lock().await;
    for measured in [Measured::Holder, Measured::OtherKey] {
        read.store(0, Ordering::Relaxed);
        let (client, _socket): (Client, _) = over_http2(address, WINDOW).await;
        let (second, _second): (Client, _) = over_http2(address, WINDOW).await;
        let of_holder = match measured {
            Measured::Holder => &client,
            Measured::OtherKey => &second,
        };
        let mut holder = Upload::begin(of_holder, address, "/hot/a");
        within(PATIENCE, "the holder", || locks.snapshot().held == 1).await;
        let sent = Arc::<AtomicUsize>::default();
        let waiters: Vec<_> = (0..WAITERS)
            .map(|_| {
                let body = body(each, &sent);
                tokio::spawn(send(client.clone(), address, waits.clone(), "/hot/a", body))
            })
            .collect();
        let wait = || locks.snapshot().waiting == WAITERS;
        within(PATIENCE, "waiters", wait).await;
        let are_sent = || sent.load(Ordering::Relaxed) == WAITERS;
        within(PATIENCE, "their bodies", are_sent).await;
        let delay = match measured {
            Measured::Holder => holder.delay(read).await,
            Measured::OtherKey => {
                let mut other = Upload::begin(&client, address, "/hot/b");
                let delay = other.delay(read).await;
                holder.sent = other.sent;
                other.end().await;
                delay
            }
        };
        assert!(delay < BOUND, "{measured:?}, {each} bytes: {delay:?}");
        let expected = holder.sent + WAITERS * each;
        holder.end().await;
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap(), StatusCode::OK);
        }
        assert_eq!(read.load(Ordering::Relaxed), expected);
    }
}

async fn delay_nothing(locks: &LockManager, app: Router, waits: Method) {
    let read = Read::default();
    let address = serve(app.layer(Extension(Arc::clone(&read)))).await;
    for each in [64 * KIB, 8 * KIB] {
        waiters_delay_nothing(locks, address, &read, waits.clone(), each).await;
    }
}

fn layered(layer: LockLayer<ByPath>) -> Router {
    Router::new()
        .route("/hot/{id}", any(count))
        .layer(layer.wait(PATIENCE))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_layer_delay_no_upload() {
    let locks = LockManager::in_memory();
    let app = layered(LockLayer::by_path(locks.clone()));
    delay_nothing(&locks, app, Method::POST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_for_permit_delay_no_upload() {
    let locks = LockManager::in_memory();
    let app = layered(LockLayer::by_path(locks.clone()).permits(1));
    delay_nothing(&locks, app, Method::POST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_waiters_delay_no_upload() {
    let locks = LockManager::in_memory();
    let app = layered(LockLayer::by_path(locks.clone()).shared_reads());
    delay_nothing(&locks, app, Method::GET).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_extractor_delay_no_upload() {
    let locks = LockManager::in_memory();
    let handler = async |Locked(_id, _guard): LockedId, read, body| count(read, body).await;
    let app = Router::new()
        .route("/hot/{id}", any(handler))
        .layer(LockScopeLayer::new().wait(PATIENCE))
        .with_state(locks.clone());
    delay_nothing(&locks, app, Method::POST).await;
}

/// A service of tonic, whose body is not one of axum.
#[derive(Clone)]
struct Counting(Read);

impl tonic::server::NamedService for Counting {
    const NAME: &'static str = "hot";
}

impl Service<Request<tonic::body::Body>> for Counting {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let read = Extension(Arc::clone(&self.0));
        Box::pin(async move {
            count(read, Body::new(request.into_body())).await;
            Ok(http::Response::default())
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_tonic_delay_no_upload() {
    let locks = LockManager::in_memory();
    let read = Read::default();
    let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap());
    let incoming = incoming.unwrap();
    let address = incoming.local_addr().unwrap();
    let layer = LockLayer::by_path(locks.clone()).wait(PATIENCE);
    let server = tonic::transport::Server::builder()
        .layer(layer.read_body_ahead())
        .add_service(Counting(Arc::clone(&read)))
        .serve_with_incoming(incoming);
    tokio::spawn(server);
    for each in [64 * KIB, 8 * KIB] {
        waiters_delay_nothing(&locks, address, &read, Method::POST, each).await;
    }
}
