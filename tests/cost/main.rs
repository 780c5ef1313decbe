//! What locks cost, in allocations and CPU time.
//!
//! It is a program of its own: the allocator is global, and a subscriber of another test would add allocations.
#![allow(clippy::unwrap_used)]

mod layer;
mod watchdog;
