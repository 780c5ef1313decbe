//! What can be violated: the invariants, and what the documentation promises beside them.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// I1, S1: guards of different owners never overlap, unless all of them are shared, or permits.
    Exclusion,
    /// I2: a guard is held only while the store holds its lease.
    Validity,
    /// I3, S9: the loss is reported in time, and for good. All locks of a lost lease are lost.
    Loss,
    /// I4, S6: fencing tokens increase, those of shared locks and permits only over exclusive ones.
    Fencing,
    /// I5: hold counts.
    HoldCount,
    /// S8: an owner never waits for what it holds. Its upgrade is rejected at once.
    Reentry,
    /// I6, I7: a free key goes to a waiter, and one that only shared leases hold to the shared waiters before all
    /// exclusive ones.
    Progress,
    /// I8: no renewal after the release.
    RenewedAfterRelease,
    /// I9: no renewal for a lost guard.
    RenewedAfterLoss,
    /// I14: a release that was answered is not sent again.
    ReleasedTwice,
    /// I10: nothing is left behind.
    LeftBehind,
    /// I11, Q2, Q8: first come, first served, in a process and between processes, and a process that waits keeps its
    /// place.
    Order,
    /// S7: a shared lease does not pass exclusive ones that wait, and no owner joins it for long while they do.
    Joined,
    /// S2: when a permit is granted, fewer than its limit hold the key, and it passes none that waits.
    Permits,
    /// A lease has one mode, which is that of its locks.
    Mode,
    /// S4, S5: a key is held until the end of its last lease, and a renewal extends only its own lease.
    Stored,
    /// Q2: a turn of a process ends while others wait.
    Turn,
    /// I10, I13: what no guard holds is released, and a place that no acquire needs is left.
    CleanUp,
    /// I15: bounds, and no storms of attempts.
    Bounds,
    /// A guard is held for as long as its terms say, while the store is well and its runtime runs.
    LostEarly,
    /// A guard is not held for longer than its terms say.
    HeldTooLong,
    /// An acquire ends by its deadline.
    Deadline,
    /// `release` ends by the end of the lease, and reports what became of it.
    ReleaseEnds,
    /// The engine panicked.
    Panic,
    /// The engine never rests.
    Livelock,
}

#[derive(Debug, Clone)]
pub struct Violation {
    pub invariant: Invariant,
    pub what: String,
}
