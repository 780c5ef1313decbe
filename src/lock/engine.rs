//! The state shared by all handles, guards and tasks of one manager.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use uuid::Uuid;

use super::clock::{AtomicMoment, Moment};
use super::table::Lanes;
use crate::backend::{
    BackendError, BackendErrorKind, BoxFuture, Capabilities, ErasedBackend, LeaseId,
};
use crate::key::KeyMap;
use crate::lock::lane::{Lane, Seat, Seats};
use crate::lock::lease::LeaseNumber;
use crate::observe::{RenewalOutage, Tally};
use crate::task::{Runtime, with_caller_context, with_output};
use crate::{Error, ErrorKind, LockKey, Owner};
use home::{Forked, Home, HomeEnded};
use options::Options;
use read_budget::ReadBudget;
use recent::Recent;

/// The state of one manager. The alignment keeps the reference count, like [`Numbers`], on a cache
/// line apart from the fields that requests only read.
#[repr(align(128))]
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn ErasedBackend>,
    pub(crate) options: Options,
    pub(crate) capabilities: Capabilities,
    pub(crate) lanes: Lanes,
    pub(crate) home: Arc<Home>,
    pub(crate) seats: Seats,
    pub(crate) budget: Arc<ReadBudget>,
    /// How far the shutdown has come: a [`Shutdown`].
    closing: AtomicU8,
    /// Until when a shutdown waits for replies to releases, once it has no holder and no waiter left.
    pub(crate) replies_by: AtomicMoment,
    /// Whether a caller has asked for a permit.
    has_permits: AtomicBool,
    /// Notified at each stage of a shutdown.
    pub(crate) closed: Arc<tokio::sync::Notify>,
    #[cfg(feature = "dashboard")]
    pub(crate) hot: crate::lock::table::hot::HotKeys,
    pub(crate) id: Uuid,
    pub(crate) tally: Arc<Tally>,
    pub(crate) recent: Recent,
    pub(crate) renewal_outage: RenewalOutage,
    numbers: Numbers,
}

#[repr(align(128))]
struct Numbers(AtomicU64);

