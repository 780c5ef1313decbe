//! One key that many managers want, one client each: they exclude each other only through the server.
//! The order between processes is the subject: shares, longest waits, and what a dead waiter costs.

mod cell;
mod dead_waiter;
mod figures;
mod grid;
mod targets;

use crate::bench::Bench;

pub(super) fn run(bench: &mut Bench) {
    grid::run(bench);
    dead_waiter::run(bench);
}
