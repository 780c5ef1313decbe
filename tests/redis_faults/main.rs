//! Faults of the server, of the network and of the process that holds a lock.
// Test helpers follow the rules for tests.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod dropped;
mod hangs;
mod holder;
mod network;
mod process;
mod rejected;
mod restarts;
#[path = "../support/mod.rs"]
mod support;
