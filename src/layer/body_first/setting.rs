//! What `read_body_first` sets.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::layer::keys::Keyed;

/// The extractor `K` of a layer that reads the body before it acquires the lock.
///
/// [`LockLayer::read_body_first`](crate::LockLayer::read_body_first) creates it.
pub struct BodyFirst<K> {
    pub(super) keys: Arc<Keyed<K>>,
    pub(super) limits: Limits,
}

/// The bounds of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: usize,
    pub(super) deadline: Duration,
}

impl<K> BodyFirst<K> {
    pub(in crate::layer) fn new(keys: Arc<Keyed<K>>, bytes: usize, deadline: Duration) -> Self {
        let limits = Limits { bytes, deadline };
        Self { keys, limits }
    }
}

impl<K> fmt::Debug for BodyFirst<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyFirst")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
