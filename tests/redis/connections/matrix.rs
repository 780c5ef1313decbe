//! Servers and proxies of other projects: which work, and which are refused with which text.
//!
//! `make test-servers` starts them and names them in the file `MATRIX`, one a line, in columns between tabs: the name, the
//! URL, a file with the trusted authority or `-`, and `works` or the text of the error. Without it, the server of the
//! other tests stands for them.

use std::fs;

use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{ConnectError, RedisBackend};

use crate::backend::contract::passes_conformance;
use crate::support::engine::SECOND;
use crate::support::errors::chain;
use crate::support::redis_server::RedisServer;

fn builder(url: &str, authority: &str) -> RedisBackendBuilder {
    let builder = RedisBackend::builder(url).response_timeout(2 * SECOND);
    match authority {
        "-" => builder,
        file => builder.ca_certificate(fs::read(file).expect("the authority")),
    }
}

/// Returns the error of a connect, or `None` if locks at the URL keep the contract.
async fn error(url: &str, authority: &str) -> Option<ConnectError> {
    let one = match builder(url, authority).connect().await {
        Ok(backend) => backend,
        Err(error) => return Some(error),
    };
    let other = builder(url, authority).connect().await.unwrap();
    passes_conformance(&one, &other).await;
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listed_servers_have_their_outcome() {
    let server = RedisServer::start();
    let rows = match std::env::var("MATRIX") {
        Ok(file) => fs::read_to_string(file).expect("the file of the matrix"),
        Err(_) => format!("own server\t{}?protocol=2\t-\tworks\n", server.url()),
    };
    for row in rows.lines() {
        let columns: Vec<_> = row.split('\t').collect();
        let [name, url, authority, expected] = columns[..] else {
            panic!("four columns: {row}");
        };
        let said = match error(url, authority).await {
            None => "works".to_owned(),
            Some(error) => chain(&error),
        };
        assert!(said.contains(expected), "{name}: {said}");
    }
}
