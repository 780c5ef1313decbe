//! Passwords are shown nowhere; keys and owners only where the subject is a lock.
//!
//! The values are words that nothing else would say. They go in wherever such a value may, and
//! whatever can be formatted, comes out as an error, is logged or counted is searched for them.
// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod canary;
mod errors;
mod observed;
mod responses;
mod types;

#[path = "../support/exports.rs"]
mod exports;
#[path = "../support/mod.rs"]
mod support;
