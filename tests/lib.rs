//! Documentation tests of the pages whose programs need more than the crate and its examples.

#[cfg(doctest)]
#[path = "../src/guide/fencing.rs"]
mod fencing;

#[cfg(doctest)]
#[doc = include_str!("../src/observe/metrics/prometheus.md")]
struct Prometheus;
