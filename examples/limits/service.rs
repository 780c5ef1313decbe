//! The service, which limits the reports of each tenant, as a process or as a task of this one.

use std::env::current_exe;
use std::future::Future;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, stdin};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower_lock::{LockLayer, LockManager};

use crate::Failure;

pub(crate) const LIMIT: u32 = 10;
/// How long a report takes.
const WORK: Duration = Duration::from_millis(200);
/// The time limit of the last releases.
const GRACE: Duration = Duration::from_secs(5);

fn app(locks: LockManager) -> Router {
    let limit = LockLayer::by_header(locks, "x-tenant")
        .permits(LIMIT)
        .no_wait();
    Router::new().route("/report", get(report).route_layer(limit))
}

/// When a report ran, by the clock of the machine. The table is made of these times. No lock depends on them.
#[derive(Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) began: SystemTime,
    pub(crate) ended: SystemTime,
}

async fn report() -> Json<Report> {
    let began = SystemTime::now();
    sleep(WORK).await;
    let ended = SystemTime::now();
    Json(Report { began, ended })
}

/// A service and its port.
pub(crate) struct Service {
    pub(crate) port: u16,
    kind: Kind,
}

enum Kind {
    Process(Child),
    Task {
        stop: oneshot::Sender<()>,
        task: JoinHandle<Result<(), Failure>>,
    },
}

impl Service {
    /// Starts this program again as a service, and reads its port.
    pub(crate) async fn process(locks: &str) -> Result<Self, Failure> {
        let mut process = Command::new(current_exe()?)
            .args(["--serve", "--locks", locks])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().ok_or("it has no output")?;
        let line = BufReader::new(output).lines().next_line().await?;
        let line = line.ok_or("a process did not start")?;
        let port = line.parse();
        let port = port.map_err(|_| format!("a process printed `{line}`, not its port"))?;
        let kind = Kind::Process(process);
        Ok(Self { port, kind })
    }

    pub(crate) async fn task(locks: LockManager) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let (stop, stopped) = oneshot::channel();
        let stopped = async { drop(stopped.await) };
        let task = tokio::spawn(serve(listener, locks, stopped));
        let kind = Kind::Task { stop, task };
        Ok(Self { port, kind })
    }

    pub(crate) async fn stop(self) -> Result<(), Failure> {
        match self.kind {
            Kind::Process(mut process) => {
                drop(process.stdin.take());
                let status = process.wait().await?;
                match status.success() {
                    true => Ok(()),
                    false => Err(format!("a process ended with {status}").into()),
                }
            }
            Kind::Task { stop, task } => {
                drop(stop);
                task.await?
            }
        }
    }
}

/// Prints the port, and serves until the standard input ends.
pub(crate) async fn serve_until_input_ends(locks: LockManager) -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?.port());
    let input_ends = async { drop(stdin().read_to_end(&mut Vec::new()).await) };
    serve(listener, locks, input_ends).await
}

async fn serve(
    listener: TcpListener,
    locks: LockManager,
    end: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    let server = axum::serve(listener, app(locks.clone())).with_graceful_shutdown(end);
    server.await?;
    let left = locks.shutdown(GRACE).await;
    match left.is_idle() {
        true => Ok(()),
        false => Err(format!("still at work after {GRACE:?}: {left:?}").into()),
    }
}
