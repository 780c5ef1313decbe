//! The Redis backend's data format, contract, error handling, connections and subscriptions.

mod client;
mod conformance;
mod connections;
pub(crate) mod contract;
mod format;
mod rejected;
mod settings;
mod subscriptions;
