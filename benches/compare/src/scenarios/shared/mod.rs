//! Shared locks: readers that join one lease, pairs on distinct keys, and a writer among readers.

mod distinct;
mod joins;
mod writer;

use crate::bench::Bench;

pub(super) fn run(bench: &mut Bench) {
    joins::run(bench);
    distinct::run(bench);
    writer::run(bench);
}
