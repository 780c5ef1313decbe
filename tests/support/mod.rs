//! Helpers of several test programs.
#![allow(dead_code, unused_imports, reason = "each program uses some of them")]

pub(crate) mod broken;
#[cfg(feature = "redis")]
pub(crate) mod cluster;
#[cfg(feature = "redis")]
pub(crate) mod distance;
#[cfg(feature = "redis")]
pub(crate) mod endpoint;
#[cfg(feature = "redis")]
pub(crate) mod engine;
pub(crate) mod errors;
pub(crate) mod example;
pub(crate) mod exports;
#[cfg(feature = "redis")]
pub(crate) mod forger;
pub(crate) mod log;
pub(crate) mod other_runtime;
pub(crate) mod panics;
pub(crate) mod patience;
pub(crate) mod preloaded;
pub(crate) mod process;
#[cfg(feature = "redis")]
pub(crate) mod proxy;
#[cfg(feature = "metrics")]
pub(crate) mod recorder;
#[cfg(feature = "redis")]
pub(crate) mod redis_server;
#[cfg(feature = "redis")]
pub(crate) mod sentinel;
pub(crate) mod simulated;
pub(crate) mod suspended_clock;
#[cfg(feature = "redis")]
pub(crate) mod tls;
#[cfg(feature = "redis")]
pub(crate) mod vip;
