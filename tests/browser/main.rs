//! The page of the dashboard, in a real Chromium.
//!
//! It is a program of its own, run by `make browser`, which installs it.
#![allow(clippy::unwrap_used)]

mod actions;
mod appearance;
mod backend;
mod driver;
mod hostile;
mod page;
mod security;
mod server;
mod service;
#[path = "../support/mod.rs"]
mod support;
