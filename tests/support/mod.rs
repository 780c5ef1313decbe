//! Helpers of several tests. Each test uses some of them.
#![allow(dead_code)]

pub(crate) mod cluster;
pub(crate) mod endpoint;
pub(crate) mod engine;
pub(crate) mod errors;
pub(crate) mod example;
pub(crate) mod log;
pub(crate) mod other_runtime;
pub(crate) mod patience;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod redis_server;
pub(crate) mod sentinel;
pub(crate) mod suspended_clock;
pub(crate) mod tls;
