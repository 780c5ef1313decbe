//! The memory for what callers read while they wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bounds of one manager, in bytes, and what its waiters use of them.
#[derive(Debug)]
pub(crate) struct ReadBudget {
    pub(crate) of_each: usize,
    of_all: usize,
    used: AtomicUsize,
}

/// The bytes of a room that one waiter uses, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadShare(Arc<ReadBudget>, usize);

impl ReadBudget {
    pub(crate) fn new(of_each: usize, of_all: usize) -> Arc<Self> {
        let used = AtomicUsize::new(0);
        Arc::new(Self {
            of_each,
            of_all,
            used,
        })
    }

    /// Returns `true` if a waiter that uses so many bytes may read on.
    pub(crate) fn admits(&self, bytes: usize) -> bool {
        bytes < self.of_each && self.used.load(Ordering::Relaxed) < self.of_all
    }

    pub(crate) fn share(self: &Arc<Self>, bytes: usize) -> ReadShare {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        ReadShare(Arc::clone(self), bytes)
    }
}

impl Drop for ReadShare {
    fn drop(&mut self) {
        self.0.used.fetch_sub(self.1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_bounds_admit_nothing() {
        let budget = ReadBudget::new(10, 20);
        assert!(budget.admits(9) && !budget.admits(10));
        let first = budget.share(19);
        assert!(budget.admits(0));
        let second = budget.share(1);
        assert!(!budget.admits(0));
        drop((first, second));
        assert!(budget.admits(9));
    }
}
