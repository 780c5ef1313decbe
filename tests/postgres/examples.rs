//! The examples over PostgreSQL, as processes.

use std::process::{Output, Stdio};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::LONG;
use super::support::engine::MS;
use super::support::example::program;
use super::support::postgres_server::PostgresServer;

async fn run(name: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program(name));
    let output = command.args(arguments).kill_on_drop(true).output();
    timeout(3 * LONG, output).await.expect("it ends").unwrap()
}

fn text(output: &Output) -> String {
    let [out, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{errors}")
}

#[tokio::test]
async fn fenced_ledger_loses_no_cent() {
    let output = run("ledger", &["--seconds", "8"]).await;
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("no cent is lost"), "{text}");
    assert!(!text.starts_with("0 transfers"), "{text}");
}

/// The loss needs a process that is stopped between the grant and its commit.
#[tokio::test]
async fn unfenced_ledger_loses_cent() {
    let output = run("ledger", &["--unfenced"]).await;
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("the sum of all accounts has changed by"),
        "{text}"
    );
}

/// The server can be one with data.
#[tokio::test]
async fn ledger_leaves_tables_of_others() {
    let server = PostgresServer::start(&[]).await;
    server.run("CREATE TABLE account (name text)").await;
    let output = run("ledger", &["--seconds", "1", "--locks", &server.url()]).await;
    assert!(output.status.success(), "{}", text(&output));
    server.run("SELECT name FROM account").await;
}

#[tokio::test]
async fn two_banks_lose_no_update() {
    let server = PostgresServer::start(&[]).await;
    let url = server.url();
    let arguments = ["--once", "--port", "0", "--locks", &url];
    let banks = [(); 2].map(|()| run("bank", &arguments));
    for output in futures_util::future::join_all(banks).await {
        assert!(output.status.success(), "{}", text(&output));
    }
}

#[tokio::test]
async fn orders_keep_locks_in_postgres() {
    let server = PostgresServer::start(&["log_statement=all"]).await;
    let folder = tempfile::tempdir().unwrap();
    let mut orders = Command::new(program("orders"))
        .args(["--port", "0", "--locks", &server.url(), "--database"])
        .arg(folder.path().join("orders.sqlite"))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(orders.stdout.take().unwrap()).lines();
    let address = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("it starts");
            if let Some((_, url)) = line.split_once("http://") {
                return url.split('/').next().unwrap().to_owned();
            }
        }
    };
    let address = timeout(LONG, address).await.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = "PUT /orders/7 HTTP/1.1\r\nHost: orders\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    // The response does not wait for the release.
    let released = async {
        while !server.log().contains("EXECUTE tower_lock_release") {
            sleep(MS).await;
        }
    };
    timeout(LONG, released).await.expect("a release");
}
