//! A lease that the backend granted to this process, and its renewals and hand-offs.
//! The table of its renewals is in [`super`].

mod claim;
mod downgrading;
mod grant;
mod hand_offs;
mod held;
mod lost;
mod number;
mod place;
mod released_to;
mod renewal;

use std::num::NonZeroU16;
use std::time::Duration;

use hand_offs::HandOffs;
use renewal::RenewalState;

use super::clock::{Moment, Span};
use crate::backend::{BackendError, LeaseId, Mode, Renewed};

pub(crate) use claim::{Claim, Deadline, HoldId, Keep, QueuePosition, Terms, Ticket};
pub(crate) use grant::Grant;
pub(crate) use hand_offs::Kept;
pub use held::Held;
pub(crate) use lost::{Grants, Lost};
pub(crate) use number::LeaseNumber;
pub(crate) use place::{PLACE, QueuePlace};
pub(crate) use released_to::ReleasedTo;

/// A renewal is due when a third of the lease has passed, as in Redisson.
const RENEW_AT: u32 = 3;

/// Renewals that are due within this fraction of their lease join a round that is being sent.
const RENEW_EARLY: u32 = 20;

/// The least remaining time of a lease that a further owner shares. A renewal has this time.
const LEAST_LEFT: Span = Span::new(Duration::from_millis(500));

/// The fixed part of the drift.
const DRIFT: Span = Span::new(Duration::from_millis(2));

#[derive(Debug)]
pub(crate) struct Lease {
    number: LeaseNumber,
    ttl: Span,
    valid_until: Moment,
    /// When the lease must have expired in the backend, even if its clock runs slow.
    expires_at: Moment,
    renewal: RenewalState,
    /// The first counter of the fencing tokens.
    counter: u64,
    /// From 1 to 256.
    tokens_per_counter: u16,
    wanted: Wanted,
    mode: Mode,
    /// Under which the permit was granted.
    limit: Option<NonZeroU16>,
    /// A downgrade was sent, and its reply has not come, or is not known.
    is_downgrading: bool,
    /// When the turn of this process began. `None` if the next holder needs a fresh counter, or the lease is lost.
    turn_from: Option<Moment>,
    /// Boxed because most leases have one holder. `None` is that of a fresh lease.
    hand_offs: Option<Box<HandOffs>>,
}

/// The renewals that the holds require beyond the present end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// None.
    Nothing,
    /// One renewal: a nested hold needs more than the remaining TTL.
    Once,
    /// Renewals while the lease is held.
    Always,
}

/// Returns `sent_at + ttl − drift`.
///
/// The time counts from before the command was sent, since the lease in the backend begins between that
/// moment and the reply. The drift, 1 % + 2 ms, covers clocks that run at different speeds, so a loss
/// is reported before the backend can admit another holder.
pub(crate) fn valid_until(sent_at: Moment, ttl: Span) -> Moment {
    let drift = ttl / 100 + DRIFT;
    sent_at + ttl.saturating_sub(drift)
}

fn expires_at(sent_at: Moment, ttl: Span) -> Moment {
    sent_at + (ttl + ttl / 100 + DRIFT)
}

impl Lease {
    pub(crate) fn new(
        number: LeaseNumber,
        counter: u64,
        tokens_per_counter: u32,
        terms: Terms,
        sent_at: Moment,
    ) -> Self {
        Self {
            number,
            ttl: terms.ttl,
            valid_until: valid_until(sent_at, terms.ttl),
            expires_at: expires_at(sent_at, terms.ttl),
            wanted: if terms.renewed {
                Wanted::Always
            } else {
                Wanted::Nothing
            },
            renewal: RenewalState::Due(sent_at + terms.ttl / RENEW_AT),
            counter,
            // The contract permits no more, and the field is small.
            tokens_per_counter: u16::try_from(tokens_per_counter).unwrap_or(u16::MAX),
            mode: terms.mode,
            limit: terms.limit,
            is_downgrading: false,
            turn_from: Some(sent_at),
            hand_offs: None,
        }
    }

    fn tokens_per_counter(&self) -> u32 {
        self.tokens_per_counter.into()
    }

    pub(crate) fn number(&self) -> LeaseNumber {
        self.number
    }

    /// Returns `true` if the lease has this id of the same manager.
    pub(crate) fn is(&self, id: LeaseId) -> bool {
        self.number == LeaseNumber::of(id)
    }

    pub(crate) fn ttl(&self) -> Span {
        self.ttl
    }

    /// Returns the longest remaining TTL that the backend may have, whatever the fate of the last renewal.
    /// It can exceed the TTL if a nested acquire needed less than the remaining time.
    pub(crate) fn longest(&self, now: Moment) -> Span {
        self.expires_at.span_since(now).max(self.ttl)
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.valid_until
    }

    pub(crate) fn expires_at(&self) -> Moment {
        self.expires_at
    }

    /// Returns `true` if enough time is left for a further owner that shares the lease: for its own fixed lease, or for
    /// the reply to a renewal.
    pub(crate) fn may_be_joined(&self, terms: Terms, now: Moment) -> bool {
        let mut least_left = LEAST_LEFT.min(terms.ttl / RENEW_AT);
        // Between renewals, a renewed lease normally has more than this left, whatever TTL the further owner asks for.
        if self.is_renewed() {
            least_left = least_left.min(self.ttl / RENEW_AT);
        }
        let needs_no_renewal = !terms.renewed && valid_until(now, terms.ttl) <= self.valid_until;
        needs_no_renewal || now + least_left <= self.valid_until
    }

