//! What locks cost, in allocations and CPU time.
//!
//! It is a program of its own: the allocator is global, and a subscriber of another test would add allocations.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod acquire;
#[cfg(feature = "dashboard")]
mod dashboard;
mod layer;
mod memory;
mod watchdog;

use std::pin::pin;
use std::task::Poll;

/// Runs `work`, and returns the number of its allocations.
async fn allocations(work: impl Future<Output = ()>) -> u64 {
    let mut work = pin!(work);
    let mut count = 0;
    std::future::poll_fn(|cx| {
        let mut polled = Poll::Pending;
        count += allocation_counter::measure(|| polled = work.as_mut().poll(cx)).count_total;
        polled
    })
    .await;
    count
}
