//! The Redis backend's data format, contract, error handling, connections and subscriptions.

mod client;
mod conformance;
mod connections;
mod format;
mod rejected;
mod settings;
mod subscriptions;
