//! Passwords are not shown at all. Keys and owners are shown only in texts about a lock.
//!
//! The values are words that no other text contains. The tests use them as passwords, keys and owners, and
//! search all formatted values, errors, logs and metrics for them.
//!
//! It is a program of its own: it needs all features at once, because each of them could show a secret.
#![allow(clippy::unwrap_used)]

mod canary;
mod dashboard;
mod errors;
mod observed;
mod responses;
mod types;

#[path = "../support/mod.rs"]
mod support;
