//! The Redis backend's data format, error handling, connections and subscriptions.

mod client;
mod connections;
mod format;
mod rejected;
mod settings;
mod subscriptions;