/// The stages of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Shutdown {
    /// New acquires and waiters without a deadline are rejected.
    Draining = 1,
    /// All waiters are rejected.
    Rejecting,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn ErasedBackend>,
        options: Options,
        runtime: Option<Runtime>,
    ) -> Self {
        Self {
            capabilities: backend.capabilities(),
            backend,
            lanes: Lanes::new(),
            seats: Seats::new(options.max_waiters),
            budget: ReadBudget::new(options.read_ahead, options.max_read_ahead),
            options,
            home: Arc::new(Home::new(runtime)),
            closing: AtomicU8::new(0),
            replies_by: AtomicMoment::new(Moment::FIRST),
            has_permits: AtomicBool::new(false),
            closed: Arc::default(),
            #[cfg(feature = "dashboard")]
            hot: crate::lock::table::hot::HotKeys::default(),
            id: Uuid::new_v4(),
            tally: Arc::default(),
            recent: Recent::default(),
            renewal_outage: RenewalOutage::default(),
            // Holds are identified by these numbers, and 0 is reserved.
            numbers: Numbers(AtomicU64::new(1)),
        }
    }

    /// Returns a number larger than all earlier ones.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the owner with this number, which [`next_number`](Self::next_number) has returned.
    pub(crate) fn owner(&self, number: u64) -> Owner {
        let Some(number) = NonZeroU64::new(number) else {
            unreachable!("BUG: numbers begin at 1");
        };
        Owner::new(self.id, number)
    }

    /// Returns the id of a new lease.
    pub(crate) fn new_lease_id(&self) -> LeaseId {
        LeaseId::new(self.id, self.next_number())
    }

    pub(crate) fn lease_id(&self, number: LeaseNumber) -> LeaseId {
        LeaseId::new(self.id, number.get())
    }

    /// Returns `true` if an owner may hold a permit.
    pub(crate) fn has_permits(&self) -> bool {
        self.has_permits.load(Ordering::Relaxed)
    }

    /// Records that an owner asks for a permit.
    pub(crate) fn note_permits(&self) {
        self.has_permits.store(true, Ordering::Relaxed);
    }

    /// Reads the lanes of one key, each with its own key: that of its locks, and one for each permit.
    pub(crate) fn inspect(&self, key: &LockKey, mut check: impl FnMut(&LockKey, &Lane)) {
        self.lanes.inspect(key, |lane| check(key, lane));
        if self.has_permits() {
            self.lanes.inspect_permits(key, check);
        }
    }

    /// Returns the leases of one key, each with the key of its lane.
    pub(crate) fn leases_of(&self, key: &LockKey) -> KeyMap<Option<LeaseNumber>> {
        let mut leases = KeyMap::default();
        self.inspect(key, |key, lane| {
            leases.insert(key.clone(), lane.lease_number());
        });
        leases
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.has_reached(Shutdown::Draining)
    }

    pub(crate) fn has_reached(&self, stage: Shutdown) -> bool {
        self.closing.load(Ordering::SeqCst) >= stage as u8
    }

    /// Begins this stage of the shutdown, if it has not come further.
    pub(crate) fn set_closing(&self, stage: Shutdown) {
        self.closing.fetch_max(stage as u8, Ordering::SeqCst);
        self.closed.notify_waiters();
    }

    /// Returns the present moment.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.home.clock.now()
    }

    /// Runs a command near the caller, and returns its outcome.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the command is finished in the background.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        command: BoxFuture<Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        if self.backend.immediate().is_some() {
            return command.await;
        }
        if !self.home.is_of_this_process() {
            let kind = BackendErrorKind::Unavailable;
            return Err(BackendError::refused(kind, Forked));
        }
        let (task, outcome) = with_output(with_caller_context(command));
        self.home.spawn_near(task);
        (outcome.await).unwrap_or_else(|| Err(BackendError::unknown(HomeEnded)))
    }

    /// Returns when a command that is sent now counts as stuck.
    pub(crate) fn stuck_at(&self, now: Moment) -> Moment {
        now + self.capabilities.response_timeout
    }

    /// Reserves a seat among the waiters of the manager.
    ///
    /// # Errors
    ///
    /// Returns [`Overloaded`](ErrorKind::Overloaded) if all seats are reserved, and
    /// [`Unavailable`](ErrorKind::Unavailable) in a fork of the manager's process.
    pub(crate) fn reserve_seat(&self, now: Moment) -> Result<Seat, Error> {
        if !self.home.is_of_this_process_at(now) {
            return Err(Error::new(ErrorKind::Unavailable).with_source(Forked));
        }
        (self.seats.take()).ok_or_else(|| Error::new(ErrorKind::Overloaded))
    }

    /// Adds a seat among the waiters for permits of the key, if the acquire with `seat` begins to wait for one. The
    /// lane of any other acquire counts its waiters. Returns `None` if `limit` seats are reserved.
    #[inline(always)]
    pub(crate) fn add_permit_seat(&self, seat: Seat, key: &LockKey, limit: usize) -> Option<Seat> {
        match key.is_of_permit() {
            true => self.seats.add_permit(seat, key, limit),
            false => Some(seat),
        }
    }

    /// Returns the items in batches of at most `size`, each with keys of only one backend group. Groups
    /// do not share commands.
    pub(crate) fn in_batches<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        size: usize,
        key: impl Fn(&T) -> &LockKey,
    ) -> Vec<Vec<T>> {
        let mut groups = BTreeMap::<u64, Vec<T>>::new();
        let mut batches = Vec::new();
        for item in items {
            let batch = groups.entry(self.backend.group(key(&item))).or_default();
            batch.push(item);
            if batch.len() == size {
                batches.push(std::mem::replace(batch, Vec::with_capacity(size)));
            }
        }
        batches.extend(groups.into_values().filter(|batch| !batch.is_empty()));
        batches
    }

    /// Returns the number of releases that continue without their lanes. Read it after the lanes.
    pub(crate) fn unconfirmed(&self) -> usize {
        // Read first: a release that starts in between is counted twice, and never missed.
        let unstarted = self.lanes.unstarted();
        unstarted + self.home.unconfirmed.len()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.return_kept();
        #[cfg(feature = "metrics")]
        self.tally.end_reports();
    }
}

#[cfg(feature = "metrics")]
pub(super) mod gauges;
pub(super) mod home;
mod keep;
pub(super) mod options;
pub(super) mod read_budget;
mod recent;
pub(super) mod release_queue;
#[cfg(test)]
mod tests;
#[cfg(feature = "tracing")]
pub(super) mod trace_keys;
pub(super) mod unconfirmed;
pub(super) mod wake;
