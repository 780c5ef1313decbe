//! The names, kinds and descriptions of all metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub(super) const ACQUIRES: &str = "tower_lock_acquires_total";
pub(super) const GRANTS: &str = "tower_lock_grants_total";
pub(super) const WAIT: &str = "tower_lock_wait_seconds";
pub(super) const HOLD: &str = "tower_lock_hold_seconds";
pub(super) const HELD: &str = "tower_lock_held";
pub(super) const WAITING: &str = "tower_lock_waiting";
pub(super) const WAITING_LIMIT: &str = "tower_lock_waiting_limit";
pub(super) const WAITING_RATIO: &str = "tower_lock_waiting_ratio";
pub(super) const UNRELEASED: &str = "tower_lock_unreleased";
pub(super) const OLDEST_HOLD: &str = "tower_lock_oldest_hold_seconds";
pub(super) const OLDEST_WAIT: &str = "tower_lock_oldest_wait_seconds";
pub(super) const LOST: &str = "tower_lock_lost_total";
pub(super) const RENEWALS: &str = "tower_lock_renewals_total";
pub(super) const RELEASES: &str = "tower_lock_releases_total";
pub(super) const WAKEUPS: &str = "tower_lock_wakeups_total";
pub(super) const BACKEND_COMMAND: &str = "tower_lock_backend_command_seconds";
pub(super) const BACKEND_UP: &str = "tower_lock_backend_up";
pub(super) const BACKEND_INCIDENTS: &str = "tower_lock_backend_incidents_total";
pub(super) const WATCHDOG_LAG: &str = "tower_lock_watchdog_lag_seconds";
pub(super) const FORCE_RELEASES: &str = "tower_lock_force_releases_total";
pub(super) const UNLOCKED: &str = "tower_lock_unlocked_total";
pub(super) const TRANSFERS: &str = "tower_lock_transfers_total";
pub(super) const TRANSFER: &str = "tower_lock_transfer_seconds";
pub(super) const PASSED_OVER: &str = "tower_lock_passed_over_total";

pub(super) fn describe() {
    let counters = [
        (ACQUIRES, "Acquires that ended, by outcome."),
        (GRANTS, "Granted keys, by how they were granted."),
        (LOST, "Keys that were lost while held, by reason."),
        (RENEWALS, "Renewed leases, by reply."),
        (RELEASES, "Released leases, by reply."),
        (
            WAKEUPS,
            "What woke a waiter that was then granted a key of another process.",
        ),
        (
            BACKEND_INCIDENTS,
            "Outages of a server of the lock backend that began.",
        ),
        (FORCE_RELEASES, "Keys released by force, by outcome."),
        (
            UNLOCKED,
            "Requests that ran without their lock, by the option that permits it.",
        ),
        (
            TRANSFERS,
            "Free keys transferred to the first process in the queue.",
        ),
        (
            PASSED_OVER,
            "Waiters passed over because their processes ended or hang.",
        ),
    ];
    for (name, help) in counters {
        describe_counter!(name, Unit::Count, help);
    }
    let histograms = [
        (WAIT, "The wait of an acquire, by its end."),
        (
            HOLD,
            "The time from the grant of a key to the end of its last hold.",
        ),
        (
            BACKEND_COMMAND,
            "The time from a command to its reply or error.",
        ),
        (
            TRANSFER,
            "The time from the transfer of a key to its confirmation by a command.",
        ),
    ];
    for (name, help) in histograms {
        describe_histogram!(name, Unit::Seconds, help);
    }
    let gauges = [
        (
            HELD,
            Unit::Count,
            "Owners in this process that hold a key, counted for each key.",
        ),
        (
            WAITING,
            Unit::Count,
            "Acquires that wait in a queue of this process.",
        ),
        (
            WAITING_LIMIT,
            Unit::Count,
            "The most waiters that are admitted.",
        ),
        (
            WAITING_RATIO,
            Unit::Count,
            "The part of its waiting limit that a manager uses, the largest of all managers.",
        ),
        (
            UNRELEASED,
            Unit::Count,
            "Leases whose release the backend has not confirmed.",
        ),
        (
            OLDEST_HOLD,
            Unit::Seconds,
            "The age of the oldest grant that is held.",
        ),
        (
            OLDEST_WAIT,
            Unit::Seconds,
            "The time for which the first waiter has waited.",
        ),
        (
            BACKEND_UP,
            Unit::Count,
            "1 if the part of a server of the lock backend works, 0 during an outage.",
        ),
        (
            WATCHDOG_LAG,
            Unit::Seconds,
            "The longest delay of a round of the watchdog.",
        ),
    ];
    for (name, unit, help) in gauges {
        describe_gauge!(name, unit, help);
    }
}
