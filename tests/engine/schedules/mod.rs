//! Rare orders of events.

mod attempts;
mod keeps;
mod losses;
mod support;
