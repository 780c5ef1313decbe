//! Endpoints that lead to another server than before, while open connections stay at the former one.

mod clocks;
mod cluster;
mod forged;
mod primary;
mod stale;
mod support;
