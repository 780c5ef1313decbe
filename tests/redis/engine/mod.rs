//! The engine on a real server.

mod commands;
mod forced;
mod holds;
mod kept;
mod permits;
mod shared;
mod support;
mod tokens;
