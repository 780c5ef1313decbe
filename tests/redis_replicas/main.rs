//! Grants that require acknowledgements from replicas.
// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod connecting;
mod connections;
mod grants;
mod replies;
#[path = "../support/mod.rs"]
mod support;
mod too_few;
mod topologies;
mod trio;
