//! `LockLayer` around bare tower services.

mod bodies;
mod drops;
mod loss;
mod nesting;
mod readiness;
mod requests;
mod settings;
mod support;
