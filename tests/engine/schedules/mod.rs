//! Rare orders of events.

mod attempts;
mod extensions;
mod losses;
mod support;
