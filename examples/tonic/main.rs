//! Shows: a gRPC service whose calls lock accounts, which are named in the metadata or in the message.
//! Run: `cargo run -p example-tonic`. It calls itself concurrently, prints the replies, and continues to serve.
//! Look at: `layer` and `transfer`, which lock, and `status`, which a client of a busy account receives.
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a program with output.

#[path = "../shared/mod.rs"]
mod shared;

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, pending};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::PathAndQuery;
use lexopt::prelude::*;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};
use tower_lock::keys::KeyExtractor;
use tower_lock::{ErrorKind, LockKey, LockKeys, LockLayer, LockManager, LockRejection};

use shared::{stop_requested, with_causes};

const HELP: &str = "\
A bank over gRPC, one call at a time per account.

Usage: cargo run -p example-tonic -- [options]

  --port N     listen on 127.0.0.1:N (default 50051; 0 takes any free port)
  --locks URL  keep the locks there (default memory://), for instance
               redis://127.0.0.1:6379
  --help       show this
";

/// How long a call waits for its accounts.
const WAIT: Duration = Duration::from_secs(2);

/// How long calls have to finish after a signal.
const GRACE: Duration = Duration::from_secs(10);

/// Locks the account in the metadata of a call. The key is ["account", <value>].
fn layer(locks: LockManager) -> LockLayer<impl KeyExtractor> {
    LockLayer::by_header(locks, "account")
        .skip(|request| request.uri.path() == TRANSFER)
        // The work is done when the reply begins. A client that does not read it would otherwise hold the account.
        .release_at_head()
        .wait(WAIT)
}

impl Bank {
    /// Runs under the lock of the layer.
    async fn deposit(self, call: Request<Deposit>) -> Result<Response<Balance>, Status> {
        let account = call.metadata().get("account");
        let account = account.and_then(|account| account.to_str().ok());
        let account = account.ok_or_else(|| Status::invalid_argument("account: not text"))?;
        let amount = i64::from(call.get_ref().amount);
        let balance = self.read(account).await + amount;
        self.write(account, balance);
        Ok(Response::new(Balance { balance }))
    }

    /// Locks both accounts of the message, all or none, with the keys of the layer. The work is dropped if a lock is
    /// lost.
    async fn transfer(self, call: Request<Transfer>) -> Result<Response<Balance>, Status> {
        let Transfer { from, to, amount } = call.into_inner();
        if from == to {
            return Err(Status::invalid_argument("an account cannot pay itself"));
        }
        let keys = LockKeys::from([&from, &to].map(|name| LockKey::from_parts(["account", name])));
        let work = async |_held| {
            let balance = self.read(&from).await - i64::from(amount);
            let other = self.read(&to).await + i64::from(amount);
            self.write(&from, balance);
            self.write(&to, other);
            Response::new(Balance { balance })
        };
        let locked = self.locks.acquire(keys).wait(WAIT).run(work);
        locked.await.map_err(status)
    }
}

/// Returns the status with which the layer responds to the same error.
fn status(error: tower_lock::Error) -> Status {
    let code = match error.kind() {
        ErrorKind::Busy => Code::Aborted,
        ErrorKind::PermitsExhausted | ErrorKind::TooManyWaiters | ErrorKind::Overloaded => {
            Code::ResourceExhausted
        }
        ErrorKind::Unavailable | ErrorKind::ShuttingDown => Code::Unavailable,
        ErrorKind::InvalidKey => Code::InvalidArgument,
        _ => Code::Internal,
    };
    let mut status = Status::new(code, error.to_string());
    // A client with a retry policy waits for that long.
    if let Some(retry_after) = LockRejection::from(error).retry_after() {
        let millis = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
        status.metadata_mut().insert(RETRY, millis.into());
    }
    status
}

type Failure = Box<dyn Error + Send + Sync>;

const RETRY: &str = "grpc-retry-pushback-ms";

/// The storage. It does not lock. For one that rejects the writes of stale holders, see the example `orders`.
#[derive(Clone)]
struct Bank {
    balances: Arc<Mutex<HashMap<String, i64>>>,
    locks: LockManager,
}

impl Bank {
    async fn read(&self, account: &str) -> i64 {
        let balances = self.balances.lock();
        let balance = balances
            .unwrap_or_else(PoisonError::into_inner)
            .get(account)
            .copied();
        // The reply takes time, and the account can change before it arrives.
        sleep(Duration::from_millis(5)).await;
        balance.unwrap_or(0)
    }

    fn write(&self, account: &str, balance: i64) {
        let balances = self.balances.lock();
        let mut balances = balances.unwrap_or_else(PoisonError::into_inner);
        balances.insert(account.to_owned(), balance);
    }
}

// The rest of a service is usually generated by `tonic-prost-build`, which needs `protoc`, from this file:
//
//     syntax = "proto3";
//     package bank;
//     service Bank {
//         rpc Deposit(Deposit) returns (Balance); // The metadata `account` names the account.
//         rpc Transfer(Transfer) returns (Balance);
//     }

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

/// The balance after a call, of the account that was named first.
#[derive(Clone, PartialEq, prost::Message)]
struct Balance {
    #[prost(int64, tag = "1")]
    balance: i64,
}

const DEPOSIT: &str = "/bank.Bank/Deposit";
const TRANSFER: &str = "/bank.Bank/Transfer";

impl NamedService for Bank {
    const NAME: &'static str = "bank.Bank";
}

impl Service<http::Request<Body>> for Bank {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let bank = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                DEPOSIT => {
                    let deposit = service_fn(|call| bank.clone().deposit(call));
                    let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
                    grpc.unary(deposit, request).await
                }
                TRANSFER => {
                    let transfer = service_fn(|call| bank.clone().transfer(call));
                    let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
                    grpc.unary(transfer, request).await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Options::from_args() {
        Ok(Some(options)) => run(options).await,
        Ok(None) => {
            print!("{HELP}");
            Ok(())
        }
        Err(error) => Err(format!("{error}; try --help").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tonic: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Failure> {
    let locks = LockManager::connect(&options.locks).await?;
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, options.port).into())?;
    let address = incoming.local_addr()?;
    println!("The bank is open at http://{address}.");
    let bank = Bank {
        balances: Arc::default(),
        locks: locks.clone(),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let server = Server::builder()
        .layer(layer(locks.clone()))
        .add_service(bank)
        .serve_with_incoming_shutdown(incoming, async { drop(stopped.await) });
    let mut server = pin!(server);
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        failed = demonstrate(address, &locks) => failed?,
        stopping = stop_requested() => stopping?,
    }
    // Both run concurrently. The server accepts no connections and lets its calls finish. The manager serves those
    // that wait, and releases the locks of the calls that finish.
    drop(stop);
    let (left, served) = tokio::join!(locks.shutdown(GRACE), timeout(GRACE, server));
    if !left.is_idle() {
        eprintln!("tonic: still at work after {GRACE:?}: {left:?}");
    }
    Ok(served??)
}

/// Calls the server, prints the replies, and then waits to be dropped.
async fn demonstrate(address: SocketAddr, locks: &LockManager) -> Result<(), Failure> {
    let channel = Endpoint::from_shared(format!("http://{address}"))?
        .connect()
        .await?;
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        calls.spawn(deposit(channel.clone(), "alice", 1));
        calls.spawn(transfer(channel.clone(), "alice", "bob", 1));
    }
    while let Some(called) = calls.join_next().await {
        called??;
    }
    println!("8 deposits to alice and 8 transfers from alice to bob, concurrently:");
    for account in ["alice", "bob"] {
        let balance = deposit(channel.clone(), account, 0).await?;
        println!("  {account} has {balance}");
    }
    let audit = locks
        .acquire(LockKey::from_parts(["account", "bob"]))
        .await?;
    for called in [
        deposit(channel.clone(), "bob", 1).await,
        transfer(channel, "alice", "bob", 1).await,
    ] {
        let busy = called.err().ok_or("the account was not locked")?;
        let (code, retry) = (busy.code(), busy.metadata().get(RETRY));
        println!("while an audit holds the account: {code:?}, {RETRY} {retry:?}");
    }
    drop(audit);
    println!("Ctrl-C closes the bank.");
    pending().await
}

async fn deposit(channel: Channel, account: &'static str, amount: u32) -> Result<i64, Status> {
    let mut request = Request::new(Deposit { amount });
    let account = MetadataValue::from_static(account);
    request.metadata_mut().insert("account", account);
    call(channel, DEPOSIT, request).await
}

async fn transfer(
    channel: Channel,
    from: &'static str,
    to: &'static str,
    amount: u32,
) -> Result<i64, Status> {
    let (from, to) = (from.to_owned(), to.to_owned());
    call(
        channel,
        TRANSFER,
        Request::new(Transfer { from, to, amount }),
    )
    .await
}

async fn call<M: prost::Message + 'static>(
    channel: Channel,
    path: &'static str,
    request: Request<M>,
) -> Result<i64, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    let ready = client.ready().await;
    ready.map_err(|error| Status::from_error(error.into()))?;
    let codec = ProstCodec::<M, Balance>::default();
    let replied = client.unary(request, PathAndQuery::from_static(path), codec);
    Ok(replied.await?.into_inner().balance)
}

struct Options {
    port: u16,
    locks: String,
}

impl Options {
    /// Returns `None` if help was requested.
    fn from_args() -> Result<Option<Self>, lexopt::Error> {
        let mut options = Self {
            port: 50_051,
            locks: "memory://".to_owned(),
        };
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Long("port") => options.port = args.value()?.parse()?,
                Long("locks") => options.locks = args.value()?.string()?,
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        Ok(Some(options))
    }
}
