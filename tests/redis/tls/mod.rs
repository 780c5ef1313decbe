//! Locks over TLS, and the certificates that it accepts.

mod names;
mod rejected;
mod served;
mod settings;

use std::time::Duration;

use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{ConnectError, RedisBackend};

use crate::support::engine::PATIENCE;
use crate::support::errors::chain;
use crate::support::tls::TlsServer;

/// For locks with frequent renewals.
const SHORT: Duration = Duration::from_millis(1_500);

/// Creates a builder with long timeouts for a busy machine.
fn at(url: impl Into<String>) -> RedisBackendBuilder {
    let builder = RedisBackend::builder(url).connect_timeout(PATIENCE);
    builder.response_timeout(PATIENCE)
}

/// Creates a builder that trusts the server.
fn builder(server: &TlsServer) -> RedisBackendBuilder {
    at(server.url()).ca_certificate(server.ca())
}

/// Returns the causes of a rejected connect.
async fn refusal(builder: RedisBackendBuilder) -> String {
    let error = builder.connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    chain(&error)
}

/// Starts a sentinel of this primary. Returns it, and the URL of the locks.
fn sentinel_of(primary: &TlsServer) -> (TlsServer, String) {
    let port = primary.port();
    let configuration = format!("sentinel monitor locks 127.0.0.1 {port} 1\n");
    let options = ["--sentinel", "--tls-replication", "yes"];
    let options = [&options[..], &["--tls-auth-clients", "no"]].concat();
    let sentinel = primary.start_beside(&configuration, &options);
    let url = sentinel.url().replace("rediss://", "rediss+sentinel://") + "/locks";
    (sentinel, url)
}
