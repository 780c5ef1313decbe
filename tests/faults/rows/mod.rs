//! The table: one row per fault.

mod clock;
mod cluster;
mod downgrade;
mod endpoint;
mod http;
mod kept;
mod limits;
mod network;
mod permits;
mod postgres;
mod process;
mod queue;
mod quorum;
mod refusal;
mod sentinel;
mod server;
mod shared;

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::time::Duration;

use tower_lock::ErrorKind;

use crate::referee::BACKSTOP;
use crate::run::Run;
use crate::store::Topology;
use crate::support::engine::SECOND;

/// The fault of a row, from the start of the load to the beginning of the recovery.
pub(crate) type Fault = for<'a> fn(&'a mut Run) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A server reports its uptime in full seconds, so a quarantine lasts longer by up to this time.
pub(crate) const ROUNDING: Duration = Duration::from_secs(2);

/// The lease of most rows.
const LEASE: Duration = Duration::from_millis(1_500);

/// The time for which a process that ended keeps its place in the queue.
const PLACE: Duration = Duration::from_secs(3);

/// The number of a process outside the run.
const OTHER: usize = 100;

/// A fault and its requirements.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) topology: Topology,
    /// Assumption A0 is broken: locks may overlap until the deadline of the old guard.
    pub(crate) loses_data: bool,
    pub(crate) lease: Duration,
    /// The longest time from the end of the outage to the next grant of each contended key.
    pub(crate) recovery: Duration,
    /// The errors that callers may receive besides busy and, in an outage, unavailable.
    pub(crate) errors: &'static [ErrorKind],
    /// The ACL rules of a user, and its `name:password`.
    pub(crate) login: Option<(&'static str, &'static str)>,
    /// `true` if waiters are notified of releases.
    pub(crate) hears: bool,
    /// The number of replicas that must acknowledge a grant.
    pub(crate) min_replicas: Option<NonZeroUsize>,
    /// `true` if the connections are from a pool of the program.
    pub(crate) is_pooled: bool,
    /// `true` if a server that restarted or lost its data grants nothing for the time of a lease.
    pub(crate) quarantine: bool,
    /// The longest time from the end of the load to the release of all locks.
    pub(crate) clearance: Duration,
    /// The time for which released leases are kept.
    pub(crate) keep: Duration,
    /// `true` if the row occupies a core for long. It runs once among all rows, and as often as requested
    /// if rows are named.
    pub(crate) once: bool,
    pub(crate) fault: Fault,
}

impl Row {
    /// Creates a row with a lease of [`LEASE`] that keeps its data.
    pub(crate) fn new(topology: Topology, name: &'static str, fault: Fault) -> Self {
        Self {
            name,
            topology,
            loses_data: false,
            lease: LEASE,
            recovery: BACKSTOP,
            errors: &[],
            login: None,
            hears: true,
            min_replicas: None,
            is_pooled: false,
            quarantine: false,
            clearance: SECOND,
            keep: Duration::ZERO,
            once: false,
            fault,
        }
    }

    pub(crate) fn loses_data(self) -> Self {
        Self {
            loses_data: true,
            ..self
        }
    }

    pub(crate) fn hears_nothing(self) -> Self {
        Self {
            hears: false,
            ..self
        }
    }

    pub(crate) fn acknowledged_by(self, replicas: usize) -> Self {
        Self {
            min_replicas: NonZeroUsize::new(replicas),
            ..self
        }
    }

    pub(crate) fn pooled(self) -> Self {
        Self {
            is_pooled: true,
            ..self
        }
    }

    pub(crate) fn in_quarantine(self) -> Self {
        Self {
            quarantine: true,
            ..self
        }
    }

    pub(crate) fn clears_within(self, clearance: Duration) -> Self {
        Self { clearance, ..self }
    }

    pub(crate) fn keeps(self, keep: Duration) -> Self {
        Self { keep, ..self }
    }

    pub(crate) fn once(self) -> Self {
        Self { once: true, ..self }
    }

    pub(crate) fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    pub(crate) fn recovers_within(self, recovery: Duration) -> Self {
        Self { recovery, ..self }
    }

    pub(crate) fn may_fail_with(self, errors: &'static [ErrorKind]) -> Self {
        Self { errors, ..self }
    }

    pub(crate) fn logs_in_as(self, rules: &'static str, login: &'static str) -> Self {
        Self {
            login: Some((rules, login)),
            ..self
        }
    }
}

/// Returns all rows, in the order of the table.
pub(crate) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(server::rows());
    rows.extend(network::rows());
    rows.extend(refusal::rows());
    rows.extend(process::rows());
    rows.extend(kept::rows());
    rows.extend(queue::rows());
    rows.extend(shared::rows());
    rows.extend(permits::rows());
    rows.extend(clock::rows());
    rows.extend(downgrade::rows());
    rows.extend(http::rows());
    rows.extend(limits::rows());
    rows.extend(sentinel::rows());
    rows.extend(cluster::rows());
    rows.extend(endpoint::rows());
    rows.extend(quorum::rows());
    rows.extend(postgres::rows());
    rows
}
