//! The waiters of a lane: one that makes its first attempt, and the queue by ticket.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::pace::Pace;
use super::waiter::Waiter;
use crate::lock::clock::Moment;
use crate::lock::lease::{Claim, Ticket};

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// The acquire whose first attempt is in flight. It comes before all that queue.
    pub(crate) attempting: Option<Arc<Waiter>>,
    /// Boxed because most lanes have no queue. A lane that had one keeps the box.
    queue: Option<Box<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiters: BTreeMap<Ticket, Arc<Waiter>>,
    pace: Pace,
    /// The first deadline of the waiters, or an earlier one of a waiter that left.
    deadline: Option<Moment>,
}

impl Waiters {
    pub(crate) fn is_attempting(&self) -> bool {
        self.attempting.is_some()
    }

    /// Adds a waiter to the queue.
    pub(crate) fn insert(&mut self, waiter: Arc<Waiter>) {
        let queue = self.queue.get_or_insert_default();
        let deadline = waiter.claim.deadline.moment();
        queue.deadline = earliest(queue.deadline, deadline);
        queue.waiters.insert(waiter.claim.ticket, waiter);
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Arc<Waiter>> {
        let is_it = |waiter: &mut Arc<Waiter>| waiter.claim.ticket == ticket;
        if let Some(waiter) = self.attempting.take_if(is_it) {
            return Some(waiter);
        }
        self.queue.as_mut()?.waiters.remove(&ticket)
    }

    /// Removes and returns the waiters that `which` selects.
    pub(crate) fn remove_if(&mut self, which: impl Fn(&Claim) -> bool) -> Vec<Arc<Waiter>> {
        let claims = self.iter().map(|waiter| &waiter.claim);
        let tickets: Vec<_> = claims.filter(|it| which(it)).map(|it| it.ticket).collect();
        let removed = tickets.into_iter().filter_map(|ticket| self.remove(ticket));
        removed.collect()
    }

    pub(crate) fn pop_first(&mut self) -> Option<Arc<Waiter>> {
        if let Some(waiter) = self.attempting.take() {
            return Some(waiter);
        }
        let (_, first) = self.queue.as_mut()?.waiters.pop_first()?;
        Some(first)
    }

    pub(crate) fn first(&self) -> Option<&Waiter> {
        self.iter().next()
    }

    /// Returns the pace at which the queue advances. A lane without a queue so far has none.
    pub(crate) fn pace(&self) -> Option<&Pace> {
        Some(&self.queue.as_ref()?.pace)
    }

    pub(crate) fn pace_mut(&mut self) -> &mut Pace {
        &mut self.queue.get_or_insert_default().pace
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        let attempting = self.attempting.as_deref();
        attempting.into_iter().chain(self.queued())
    }

    /// Returns the waiters in the queue.
    pub(crate) fn queued(&self) -> impl Iterator<Item = &Waiter> {
        let queue = self.queue.iter().flat_map(|queue| queue.waiters.values());
        queue.map(|waiter| &**waiter)
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.is_attempting()) + self.queue_len()
    }

    pub(crate) fn queue_len(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.waiters.len())
    }

    /// Returns the number of waiters in the queue with this ticket or an earlier one.
    pub(crate) fn up_to(&self, ticket: Ticket) -> usize {
        let Some(queue) = &self.queue else { return 0 };
        match queue.waiters.last_key_value() {
            // Mostly the ticket is the latest one, and a queue can be long.
            Some((latest, _)) if *latest > ticket => queue.waiters.range(..=ticket).count(),
            _ => queue.waiters.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first deadline of the waiters, or an earlier moment.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Moment> {
        let attempting = self.attempting.as_ref();
        let attempting = attempting.and_then(|it| it.claim.deadline.moment());
        let queue = self.queue.as_ref().and_then(|queue| queue.deadline);
        earliest(attempting, queue.filter(|_| self.queue_len() > 0))
    }

    /// Computes the first deadline again, after waiters have left.
    pub(crate) fn update_deadline(&mut self) {
        if let Some(queue) = &mut self.queue {
            let waiters = queue.waiters.values();
            queue.deadline = waiters.filter_map(|it| it.claim.deadline.moment()).min();
        }
    }
}

fn earliest(one: Option<Moment>, other: Option<Moment>) -> Option<Moment> {
    one.into_iter().chain(other).min()
}
