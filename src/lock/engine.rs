//! What all handles, guards and tasks of one manager share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::clock::{Moment, Span};
use super::home::{Home, Homes};
use super::lease::LeaseNumber;
use super::options::Options;
use super::table::Lanes;
use crate::backend::{ErasedBackend, LeaseId};
use crate::task::{Runtime, RuntimeId};
use crate::{Error, ErrorKind, LockKey, Owner};

/// What every request writes lies on cache lines of its own, apart from what it reads: the count of
/// clones, by this alignment, and [`Numbers`].
#[repr(align(128))]
pub(super) struct Engine {
    pub(super) backend: Arc<dyn ErasedBackend>,
    pub(super) options: Options,
    /// How long one command of the backend takes at most.
    pub(super) response_timeout: Duration,
    pub(super) lanes: Lanes,
    pub(super) homes: Homes,
    /// The seats of all waiters of this manager.
    seats: Arc<Semaphore>,
    closing: AtomicBool,
    id: Uuid,
    numbers: Numbers,
}

#[repr(align(128))]
struct Numbers(AtomicU64);

impl Engine {
    pub(super) fn new(
        backend: Arc<dyn ErasedBackend>,
        options: Options,
        runtime: Option<Runtime>,
    ) -> Self {
        let response_timeout = backend.response_timeout();
        Self {
            backend,
            lanes: Lanes::new(response_timeout),
            seats: Arc::new(Semaphore::new(options.max_waiters)),
            options,
            response_timeout,
            homes: Homes::new(runtime),
            closing: AtomicBool::new(false),
            id: Uuid::new_v4(),
            // The holds of a guard are named by these, and 0 is taken.
            numbers: Numbers(AtomicU64::new(1)),
        }
    }

    /// Returns a number larger than each one before.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn new_owner(&self) -> Owner {
        Owner::new(self.id, self.next_number())
    }

    pub(super) fn new_lease_id(&self) -> LeaseId {
        LeaseId::new(self.id, self.next_number())
    }

    pub(super) fn lease_id(&self, number: LeaseNumber) -> LeaseId {
        LeaseId::new(self.id, number.get())
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    pub(super) fn set_closing(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    /// Returns when a command that is sent now is taken to be stuck.
    pub(super) fn stuck_at(&self, now: Moment) -> Moment {
        now + self.response_timeout
    }

    /// Takes a place among all waiters of the manager.
    ///
    /// # Errors
    ///
    /// [`Overloaded`](ErrorKind::Overloaded) if all of them are taken.
    pub(super) fn seat(&self) -> Result<OwnedSemaphorePermit, Error> {
        let seat = Arc::clone(&self.seats).try_acquire_owned();
        seat.map_err(|_all_taken| Error::new(ErrorKind::Overloaded))
    }

    /// Returns the runtime of this id, or another if it has ended.
    pub(super) fn home(&self, id: RuntimeId) -> Option<Arc<Home>> {
        self.homes.get(id).or_else(|| self.homes.any())
    }

    /// Sorts what is about keys by the groups of the backend, which go in commands of their own, and
    /// those into batches of at most `size`.
    pub(super) fn in_batches<T>(
        &self,
        items: Vec<T>,
        size: usize,
        key: impl Fn(&T) -> &LockKey,
    ) -> Vec<Vec<T>> {
        let group = |item: &T| self.backend.group(key(item));
        let mut groups = BTreeMap::<u64, Vec<T>>::new();
        // There is mostly one item.
        if items.len() <= 1 {
            return if items.is_empty() {
                vec![]
            } else {
                vec![items]
            };
        }
        for item in items {
            groups.entry(group(&item)).or_default().push(item);
        }
        let mut batches = Vec::with_capacity(groups.len());
        for mut group in groups.into_values() {
            while group.len() > size {
                let rest = group.split_off(size);
                batches.push(std::mem::replace(&mut group, rest));
            }
            batches.push(group);
        }
        batches
    }

    /// Returns how many releases go on beside their lanes.
    pub(super) fn unresolved(&self) -> usize {
        let homes = self.homes.all();
        homes.iter().map(|home| home.unresolved.len()).sum()
    }

    pub(super) fn lease_span(&self, lease: Option<Duration>) -> Span {
        Span::new(lease.unwrap_or(self.options.watchdog_timeout))
    }
}
