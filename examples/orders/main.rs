//! Shows: orders in one SQLite file, which any number of processes change, one request at a time per order.
//! Run: `cargo run -p example-orders`, or see below for two processes.
//! Look at: `app`, which locks the route, and `claim` and `write`, which pass the fencing token to the storage.
//!
//! ```text
//! cargo run -p example-orders -- --locks redis://127.0.0.1:6379 --port 3000
//! cargo run -p example-orders -- --locks redis://127.0.0.1:6379 --port 3001
//! ```
//!
//! With `--features postgres`, the locks can be in a PostgreSQL: `--locks postgres://app@localhost/shop`. With
//! `--features tracing`, it also prints lost locks, outages and warnings about a server.
//!
//! The lock prevents useless work. The token keeps the orders right even if a process pauses for longer than its
//! lease and then continues.
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a program with output.

#[path = "../shared/mod.rs"]
mod shared;

use std::error::Error;
use std::future::IntoFuture as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use lexopt::prelude::*;
use rusqlite::{Connection, OptionalExtension as _};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{sleep, timeout};
use tower_lock::{FencingToken, Held, LockLayer, LockManager, LockManagerBuilder};

use shared::{stop_requested, with_causes};

const HELP: &str = "\
Orders in one SQLite file, one request at a time per order, over HTTP.

Usage: cargo run -p example-orders -- [options]

  --port N         listen on 127.0.0.1:N (default 3000; 0 takes any free port)
  --locks URL      keep the locks there (default memory://, which is for one
                   process), for instance redis://127.0.0.1:6379, or
                   postgres://… with the feature `postgres`
  --database FILE  keep the orders there (default: orders.sqlite in the folder
                   for temporary files)
  --lease SECONDS  how long an order stays locked after the process that
                   locked it died (default 30)
  --help           show this
";

/// How long requests have to finish after Ctrl-C.
const GRACE: Duration = Duration::from_secs(10);

/// How long an order takes.
const WORK: Duration = Duration::from_millis(20);

fn app(orders: Orders, locks: LockManager) -> Router {
    // The key is ["order", <value of the parameter>]: whatever else changes an order locks the same.
    let one_at_a_time = LockLayer::by_path_param(locks, "order").wait(Duration::from_secs(2));
    Router::new()
        .route(
            "/orders/{order}",
            get(show).put(add_one).route_layer(one_at_a_time),
        )
        .with_state(orders)
}

/// Reads, works, and writes what follows from what it read.
async fn add_one(
    held: Held,
    State(orders): State<Orders>,
    Path(id): Path<String>,
) -> Result<Json<Order>, Failure> {
    let token = held.fencing_token();
    let quantity = orders.claim(&id, token).await? + 1;
    // The warehouse is asked. If the lock is lost during this time, the layer drops this future here.
    sleep(WORK).await;
    orders.write(&id, quantity, token).await?;
    Ok(Json(Order::new(id, quantity, token.get())))
}

async fn show(
    State(orders): State<Orders>,
    Path(id): Path<String>,
) -> Result<Json<Order>, Failure> {
    Ok(Json(orders.read(&id).await?))
}

#[derive(Serialize)]
struct Order {
    /// Text and not a number: `7` and `07` would be one order under two locks.
    id: String,
    quantity: i64,
    /// The token of the last write. It exceeds 2^53, so it is a string in JSON.
    token: String,
}

impl Order {
    fn new(id: String, quantity: i64, token: i64) -> Self {
        let token = token.to_string();
        Self {
            id,
            quantity,
            token,
        }
    }
}

/// The storage. It does not lock. It rejects the writes of stale holders.
#[derive(Clone)]
struct Orders(Arc<Mutex<Connection>>);

impl Orders {
    fn open(file: &std::path::Path) -> rusqlite::Result<Self> {
        let database = Connection::open(file)?;
        // Longer than a process may pause during a write.
        database.busy_timeout(Duration::from_secs(10))?;
        database.execute_batch(
            "PRAGMA journal_mode = WAL; -- readers do not wait for writers
             CREATE TABLE IF NOT EXISTS orders (
                 id       TEXT PRIMARY KEY,
                 quantity INTEGER NOT NULL DEFAULT 0,
                 fence    INTEGER NOT NULL DEFAULT 0 -- the largest token seen; elsewhere a BIGINT
             );
             WITH RECURSIVE n(id) AS (VALUES (1) UNION ALL SELECT id + 1 FROM n WHERE id < 20)
             INSERT OR IGNORE INTO orders (id) SELECT id FROM n;",
        )?;
        Ok(Self(Arc::new(Mutex::new(database))))
    }

    async fn read(&self, id: &str) -> Result<Order, Failure> {
        let id = id.to_owned();
        self.with(move |database| find(database, id)).await
    }

