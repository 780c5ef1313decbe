//! The guards that hold one grant together.

use super::{Guard, LONGEST_LEASE, Seen, Waiter};
use crate::time::{MS, SECOND, Time};

#[derive(Default)]
pub struct Group {
    /// How many unreleased guards are renewed.
    pub renewed: usize,
    pub live: usize,
    /// Until when it may be held without one that is renewed.
    pub until: Time,
}

impl Seen {
    pub(super) fn join_groups(&mut self, guard: &Guard, now: Time) {
        for key in guard.group_keys() {
            let group = self.groups.entry(key).or_default();
            group.live += 1;
            match guard.lease {
                None => group.renewed += 1,
                // More than is left is asked for in the background.
                Some(lease) if guard.reentrant => {
                    group.until = group.until.max(now + lease + 3 * SECOND / 2);
                }
                Some(lease) => group.until = group.until.max(now + lease),
            }
        }
    }

    /// What it held during the wait, of several keys or without picking it up, may still be renewed.
    pub(super) fn ends_for_owner(&mut self, waiter: &Waiter, now: Time) {
        for guard in &self.guards {
            if waiter.owner == Some(guard.owner) {
                for key in guard.group_keys() {
                    if let Some(group) = self.groups.get_mut(&key) {
                        group.until = group.until.max(now + LONGEST_LEASE);
                    }
                }
            }
        }
    }

    pub(super) fn leave_groups(&mut self, guard: &Guard, watchdog: Time, now: Time) {
        for key in guard.group_keys() {
            let Some(group) = self.groups.get_mut(&key) else {
                continue;
            };
            group.live -= 1;
            if guard.lease.is_none() {
                group.renewed -= 1;
                group.until = group.until.max(now + watchdog + 100 * MS);
            }
            if group.live == 0 {
                self.groups.remove(&key);
            }
        }
    }
}
