//! A lease that the message of a transfer grants.

use std::num::NonZeroU16;
use std::time::Duration;

use super::upkeep::Upkeep;
use super::{Lease, LeaseNumber, RENEW_AT, expires_at, valid_until};
use crate::backend::Mode;
use crate::lock::claim::Terms;
use crate::lock::clock::{Moment, Span};

/// The least remaining time of a lease that the message of a transfer grants. A renewal has this time. With less,
/// the transfer is confirmed instead, for the full TTL.
const LEAST_LEFT: Span = Span::new(Duration::from_millis(500));

/// The time from the grant of such a lease to its renewal. Shorter holds need none, and their release waits for no
/// reply. It is longer than any sleep of the watchdog, which the grant thus need not wake before the waiter runs.
const RENEW_AFTER: Duration = Duration::from_millis(60);

/// A transfer that came after a `contend` of the acquire loop was sent.
#[derive(Debug, Clone, Copy)]
pub(in crate::lock) struct Transfer {
    pub(in crate::lock) lease: LeaseNumber,
    pub(in crate::lock) counter: u64,
    /// A moment before the transfer.
    pub(in crate::lock) since: Moment,
    /// The TTL of the lease from the transfer on.
    pub(in crate::lock) ttl: Span,
    pub(in crate::lock) mode: Mode,
    pub(in crate::lock) limit: Option<NonZeroU16>,
}

impl Lease {
    /// Returns `true` if enough time is left for a further owner that shares the lease: for its own fixed lease, or for
    /// the reply to a renewal.
    pub(in crate::lock) fn may_be_joined(&self, terms: Terms, now: Moment) -> bool {
        let mut least_left = LEAST_LEFT.min(terms.ttl / RENEW_AT);
        // Between renewals, a renewed lease normally has more than this left, whatever TTL the further owner asks for.
        if self.is_renewed() {
            least_left = least_left.min(self.ttl / RENEW_AT);
        }
        let needs_no_renewal = !terms.renewed && valid_until(now, terms.ttl) <= self.valid_until;
        needs_no_renewal || now + least_left <= self.valid_until
    }

    /// Creates the lease of a transfer whose message was received at `now`. Returns `None` if the transfer has to be
    /// confirmed: the lease is not renewed, is about to expire, has a TTL below that of a transfer, another mode,
    /// or was granted below a larger limit.
    pub(in crate::lock) fn transferred(
        transfer: Transfer,
        tokens_per_counter: u32,
        terms: Terms,
        now: Moment,
    ) -> Option<Self> {
        let Transfer {
            lease,
            counter,
            since,
            ttl,
            mode,
            limit,
        } = transfer;
        let valid_until = valid_until(since, ttl);
        let is_too_short = terms.ttl < ttl || valid_until < now + LEAST_LEFT;
        if mode != terms.mode || limit > terms.limit || !terms.renewed || is_too_short {
            return None;
        }
        Some(Self {
            valid_until,
            // The transfer came between the two moments.
            expires_at: expires_at(now, ttl),
            // Soon: until then, a short pause of the server would lose the lease.
            upkeep: Upkeep::Due(valid_until.before(LEAST_LEFT.get()).min(now + RENEW_AFTER)),
            is_short: true,
            ..Self::new(lease, counter, tokens_per_counter, terms, now)
        })
    }

    /// Returns the remaining time that the next holder needs, in which a renewal can be repeated.
    pub(super) fn least_left(&self) -> Span {
        match self.is_short {
            true => LEAST_LEFT / 2,
            false => self.ttl() / RENEW_AT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Renewed;
    use crate::lock::tests::{FIXED, MS, RENEWED, SECOND, SHORT, TOKENS, number};
    use crate::lock::wake::TICK;

    const TTL: Duration = Duration::from_millis(1500);

    /// Returns the lease of a transfer to a waiter whose last attempt was sent so long ago.
    fn transferred(terms: Terms, attempted: Duration) -> (Option<Lease>, Moment, Moment) {
        let since = Moment::now();
        let now = since + attempted;
        let transfer = Transfer {
            lease: number(1),
            counter: 100,
            since,
            ttl: Span::new(TTL),
            mode: Mode::Exclusive,
            limit: None,
        };
        (Lease::transferred(transfer, TOKENS, terms, now), since, now)
    }

    #[test]
    fn transferred_lease_counts_from_last_attempt() {
        let (lease, since, now) = transferred(RENEWED, 400 * MS);
        let mut lease = lease.expect("enough left");
        assert_eq!(lease.valid_until(), since + (TTL - 17 * MS));
        assert_eq!(lease.expires_at(), now + (TTL + 17 * MS));
        assert_eq!(lease.next_renewal(), Some(now + RENEW_AFTER));
        assert!(RENEW_AFTER > TICK && !lease.renews_early(now));
        assert!(lease.fits(RENEWED) && lease.may_pass_to(RENEWED, now));
        let sent_at = now + RENEW_AFTER;
        let ttl = RENEWED.ttl.get();
        assert_eq!(lease.start_renewal(sent_at), Some(ttl));
        lease.renewal_answered(ttl, sent_at, &Ok(Renewed::Renewed), sent_at);
        assert_eq!(lease.valid_until(), valid_until(sent_at, RENEWED.ttl));
        assert_eq!(lease.next_renewal(), Some(sent_at + ttl / RENEW_AT));
    }

    #[test]
    fn transferred_lease_near_expiry_is_confirmed() {
        let latest = TTL - 17 * MS - LEAST_LEFT.get();
        let (lease, _, now) = transferred(RENEWED, latest);
        // Its renewal has only the least time.
        assert!(lease.expect("enough left").renews_early(now));
        assert!(transferred(RENEWED, latest + MS).0.is_none());
        assert!(transferred(RENEWED, 2 * SECOND).0.is_none());
    }

    #[test]
    fn transferred_lease_of_other_terms_is_confirmed() {
        assert!(transferred(FIXED, Duration::ZERO).0.is_none());
        assert!(transferred(SHORT, Duration::ZERO).0.is_none());
        let ttl = Span::new(TTL);
        let alike = Terms { ttl, ..RENEWED };
        assert!(transferred(alike, Duration::ZERO).0.is_some());
    }
}
