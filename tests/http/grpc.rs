//! The example `tonic`: a gRPC service that locks.

use std::net::{Shutdown, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tower_lock::{LockKey, LockManager};

use crate::served::{WINDOW, over_http2};
use crate::support::engine::{MS, PATIENCE, SECOND, nothing_is_left, within};
use crate::support::example::program;
use crate::support::redis_server::RedisServer;

#[derive(Clone, PartialEq, prost::Message)]
struct Deposit {
    #[prost(uint32, tag = "1")]
    amount: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Transfer {
    #[prost(string, tag = "1")]
    from: String,
    #[prost(string, tag = "2")]
    to: String,
    #[prost(uint32, tag = "3")]
    amount: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Balance {
    #[prost(int64, tag = "1")]
    balance: i64,
}

async fn deposit(channel: Channel, account: Option<&str>, amount: u32) -> Result<i64, Status> {
    let mut request = Request::new(Deposit { amount });
    if let Some(account) = account {
        let account = account.parse().unwrap();
        request.metadata_mut().insert("account", account);
    }
    call(channel, "/bank.Bank/Deposit", request).await
}

async fn transfer(channel: Channel, from: &str, to: &str, amount: u32) -> Result<i64, Status> {
    let (from, to) = (from.to_owned(), to.to_owned());
    let request = Request::new(Transfer { from, to, amount });
    call(channel, "/bank.Bank/Transfer", request).await
}

async fn call<M: prost::Message + 'static>(
    channel: Channel,
    path: &'static str,
    request: Request<M>,
) -> Result<i64, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let codec = ProstCodec::<M, Balance>::default();
    let replied = client.unary(request, PathAndQuery::from_static(path), codec);
    Ok(replied.await?.into_inner().balance)
}

/// Starts the example. Returns its process and its address.
async fn launch(redis: &RedisServer) -> (Child, SocketAddr) {
    let mut bank = Command::new(program("tonic"))
        .args(["--port", "0", "--locks", &redis.url()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut said = BufReader::new(bank.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, said.next_line()).await.expect("in time");
    let line = line.unwrap().expect("it starts");
    // The example continues to print.
    tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
    let (_, address) = line.trim_end_matches('.').split_once("http://").unwrap();
    (bank, address.parse().unwrap())
}

async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect().await.unwrap()
}

/// Starts the example and connects to it.
async fn start(redis: &RedisServer) -> (Child, Channel) {
    let (bank, address) = launch(redis).await;
    (bank, channel(address).await)
}

/// A call waits for at most 2 s, so the number of calls is small.
#[tokio::test]
async fn grpc_calls_for_one_account_run_in_turn() {
    const CALLS: u32 = 8;
    let redis = RedisServer::start();
    let (mut bank, channel) = start(&redis).await;
    let mut calls = JoinSet::new();
    for n in 0..CALLS {
        let (to_7, to_8) = (channel.clone(), channel.clone());
        calls.spawn(async move { deposit(to_7, Some("7"), 1).await.unwrap() });
        let (from, to) = if n % 2 == 0 { ("7", "8") } else { ("8", "7") };
        calls.spawn(async move { transfer(to_8, from, to, 10).await.unwrap() });
    }
    calls.join_all().await;
    let balance = async |account| deposit(channel.clone(), Some(account), 0).await.unwrap();
    assert_eq!(balance("7").await, i64::from(CALLS));
    assert_eq!(balance("8").await, 0);

    let id = bank.id().unwrap().to_string();
    let killed = std::process::Command::new("kill").arg(&id).status();
    assert!(killed.unwrap().success());
    let ended = timeout(PATIENCE, bank.wait()).await;
    assert!(ended.expect("it ends in time").unwrap().success());
    nothing_is_left(&redis, &[], Duration::ZERO, "the end of the process").await;
}

#[tokio::test]
async fn grpc_call_for_busy_account_is_aborted() {
    let redis = RedisServer::start();
    let (_bank, channel) = start(&redis).await;
    let locks = LockManager::connect(&redis.url()).await.unwrap();
    let guard = locks.acquire(LockKey::from_parts(["account", "7"])).await;
    let (deposited, transferred) = tokio::join!(
        deposit(channel.clone(), Some("7"), 1),
        transfer(channel.clone(), "8", "7", 1),
    );
    for busy in [deposited.unwrap_err(), transferred.unwrap_err()] {
        assert_eq!(busy.code(), Code::Aborted, "{busy:?}");
        let retry = busy.metadata().get("grpc-retry-pushback-ms").unwrap();
        assert!(retry.to_str().unwrap().parse::<u32>().unwrap() > 0);
    }
    guard.unwrap().release().await.unwrap();
    assert_eq!(deposit(channel.clone(), Some("7"), 1).await.unwrap(), 1);

    let unnamed = deposit(channel, None, 1).await.unwrap_err();
    assert_eq!(unnamed.code(), Code::InvalidArgument);
}

/// Calls a method of the bank over plain HTTP/2.
fn raw_deposit(address: SocketAddr) -> http::Request<Full<Bytes>> {
    // A frame without compression, and the message `Deposit { amount: 1 }`.
    let message = Bytes::from_static(&[0, 0, 0, 0, 2, 0x08, 1]);
    http::Request::post(format!("http://{address}/bank.Bank/Deposit"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("account", "7")
        .body(Full::new(message))
        .unwrap()
}

/// Expects no key of the account 7. The example locks others for its own demonstration.
async fn account_is_free(redis: &RedisServer) {
    let keys = || redis.cli(&["KEYS", "*account:7*"]);
    within(2 * SECOND, "no key", || keys().is_empty()).await;
}

#[tokio::test]
async fn grpc_clients_ending_in_flight_leave_no_key() {
    let redis = RedisServer::start();
    let (_bank, address) = launch(&redis).await;
    for round in 0..10 {
        let mut sockets = Vec::new();
        let mut calls = JoinSet::new();
        for _ in 0..4 {
            let (client, socket) = over_http2(address, WINDOW).await;
            sockets.push(socket);
            for _ in 0..5 {
                let mut client: SendRequest<Full<Bytes>> = client.clone();
                calls.spawn(async move { client.send_request(raw_deposit(address)).await });
            }
        }
        // Some calls have ended by then, one runs, and the others wait.
        sleep(3 * round * MS).await;
        for socket in &sockets {
            socket.shutdown(Shutdown::Both).unwrap();
        }
        drop(calls);
        account_is_free(&redis).await;
    }
    let channel = channel(address).await;
    let before = deposit(channel.clone(), Some("7"), 0).await.unwrap();
    assert_eq!(deposit(channel, Some("7"), 1).await.unwrap(), before + 1);
}

/// The message and the trailers of a reply are a stream. One that is not read must not hold the account.
#[tokio::test]
async fn unread_grpc_reply_holds_no_account() {
    let redis = RedisServer::start();
    let (_bank, address) = launch(&redis).await;
    let (mut client, _socket) = over_http2(address, 0).await;
    let reply = client.send_request(raw_deposit(address)).await.unwrap();
    assert_eq!(reply.status(), 200);
    // A call waits for at most 2 s.
    let channel = channel(address).await;
    assert_eq!(deposit(channel, Some("7"), 1).await.unwrap(), 2);
    drop(reply);
    account_is_free(&redis).await;
}
