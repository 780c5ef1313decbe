//! What `read_body_first` sets.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::layer::keys::Keyed;

/// The extractor `K` of a layer that reads bodies of any type, before it acquires the lock or while it waits.
///
/// [`LockLayer::read_body_first`](crate::LockLayer::read_body_first) and
/// [`LockLayer::read_body_ahead`](crate::LockLayer::read_body_ahead) create it.
pub struct BodyFirst<K> {
    pub(super) keys: Arc<Keyed<K>>,
    /// `None` to read the body while the request waits.
    pub(super) limits: Option<Limits>,
}

/// The bounds of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: usize,
    pub(super) deadline: Duration,
}

impl<K> fmt::Debug for BodyFirst<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyFirst")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
