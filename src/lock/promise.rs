//! What makes the message of a transfer a grant, without a command that confirms it.

use super::attempt::Replied;
use super::clock::{Moment, Span};
use super::lease::{LeaseNumber, Transfer};
use crate::backend::{Contended, TransferTerms};

/// What the last reply to a `contend` states about later transfers to its lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promise {
    lease: LeaseNumber,
    sent_at: Moment,
    terms: TransferTerms,
}

impl Promise {
    /// Returns the promise of a reply, or `None` if only a `contend` grants the lease.
    pub(super) fn of(replied: &Replied) -> Option<Self> {
        let Ok(Contended::Waiting {
            queued: Some(_),
            transfers: Some(terms),
            ..
        }) = replied.outcome
        else {
            return None;
        };
        Some(Self {
            lease: LeaseNumber::of(replied.lease),
            sent_at: replied.sent_at,
            terms,
        })
    }

    /// Returns the transfer that a message reports, or `None` if it may have come before the reply and expired.
    pub(super) fn transfer(self, lease: LeaseNumber, counter: Option<u64>) -> Option<Transfer> {
        let counter = counter.filter(|counter| *counter > self.terms.counter)?;
        (lease == self.lease).then_some(Transfer {
            lease,
            counter,
            since: self.sent_at,
            ttl: Span::new(self.terms.ttl),
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
