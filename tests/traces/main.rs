//! The spans and events of `tracing`: the whole list with its fields, and what OpenTelemetry makes of them.
//!
//! It is a program of its own: a subscriber of another test could disable an event for all threads.
#![allow(clippy::unwrap_used)]

mod blocked;
mod fields;
mod opentelemetry;
mod panics;
mod seen;
#[path = "../support/mod.rs"]
mod support;
