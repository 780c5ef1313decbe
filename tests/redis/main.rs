//! Locks in Redis, against real servers: one server, Sentinel, Cluster and several independent servers.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod backend;
mod commands;
mod connections;
mod endpoints;
mod engine;
mod faults;
mod library;
mod observe;
mod permissions;
#[cfg(target_os = "linux")]
mod queue;
mod runtimes;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod topologies;
mod versions;
