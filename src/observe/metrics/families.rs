//! The names, kinds and descriptions of all metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Defines the names of metrics, and a function that describes them to a recorder.
macro_rules! families {
    ($($describe:ident $unit:ident $family:ident = $name:literal: $help:literal;)*) => {
        $(pub(super) const $family: &str = $name;)*

        pub(super) fn describe() {
            $($describe!($family, Unit::$unit, $help);)*
        }
    };
}

families! {
    describe_counter Count ACQUIRES = "tower_lock_acquires_total":
        "Acquires that ended, by outcome.";
    describe_counter Count GRANTS = "tower_lock_grants_total":
        "Granted keys, by how they were granted.";
    describe_histogram Seconds WAIT = "tower_lock_wait_seconds":
        "The wait of an acquire, by its end.";
    describe_histogram Seconds HOLD = "tower_lock_hold_seconds":
        "The time from the grant of a key to the end of its last hold.";
    describe_gauge Count HELD = "tower_lock_held":
        "Owners in this process that hold a key, counted for each key.";
    describe_gauge Count WAITING = "tower_lock_waiting":
        "Acquires that wait in a queue of this process.";
    describe_gauge Count WAITING_LIMIT = "tower_lock_waiting_limit":
        "The most waiters that are admitted.";
    describe_gauge Count WAITING_RATIO = "tower_lock_waiting_ratio":
        "The part of its waiting limit that a manager uses, the largest of all managers.";
    describe_gauge Count UNRELEASED = "tower_lock_unreleased":
        "Leases whose release the backend has not confirmed.";
    describe_gauge Count KEPT = "tower_lock_kept":
        "Leases that this process keeps for the next acquire.";
    describe_gauge Seconds OLDEST_HOLD = "tower_lock_oldest_hold_seconds":
        "The age of the oldest grant that is held.";
    describe_gauge Seconds OLDEST_WAIT = "tower_lock_oldest_wait_seconds":
        "The time for which the first waiter has waited.";
    describe_counter Count LOST = "tower_lock_lost_total":
        "Keys that were lost while held, by reason.";
    describe_counter Count RENEWALS = "tower_lock_renewals_total":
        "Renewed leases, by reply.";
    describe_counter Count RELEASES = "tower_lock_releases_total":
        "Released leases, by reply.";
    describe_counter Count WAKEUPS = "tower_lock_wakeups_total":
        "What woke a waiter that was then granted a key of another process.";
    describe_histogram Seconds BACKEND_COMMAND = "tower_lock_backend_command_seconds":
        "The time from a command to its reply or error.";
    describe_gauge Count BACKEND_UP = "tower_lock_backend_up":
        "1 if the part of a server of the lock backend works, 0 during an outage.";
    describe_counter Count BACKEND_INCIDENTS = "tower_lock_backend_incidents_total":
        "Outages of a server of the lock backend that began.";
    describe_gauge Seconds WATCHDOG_LAG = "tower_lock_watchdog_lag_seconds":
        "The longest delay of a round of the watchdog.";
    describe_counter Count FORCE_RELEASES = "tower_lock_force_releases_total":
        "Keys released by force, by outcome.";
    describe_counter Count UNLOCKED = "tower_lock_unlocked_total":
        "Requests that ran without their lock, by the option that permits it.";
    describe_counter Count TRANSFERS = "tower_lock_transfers_total":
        "Free keys transferred to the first process in the queue.";
    describe_histogram Seconds TRANSFER = "tower_lock_transfer_seconds":
        "The time from the transfer of a key to its confirmation by a command.";
    describe_counter Count PASSED_OVER = "tower_lock_passed_over_total":
        "Waiters passed over because their processes ended or hang.";
}
