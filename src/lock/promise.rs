//! What makes the message of a transfer a grant, without a command that confirms it.

use std::num::NonZeroU16;

use super::attempt::Replied;
use super::clock::{Moment, Span};
use super::lease::{LeaseNumber, Transfer};
use super::place::QueuePlace;
use crate::backend::{Contended, Mode, TransferTerms};

/// What the last reply under a lease states about later transfers to it: to a `contend`, or before the first one to the
/// `release_or_keep` that entered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Promise {
    lease: LeaseNumber,
    mode: Mode,
    limit: Option<NonZeroU16>,
    sent_at: Moment,
    terms: TransferTerms,
    /// The number of processes in the queue. After a release, this process is not one of them.
    queued: u32,
}

impl Promise {
    /// Returns the promise of a reply, or `None` if only a `contend` grants the lease.
    pub(super) fn of(replied: &Replied) -> Option<Self> {
        let Ok(Contended::Waiting {
            queued: Some(queued),
            transfers: Some(terms),
            ..
        }) = replied.outcome
        else {
            return None;
        };
        Some(Self {
            lease: LeaseNumber::of(replied.lease),
            mode: replied.terms.mode,
            limit: replied.terms.limit,
            sent_at: replied.sent_at,
            terms,
            queued,
        })
    }

    /// Returns the promise to `place`, which a release entered into the queue.
    pub(super) fn to(
        place: QueuePlace,
        sent_at: Moment,
        terms: TransferTerms,
        queued: u32,
    ) -> Self {
        let QueuePlace { lease, mode, limit } = place;
        Self {
            lease,
            mode,
            limit,
            sent_at,
            terms,
            queued,
        }
    }

    /// When a lease that another process received in the same step expires, unless it is renewed.
    pub(super) fn others_expire(self) -> Moment {
        self.sent_at + Span::new(self.terms.ttl)
    }

    pub(super) fn lease(self) -> LeaseNumber {
        self.lease
    }

    pub(super) fn queued(self) -> u32 {
        self.queued
    }

    /// Returns `true` if the transfer is a grant for a waiter of this mode.
    pub(super) fn is_for(self, mode: Mode) -> bool {
        self.mode == mode
    }

    /// Returns the transfer that a message reports, or `None` if it may have come before the reply and expired.
    pub(super) fn transfer(self, lease: LeaseNumber, counter: Option<u64>) -> Option<Transfer> {
        let counter = counter.filter(|counter| *counter > self.terms.counter)?;
        (lease == self.lease).then_some(Transfer {
            lease,
            counter,
            since: self.sent_at,
            ttl: Span::new(self.terms.ttl),
            mode: self.mode,
            limit: self.limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::backend::LeaseId;
    use crate::lock::tests::RENEWED;
    use crate::lock::yielded::Yielded;

    fn replied(outcome: Contended) -> Replied {
        Replied {
            lease: LeaseId::new(Uuid::nil(), 7),
            terms: RENEWED,
            sent_at: Moment::now(),
            now: Moment::now(),
            outcome: Ok(outcome),
        }
    }

    fn number(number: u64) -> LeaseNumber {
        LeaseNumber::of(LeaseId::new(Uuid::nil(), number))
    }

    #[test]
    fn message_of_later_transfer_is_grant() {
        let terms = TransferTerms::new(100, Duration::from_millis(1500));
        let replied = replied(Contended::waiting(Duration::ZERO, 1).with_transfers(terms));
        let promise = Promise::of(&replied).expect("terms");
        let transfer = promise.transfer(number(7), Some(101)).expect("later");
        assert_eq!((transfer.lease, transfer.counter), (number(7), 101));
        assert_eq!(transfer.since, replied.sent_at);
        for (lease, counter) in [(7, Some(100)), (7, Some(99)), (7, None), (6, Some(101))] {
            let stale = promise.transfer(number(lease), counter);
            assert!(stale.is_none(), "{stale:?}");
        }
    }

    #[test]
    fn promise_to_place_is_for_its_mode() {
        let place = QueuePlace {
            lease: number(7),
            mode: Mode::Exclusive,
            limit: None,
        };
        let terms = TransferTerms::new(100, Duration::from_millis(1500));
        let sent_at = Moment::now();
        let promise = Promise::to(place, sent_at, terms, 3);
        let transfer = promise.transfer(number(7), Some(101)).expect("later");
        assert_eq!((transfer.since, promise.queued()), (sent_at, 3));
        let yielded = Yielded::ToQueue {
            place: Some(place),
            promise: Some(promise),
        };
        assert_eq!(yielded.for_mode(Mode::Exclusive), yielded);
        let shared = yielded.for_mode(Mode::Shared);
        assert_eq!((shared.place(), shared.promise()), (Some(place), None));
    }

    #[test]
    fn reply_without_terms_promises_nothing() {
        let terms = TransferTerms::new(100, Duration::from_millis(1500));
        for outcome in [
            Contended::granted(5),
            Contended::waiting(Duration::ZERO, 1),
            Contended::waiting(Duration::ZERO, None).with_transfers(terms),
        ] {
            assert!(Promise::of(&replied(outcome)).is_none(), "{outcome:?}");
        }
    }
}
