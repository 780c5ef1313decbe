//! The engine on a real server.

mod commands;
mod forced;
mod holds;
mod support;
mod tokens;
