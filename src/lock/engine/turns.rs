//! How many commands of one kind are in flight to each group of keys of the backend.
//!
//! A group that hangs uses up its own turns and delays no other group.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Semaphore;

/// The most commands of one group in flight. A thousand at once would queue in the backend beyond their response
/// timeout, and would all be resent.
pub(in crate::lock) const IN_FLIGHT: usize = 16;

#[derive(Debug, Default)]
pub(in crate::lock) struct Turns(HashMap<u64, Arc<Semaphore>>);

impl Turns {
    /// Returns the turns of a group. A sender holds one until the reply. The semaphore is never closed.
    pub(in crate::lock) fn of(&mut self, group: u64) -> Arc<Semaphore> {
        let group = self.0.entry(group);
        Arc::clone(group.or_insert_with(|| Arc::new(Semaphore::new(IN_FLIGHT))))
    }
}
