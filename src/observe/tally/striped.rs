//! Counts in stripes, one per thread as far as they suffice.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const STRIPES: usize = 16;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: usize = THREADS.fetch_add(1, Relaxed) % STRIPES;
}

/// Counts that each thread writes in its own stripe. A stripe is allocated when it is first used.
#[derive(Debug)]
pub(super) struct Striped<T> {
    stripes: [OnceLock<Box<Stripe<T>>>; STRIPES],
}

/// Processors fetch cache lines in pairs of 64 bytes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe<T>(T);

impl<T> Default for Striped<T> {
    fn default() -> Self {
        Self {
            stripes: [const { OnceLock::new() }; STRIPES],
        }
    }
}

impl<T: Default> Striped<T> {
    /// Returns the stripe of this thread.
    #[inline]
    pub(super) fn own(&self) -> &T {
        &self.stripes[STRIPE.with(|stripe| *stripe)]
            .get_or_init(Box::default)
            .0
    }

    /// Returns the stripes that are in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.stripes
            .iter()
            .filter_map(OnceLock::get)
            .map(|it| &it.0)
    }
}
