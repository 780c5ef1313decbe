//! Clients that wait: over HTTP/1.1 with an incomplete body, and over gRPC.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Bytes;
use axum::routing::any;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use http::uri::PathAndQuery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::server::{ClientStreamingService, UnaryService};
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use tower::Service;
use tower_lock::{LockLayer, LockManager, LockScopeLayer, Locked};

use super::delays::serve;
use crate::scope::support::{LockedId, key};
use crate::served::path_key;
use crate::support::engine::{MS, PATIENCE, within};

/// A layer, and `Locked` in a scope.
async fn servers(locks: &LockManager) -> [SocketAddr; 2] {
    let layer = LockLayer::by_path(locks.clone()).wait(2 * PATIENCE);
    let layered = Router::new()
        .route("/{id}", any(async |body: Bytes| body))
        .layer(layer);
    let handler = async |Locked(_id, _guard): LockedId, body: Bytes| body;
    let scoped = Router::new()
        .route("/{id}", any(handler))
        .layer(LockScopeLayer::new().wait(2 * PATIENCE))
        .with_state(locks.clone());
    [serve(layered).await, serve(scoped).await]
}

async fn send(address: SocketAddr, headers: &str, body: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    let request = format!("POST /a HTTP/1.1\r\nhost: a\r\n{headers}\r\n\r\n{body}");
    client.write_all(request.as_bytes()).await.unwrap();
    client
}

#[tokio::test]
async fn disconnect_with_unsent_body_leaves_queue() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire([path_key("/a"), key("a")]).await.unwrap();
    for address in servers(&locks).await {
        for headers in ["content-length: 5000000", "transfer-encoding: chunked"] {
            let client = send(address, headers, "1\r\n").await;
            within(PATIENCE, "it waits", || locks.snapshot().waiting == 1).await;
            drop(client);
            within(PATIENCE, "it left", || locks.snapshot().waiting == 0).await;
        }
    }
}

#[tokio::test]
async fn waiting_client_is_not_asked_for_body() {
    let locks = LockManager::in_memory();
    for address in servers(&locks).await {
        let guard = locks.acquire([path_key("/a"), key("a")]).await.unwrap();
        let headers = "content-length: 5\r\nexpect: 100-continue";
        let mut client = send(address, headers, "").await;
        within(PATIENCE, "it waits", || locks.snapshot().waiting == 1).await;
        let mut read = [0; 12];
        let asked = timeout(50 * MS, client.read_exact(&mut read)).await;
        assert!(asked.is_err(), "{}", String::from_utf8_lossy(&read));
        drop(guard);
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"HTTP/1.1 100");
        client.write_all(b"12345").await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"12345") {
            response.push(client.read_u8().await.unwrap());
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Part {
    #[prost(bytes = "vec", tag = "1")]
    data: Vec<u8>,
}

/// Returns the length of its parts.
#[derive(Clone)]
struct Lengths;

fn length(data: usize) -> Result<tonic::Response<Part>, tonic::Status> {
    let data = data.to_string().into_bytes();
    Ok(tonic::Response::new(Part { data }))
}

type Replied = BoxFuture<'static, Result<tonic::Response<Part>, tonic::Status>>;

impl UnaryService<Part> for Lengths {
    type Response = Part;
    type Future = Replied;

    fn call(&mut self, request: tonic::Request<Part>) -> Replied {
        std::future::ready(length(request.get_ref().data.len())).boxed()
    }
}

impl ClientStreamingService<Part> for Lengths {
    type Response = Part;
    type Future = Replied;

    fn call(&mut self, request: tonic::Request<tonic::Streaming<Part>>) -> Replied {
        let parts = request.into_inner().map_ok(|part| part.data.len());
        async move {
            let lengths: Vec<usize> = parts.try_collect().await?;
            length(lengths.into_iter().sum())
        }
        .boxed()
    }
}

impl tonic::server::NamedService for Lengths {
    const NAME: &'static str = "lengths";
}

impl Service<http::Request<tonic::body::Body>> for Lengths {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<Part, Part>::default());
            Ok(match request.uri().path() {
                "/lengths/streaming" => grpc.client_streaming(Lengths, request).await,
                _ => grpc.unary(Lengths, request).await,
            })
        }
        .boxed()
    }
}

/// Sends parts of 64 KiB, to be streamed or as one message.
async fn call(channel: Channel, path: &'static str, parts: usize) -> usize {
    const PART: usize = 64 * 1024;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let codec = ProstCodec::<Part, Part>::default();
    let uri = PathAndQuery::from_static(path);
    let part = |length| Part {
        data: vec![7; length],
    };
    let response = match path {
        "/lengths/streaming" => {
            let parts = stream::iter(0..parts).map(move |_| part(PART));
            let request = tonic::Request::new(parts);
            client.client_streaming(request, uri, codec).await
        }
        _ => {
            let request = tonic::Request::new(part(parts * PART));
            client.unary(request, uri, codec).await
        }
    };
    let length = response.unwrap().into_inner().data;
    String::from_utf8(length).unwrap().parse::<usize>().unwrap() / PART
}

/// The bodies of both fill the window of the channel, if the layer does not read them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_grpc_calls_delay_no_other() {
    const CALLS: usize = 20;
    let locks = LockManager::in_memory();
    let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap());
    let incoming = incoming.unwrap();
    let address = incoming.local_addr().unwrap();
    let layer = LockLayer::by_path(locks.clone()).wait(2 * PATIENCE);
    let server = tonic::transport::Server::builder()
        .layer(layer.read_body_ahead())
        .add_service(Lengths)
        .serve_with_incoming(incoming);
    tokio::spawn(server);
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    for (path, parts) in [("/lengths/unary", 1), ("/lengths/streaming", 1)] {
        let guard = locks.acquire(path_key(path)).await.unwrap();
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            calls.spawn(call(channel.clone(), path, parts));
        }
        within(PATIENCE, "calls wait", || locks.snapshot().waiting == CALLS).await;
        let other = call(channel.clone(), "/lengths/other", 8);
        assert_eq!(timeout(PATIENCE, other).await.expect("another key"), 8);
        drop(guard);
        assert_eq!(calls.join_all().await, [parts; CALLS]);
    }
    // One streaming call with more than the bound.
    let path = "/lengths/streaming";
    let guard = locks.acquire(path_key(path)).await.unwrap();
    let waiting = tokio::spawn(call(channel, path, 20));
    within(PATIENCE, "it waits", || locks.snapshot().waiting == 1).await;
    drop(guard);
    assert_eq!(waiting.await.unwrap(), 20);
}
