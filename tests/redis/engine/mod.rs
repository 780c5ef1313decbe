//! The engine on a real server.

mod commands;
mod holds;
mod support;
mod tokens;
