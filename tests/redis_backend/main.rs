//! The Redis backend's data format, error handling, connections and subscriptions.
// Test helpers follow the rules for tests.
#![allow(clippy::unwrap_used)]

mod client;
mod connections;
mod format;
mod rejected;
mod settings;
mod subscriptions;
#[path = "../support/mod.rs"]
mod support;
