//! What an HTTP client sees of the layer and the extractors, and what a program can build with them.
#![allow(clippy::unwrap_used)]

mod axum_traps;
#[cfg(feature = "redis")]
mod body_first;
mod body_first_rules;
#[cfg(feature = "test-util")]
mod by_hand;
mod compile_errors;
#[cfg(all(feature = "dashboard", feature = "tracing"))]
mod dashboard;
#[cfg(feature = "redis")]
mod disconnects;
mod extract;
#[cfg(all(unix, feature = "redis"))]
mod grpc;
#[cfg(feature = "redis")]
mod http2;
mod keys;
mod layer;
mod locked_by;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod misconfigured;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod observe;
mod options;
mod paths;
#[cfg(all(unix, feature = "redis"))]
mod permits;
mod places;
mod random;
mod rejections;
mod retry_after;
mod rewritten_paths;
mod scope;
mod served;
mod shared_reads;
mod shutdown;
mod stacks;
mod status_table;
#[path = "../support/mod.rs"]
mod support;
mod versions;
mod windows;
