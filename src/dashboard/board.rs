//! The state of the routes.

use std::time::SystemTime;

use http::HeaderValue;

use super::force_release::Audit;
use super::limit::Limit;
use super::readings::Publisher;
use crate::LockManager;

/// The dashboard of another process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) url: String,
}

/// The state of the routes.
pub(super) struct Board {
    pub(super) locks: LockManager,
    pub(super) protected: bool,
    pub(super) origin: Option<String>,
    pub(super) peers: Vec<Peer>,
    /// Identifies this process and router.
    pub(super) instance: String,
    pub(super) instance_header: HeaderValue,
    pub(super) host: String,
    pub(super) started: SystemTime,
    pub(super) publisher: Publisher,
    /// Admits forced releases, or `None` if the dashboard is read-only.
    pub(super) audit: Option<Box<Audit>>,
    pub(super) forces: Limit,
    pub(super) inspects: Limit,
    /// Admits requests that read the lanes.
    pub(super) walks: Limit,
}