    /// Returns `true` if a renewal or a downgrade was sent, and has no reply.
    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(self.renewal, RenewalState::InFlight { .. })
    }

    /// Returns `true` if the lease is renewed while it is held.
    pub(crate) fn is_renewed(&self) -> bool {
        self.wanted == Wanted::Always
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns `true` if this fresh lease matches `terms`. A permit below a smaller limit is one below a larger limit.
    pub(crate) fn fits(&self, terms: Terms) -> bool {
        self.mode == terms.mode && self.limit <= terms.limit && self.lasts_as(terms)
    }

    /// Returns `true` if the lease is renewed as `terms` require.
    pub(crate) fn lasts_as(&self, terms: Terms) -> bool {
        self.ttl == terms.ttl && self.is_renewed() == terms.renewed
    }

    fn prolong(&mut self, sent_at: Moment, ttl: Span) {
        self.valid_until = self.valid_until.max(valid_until(sent_at, ttl));
        self.expires_at = self.expires_at.max(expires_at(sent_at, ttl));
        self.renewal = RenewalState::Due(sent_at + self.ttl / RENEW_AT);
    }

    /// Requires renewals of `ttl` while the lease is held.
    pub(crate) fn want_always(&mut self, ttl: Span, now: Moment) {
        if self.wanted != Wanted::Always {
            self.wanted = Wanted::Always;
            self.ttl = ttl;
            self.require_renewal(now);
        }
    }

    /// Requires nothing beyond `end`. If that is later than the present end, the watchdog renews the lease
    /// once, so the nested acquire costs no round trip.
    pub(crate) fn want_until(&mut self, end: Moment, now: Moment) {
        if end <= self.valid_until {
            self.wanted = Wanted::Nothing;
            return;
        }
        self.wanted = Wanted::Once;
        // A lease of this length, requested by now, ends at `end` or later.
        let left = end.since(now);
        self.ttl = Span::new(left + left / 50 + Duration::from_millis(5));
        self.require_renewal(now);
    }

    /// Makes a renewal due now: the backend may have lost the lease, or the holds need a longer one.
    pub(crate) fn require_renewal(&mut self, now: Moment) {
        self.renewal.hasten(now);
    }

    /// Makes a renewal due at this time, even of a fixed lease, which it does not extend. The reply shows whether other
    /// processes wait.
    pub(crate) fn ask(&mut self, at: Moment) {
        // The reply to a renewal in flight shows it too.
        if at >= self.valid_until || self.is_in_flight() {
            return;
        }
        if self.wanted == Wanted::Nothing {
            self.wanted = Wanted::Once;
            self.ttl = self.valid_until.span_since(at);
            self.renewal = match self.renewal {
                // After a failure, none is sent early.
                RenewalState::RetryDue(_) => RenewalState::RetryDue(at),
                _ => RenewalState::Due(at),
            };
        } else if let RenewalState::Due(_) = self.renewal {
            // A renewal that failed is repeated soon.
            self.require_renewal(at);
        }
    }

    /// Returns when the watchdog has to renew the lease, or `None` if it is not renewed or the reply to a
    /// command comes first.
    pub(crate) fn next_renewal(&self) -> Option<Moment> {
        match self.wanted {
            // A renewal has to state the mode.
            _ if self.is_downgrading => None,
            Wanted::Nothing => None,
            Wanted::Once | Wanted::Always => self.renewal.due(),
        }
    }

    /// Returns `true` if a renewal is due, or may join a round that is sent now.
    pub(crate) fn renews_early(&self, now: Moment) -> bool {
        let early = match self.renewal {
            RenewalState::Due(_) => self.ttl() / RENEW_EARLY,
            RenewalState::RetryDue(_) | RenewalState::InFlight { .. } => Span::ZERO,
        };
        self.next_renewal().is_some_and(|due| due <= now + early)
    }

    /// Begins a renewal if one is due, and returns the TTL to request.
    pub(crate) fn start_renewal(&mut self, now: Moment) -> Option<Duration> {
        if !self.renews_early(now) {
            return None;
        }
        self.renewal = RenewalState::SENT;
        Some(self.ttl.get())
    }

    /// Applies the end of a downgrade after which the lease is released.
    pub(crate) fn give_up_renewal(&mut self, now: Moment) {
        self.renewal = RenewalState::Due(now);
    }

    /// Applies the reply to a renewal for `ttl`.
    pub(crate) fn renewal_answered(
        &mut self,
        ttl: Duration,
        sent_at: Moment,
        outcome: &Result<Renewed, BackendError>,
        now: Moment,
    ) {
        match outcome {
            Ok(Renewed::Renewed | Renewed::Wanted) => {
                let again = self.renewal == RenewalState::InFlight { again: true };
                let ttl = Span::new(ttl);
                self.prolong(sent_at, ttl);
                if again || self.ttl != ttl {
                    self.renewal = RenewalState::Due(now);
                } else if self.wanted == Wanted::Once {
                    self.wanted = Wanted::Nothing;
                }
            }
            // A lease that is being returned can no longer be taken back.
            Ok(Renewed::NotHeld) => {
                self.renewal = RenewalState::Due(now);
                self.end_hand_offs();
            }
            Err(_) => self.retry_renewal(now),
        }
    }

    /// Applies the end of a renewal without effect, which is repeated until the local deadline.
    pub(crate) fn retry_renewal(&mut self, now: Moment) {
        // The remaining TTL can be shorter than the TTL, which a nested acquire may have raised.
        let left = self.valid_until.since(now);
        let soon = (self.ttl.get() / 30).min(left / 4);
        let soon = soon.clamp(Duration::from_millis(10), Duration::from_secs(1));
        self.renewal = RenewalState::RetryDue(now + soon);
    }
}

#[cfg(test)]
mod tests;
