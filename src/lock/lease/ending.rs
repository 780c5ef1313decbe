//! Why the grant of a lock has ended or will end.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::observe::LostReason;

/// The end of one grant. Only the lane writes, under its mutex.
#[derive(Debug)]
pub(in crate::lock) struct Ending {
    /// Whether the lease has a fixed end, and no renewal is due.
    lease_is_fixed: AtomicBool,
    /// Whether the limit is the end of a fixed lease, and not that of the longest hold.
    limit_is_lease: AtomicBool,
    state: AtomicU8,
}

/// The states. After a loss, the state is the number of the reason.
const HELD: u8 = u8::MAX;
const WITHDRAWN: u8 = HELD - 1;

impl Ending {
    pub(in crate::lock) fn new(is_renewed: bool) -> Self {
        Self {
            lease_is_fixed: AtomicBool::new(!is_renewed),
            limit_is_lease: AtomicBool::new(false),
            state: AtomicU8::new(HELD),
        }
    }

    /// The lease is renewed until the limit, which is the end of a fixed lease or that of the longest hold.
    pub(in crate::lock) fn renewed_until(&self, limit_is_lease: bool) {
        self.lease_is_fixed.store(false, Ordering::Release);
        self.limit_is_lease.store(limit_is_lease, Ordering::Release);
    }

    pub(in crate::lock) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) != HELD
    }

    /// Ends the grant. Returns `true` on the first call.
    pub(in crate::lock) fn lose(&self, reason: LostReason) -> bool {
        self.settle(reason as u8)
    }

    /// Ends a grant that its acquire did not pick up. Returns `true` on the first call.
    pub(in crate::lock) fn withdraw(&self) -> bool {
        self.settle(WITHDRAWN)
    }

    fn settle(&self, state: u8) -> bool {
        let held = HELD;
        let settled =
            (self.state).compare_exchange(held, state, Ordering::AcqRel, Ordering::Acquire);
        settled.is_ok()
    }

    /// Returns why the grant was lost, or `None` if it was not.
    pub(in crate::lock) fn reason(&self) -> Option<LostReason> {
        let reason = usize::from(self.state.load(Ordering::Acquire));
        LostReason::ALL.get(reason).copied()
    }

    /// Returns why the grant is lost once its earlier end has passed: that of the lease, or the limit.
    pub(in crate::lock) fn by_clock(&self, limit_is_first: bool) -> LostReason {
        let fixed = match limit_is_first {
            true => &self.limit_is_lease,
            false => &self.lease_is_fixed,
        };
        match (fixed.load(Ordering::Acquire), limit_is_first) {
            (true, _) => LostReason::LeaseEnded,
            (false, true) => LostReason::MaxHold,
            (false, false) => LostReason::Expired,
        }
    }
}
