//! The list of the waiters of a lane by ticket, and the checks by runtimes other than its own.

use std::collections::BTreeMap;

use super::pace::Pace;
use crate::lock::claim::{Claim, Ticket};
use crate::lock::clock::Moment;
use crate::lock::effect::Reply;
use crate::lock::seats::Seat;

#[derive(Debug)]
pub(in crate::lock) struct Waiter {
    pub(in crate::lock) claim: Claim,
    pub(in crate::lock) reply: Reply,
    pub(in crate::lock) _seat: Seat,
}

/// A waiter is boxed because a tree node reserves space for more waiters than it mostly holds.
type Tree = BTreeMap<Ticket, Box<Waiter>>;

/// Boxed because most lanes have neither waiters nor other runtimes. A lane that had some keeps the box.
#[derive(Debug, Default)]
pub(super) struct Waiters(Option<Box<Crowd>>);

#[derive(Debug, Default)]
struct Crowd {
    waiters: Tree,
    pace: Pace,
    /// Set while a waiter or holder is in another runtime than the lane's own.
    elsewhere: Option<Elsewhere>,
}

/// The checks by the watchdogs of other runtimes.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// The time of the check of which the watchdogs there were last notified.
    pub(super) announced: Option<Moment>,
    /// The earliest check after one there, so that a watchdog does not repeat it at once.
    pub(super) not_before: Option<Moment>,
}

impl Waiters {
    pub(super) fn insert(&mut self, waiter: Box<Waiter>) {
        let crowd = self.0.get_or_insert_default();
        crowd.waiters.insert(waiter.claim.ticket, waiter);
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Box<Waiter>> {
        self.0.as_mut()?.waiters.remove(&ticket)
    }

    pub(super) fn pop_first(&mut self) -> Option<Box<Waiter>> {
        let (_, first) = self.0.as_mut()?.waiters.pop_first()?;
        Some(first)
    }

    pub(super) fn first(&self) -> Option<&Waiter> {
        self.iter().next()
    }

    /// Returns the pace at which the queue advances. A lane without waiters so far has none.
    pub(super) fn pace(&self) -> Option<&Pace> {
        Some(&self.0.as_ref()?.pace)
    }

    pub(super) fn pace_mut(&mut self) -> &mut Pace {
        &mut self.0.get_or_insert_default().pace
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        let waiters = self.0.iter().flat_map(|crowd| crowd.waiters.values());
        waiters.map(|waiter| &**waiter)
    }

    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |crowd| crowd.waiters.len())
    }

    /// Returns the number of waiters with this ticket or an earlier one.
    pub(super) fn up_to(&self, ticket: Ticket) -> usize {
        let Some(crowd) = &self.0 else { return 0 };
        match crowd.waiters.last_key_value() {
            // Mostly the ticket is the latest one, and a queue can be long.
            Some((latest, _)) if *latest > ticket => crowd.waiters.range(..=ticket).count(),
            _ => crowd.waiters.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all waiters, and returns them in order.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Box<Waiter>> + use<> {
        let crowd = self.0.as_mut();
        let waiters = crowd.map(|crowd| std::mem::take(&mut crowd.waiters));
        waiters.unwrap_or_default().into_values()
    }

    /// Records that a waiter or holder is in another runtime, whose watchdog must be notified of the next check.
    pub(super) fn notify_elsewhere(&mut self) {
        self.0.get_or_insert_default().elsewhere = Some(Elsewhere::default());
    }

    /// Records that no waiter or holder is in another runtime.
    pub(super) fn forget_elsewhere(&mut self) {
        if let Some(crowd) = &mut self.0 {
            crowd.elsewhere = None;
        }
    }

    pub(super) fn elsewhere(&self) -> Option<&Elsewhere> {
        self.0.as_ref()?.elsewhere.as_ref()
    }

    pub(super) fn elsewhere_mut(&mut self) -> Option<&mut Elsewhere> {
        self.0.as_mut()?.elsewhere.as_mut()
    }
}
