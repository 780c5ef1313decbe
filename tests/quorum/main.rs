//! Several stores as one: a failing minority, and a missing majority.
#![allow(clippy::unwrap_used)]

mod cancellation;
mod contention;
mod majority;
mod minority;
mod runtimes;
mod settings;
#[path = "../support/mod.rs"]
mod support;
mod world;
