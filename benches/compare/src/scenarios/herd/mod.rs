//! One key and many managers with one client each, which exclude each other only through the server. The
//! subject is the order between processes: shares, longest waits, and the cost of a dead waiter.

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