    /// Reads the quantity and stores the token, so that later statements with older tokens are rejected.
    ///
    /// A token that is stored only with the write would be too late. A write of the previous holder could arrive
    /// after this read, and the write that follows from this read would overwrite it.
    async fn claim(&self, id: &str, token: FencingToken) -> Result<i64, Failure> {
        let (id, token) = (id.to_owned(), token.get());
        self.with(move |database| {
            let quantity = database.query_one(
                "UPDATE orders SET fence = ?2 WHERE id = ?1 AND fence <= ?2 RETURNING quantity",
                (&id, token),
                |row| row.get(0),
            );
            match quantity.optional()? {
                Some(quantity) => Ok(quantity),
                None => Err(overtaken(&find(database, id)?, token)),
            }
        })
        .await
    }

    async fn write(&self, id: &str, quantity: i64, token: FencingToken) -> Result<(), Failure> {
        let (id, token) = (id.to_owned(), token.get());
        self.with(move |database| {
            let written = database.execute(
                "UPDATE orders SET quantity = ?3, fence = ?2 WHERE id = ?1 AND fence <= ?2",
                (&id, token, quantity),
            )?;
            match written {
                0 => Err(overtaken(&find(database, id)?, token)),
                _ => Ok(()),
            }
        })
        .await
    }

    /// Runs `work` on a thread that may block.
    ///
    /// The work cannot be stopped there. The layer drops a handler if its lock is lost or its client disconnects,
    /// and releases the lock. The work continues while the next holder works, so each statement has the token.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let database = Arc::clone(&self.0);
        spawn_blocking(move || work(&database.lock().unwrap_or_else(PoisonError::into_inner)))
            .await?
    }
}

fn find(database: &Connection, id: String) -> Result<Order, Failure> {
    let sql = "SELECT quantity, fence FROM orders WHERE id = ?1";
    let row = database.query_one(sql, [&id], |row| Ok((row.get(0)?, row.get(1)?)));
    let (quantity, fence) = row.optional()?.ok_or(Failure::NoOrder)?;
    Ok(Order::new(id, quantity, fence))
}

/// Logs one line per rejected statement. Most often, the client has disconnected.
fn overtaken(order: &Order, token: i64) -> Failure {
    eprintln!(
        "orders: stale holder: order {} has token {}, rejected {token}",
        order.id, order.token
    );
    Failure::Overtaken
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no such order")]
    NoOrder,
    #[error("stale holder: a later holder has stored its token; nothing was written")]
    Overtaken,
    #[error("the database failed")]
    Database(#[from] rusqlite::Error),
    #[error("the database's thread failed")]
    Thread(#[from] JoinError),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoOrder => StatusCode::NOT_FOUND,
            // The statement wrote nothing, and a retry may succeed: 409, as for a busy lock. This response is rare.
            // A stale holder has lost its lock, so the layer usually responds first.
            Self::Overtaken => StatusCode::CONFLICT,
            Self::Database(_) | Self::Thread(_) => {
                eprintln!("orders: {}", with_causes(&self));
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        (status, format!("{self}\n")).into_response()
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
            eprintln!("orders: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    // The feature `tracing` of the crate reports through this subscriber.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let locks = LockManagerBuilder::new()
        .watchdog_timeout(options.lease)
        .connect(&options.locks)
        .await?;
    let app = app(Orders::open(&options.database)?, locks.clone());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
    let url = format!("http://{}/orders/7", listener.local_addr()?);
    println!("Try, and Ctrl-C to end:\n\n  curl {url}\n  curl -X PUT {url}\n");

    let (stop, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
    let mut server = pin!(server.into_future());
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        stopping = stop_requested() => stopping?,
    }
    // Both run concurrently. The server accepts no connections and lets its requests finish. The manager serves
    // the waiters and releases the locks of the requests that finish.
    drop(stop);
    let (left, served) = tokio::join!(locks.shutdown(GRACE), timeout(GRACE, server));
    if !left.is_idle() {
        eprintln!("orders: still at work after {GRACE:?}: {left:?}");
    }
    Ok(served??)
}

struct Options {
    port: u16,
    locks: String,
    database: PathBuf,
    lease: Duration,
}

impl Options {
    /// Returns `None` if help was requested.
    fn from_args() -> Result<Option<Self>, lexopt::Error> {
        let mut options = Self {
            port: 3000,
            locks: "memory://".to_owned(),
            database: std::env::temp_dir().join("orders.sqlite"),
            lease: Duration::from_secs(30),
        };
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Long("port") => options.port = args.value()?.parse()?,
                Long("locks") => options.locks = args.value()?.string()?,
                Long("database") => options.database = args.value()?.into(),
                Long("lease") => options.lease = Duration::from_secs(args.value()?.parse()?),
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        Ok(Some(options))
    }
}
