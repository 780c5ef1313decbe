//! Known traps between a lock, axum and a real connection.

mod connections;
mod middleware;
mod nesting;
mod routes;
mod support;
