//! What an HTTP client sees of the layer and the extractors, and what a program can build with them.
#![allow(clippy::unwrap_used)]

#[path = "../served/mod.rs"]
mod served;
#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "axum")]
mod body_first;
mod body_first_rules;
#[cfg(feature = "test-util")]
mod by_hand;
mod cost;
#[cfg(unix)]
mod grpc;
#[cfg(feature = "axum")]
mod keys;
#[cfg(feature = "axum")]
mod locked_by;
#[cfg(all(feature = "axum", feature = "metrics", feature = "tracing"))]
mod misconfigured;
mod options;
#[cfg(feature = "axum")]
mod paths;
#[cfg(feature = "axum")]
mod random;
mod retry_after;
mod scope;
#[cfg(unix)]
mod shutdown;
mod stacks;
