//! What the backend granted to this process, and for how long that can be trusted.
//!
//! | upkeep | event | next | sent |
//! |---|---|---|---|
//! | due | a third of the lease has passed | in flight | renewal |
//! | due | the backend may have lost it | due now | |
//! | due | the hand-off budget is about to end | in flight | extension |
//! | due | a nested hold asks for more than is left | due now | |
//! | in flight | renewed, or kept | due | |
//! | in flight | failed | retry due soon | |
//! | in flight | not held | | |
//! | retry due | the time has come | in flight | renewal |
//!
//! `fixed` in place of `due`: nothing is sent, the lease ends at its deadline. All rows need the
//! watchdog of the holder's runtime; an extension needs a task of its own.

use std::time::Duration;

use super::claim::Terms;
use super::clock::{Moment, Span};
use crate::FencingToken;
use crate::backend::{BackendError, Extended, LeaseId, ReleasedOrKept, Renewed};

/// How long one lease may be handed on in this process before the others are asked.
const HANDOFF_TIME: Duration = Duration::from_millis(100);

/// How long before the end of that they are asked ahead, at the latest.
const ASK_AHEAD: Duration = Duration::from_millis(25);

/// A turn of a process that others wait for, too, has at least so many holders: each turn costs every
/// other process an attempt.
const SHORTEST_TURN: usize = 16;

/// A renewal is due when a third of the lease has passed, as in Redisson.
const RENEW_AT: u32 = 3;

/// Renewals that are due within this part of their lease join a round that is under way.
const RENEW_EARLY: u32 = 20;

/// What a lane knows its lease by. The rest of the [`LeaseId`] is the manager, the same for all lanes of a
/// table: each lock that is held would have it once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeaseNumber(u64);

impl LeaseNumber {
    /// The number of a lease of this manager.
    pub(super) fn of(id: LeaseId) -> Self {
        Self(id.number())
    }

    pub(super) fn get(self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
pub(super) struct Lease {
    number: LeaseNumber,
    ttl: Span,
    valid_until: Moment,
    /// When the backend itself must have let go, with room for a clock that runs slow.
    expires_at: Moment,
    wanted: Wanted,
    upkeep: Upkeep,
    tokens: Tokens,
    budget: Budget,
}

/// For how long the holds ask, beyond the present end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Nothing more: it is not renewed.
    Nothing,
    /// One renewal: a nested hold asked for more than was left.
    Once,
    /// As long as it is held.
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upkeep {
    Due(Moment),
    /// The last renewal failed: the next one is not sent early.
    RetryDue(Moment),
    /// A renewal, or an extension, was sent then. `again`: another one is due after its reply.
    InFlight {
        since: Moment,
        again: bool,
    },
}

/// The fencing tokens of this lease.
#[derive(Debug)]
struct Tokens {
    counter: u64,
    per_counter: u32,
    /// How many hand-offs were made under this counter.
    handed_off: u32,
}

/// Whether the next holder in this process may have the lease without the backend being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Budget {
    /// For so many tokens in total, and until then.
    Open {
        tokens: u32,
        until: Moment,
        ask: Ask,
    },
    /// The next holder must have a fresh counter, or the lease is gone.
    Retired,
}

/// Whether the backend is asked for more hand-offs, ahead of need. At most once for each budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    NotYet,
    /// Asked, or known to be denied.
    Done,
}

/// Returns `sent_at + ttl − drift`: counted from before the command was sent, since the backend's clock
/// starts somewhere between that and the reply. The drift, 1 % + 2 ms, allows for clocks that run
/// at different speed, and reports the loss before the backend can admit another holder.
pub(super) fn valid_until(sent_at: Moment, ttl: Duration) -> Moment {
    let drift = ttl / 100 + Duration::from_millis(2);
    sent_at + ttl.saturating_sub(drift)
}

fn expires_at(sent_at: Moment, ttl: Duration) -> Moment {
    sent_at + (ttl + ttl / 100 + Duration::from_millis(2))
}

impl Lease {
    pub(super) fn new(
        number: LeaseNumber,
        counter: u64,
        tokens_per_counter: u32,
        terms: Terms,
        sent_at: Moment,
    ) -> Self {
        Self {
            number,
            ttl: terms.ttl,
            valid_until: valid_until(sent_at, terms.ttl.get()),
            expires_at: expires_at(sent_at, terms.ttl.get()),
            wanted: if terms.renewed {
                Wanted::Always
            } else {
                Wanted::Nothing
            },
            upkeep: Upkeep::Due(sent_at + terms.ttl.get() / RENEW_AT),
            tokens: Tokens {
                counter,
                per_counter: tokens_per_counter,
                handed_off: 0,
            },
            budget: Budget::Open {
                tokens: tokens_per_counter,
                until: sent_at + HANDOFF_TIME,
                ask: Ask::NotYet,
            },
        }
    }

    pub(super) fn number(&self) -> LeaseNumber {
        self.number
    }

    /// Returns `true` if it has this id, which is one of this manager.
    pub(super) fn is(&self, id: LeaseId) -> bool {
        self.number == LeaseNumber::of(id)
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl.get()
    }

    /// Returns how long the backend may hold it still, whatever became of the last renewal. A nested
    /// acquire may have asked for less than what is left.
    pub(super) fn longest(&self, now: Moment) -> Duration {
        self.expires_at.since(now).max(self.ttl())
    }

    pub(super) fn valid_until(&self) -> Moment {
        self.valid_until
    }

    pub(super) fn expires_at(&self) -> Moment {
        self.expires_at
    }

    pub(super) fn token(&self) -> FencingToken {
        let Tokens {
            counter,
            per_counter,
            handed_off,
        } = self.tokens;
        FencingToken::new(counter, per_counter, handed_off)
    }

    /// Returns when the command was sent whose reply is still to come.
    pub(super) fn in_flight_since(&self) -> Option<Moment> {
        match self.upkeep {
            Upkeep::InFlight { since, .. } => Some(since),
            Upkeep::Due(_) | Upkeep::RetryDue(_) => None,
        }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight_since().is_some()
    }

    /// Returns `true` if a fresh lease is what `terms` ask for.
    pub(super) fn fits(&self, terms: Terms) -> bool {
        self.ttl == terms.ttl && (self.wanted == Wanted::Always) == terms.renewed
    }

    // ---- hand-offs ------------------------------------------------------------------------

    /// Returns `true` if this lease is renewed and so are the leases that `terms` ask for. A fixed lease
    /// is never handed on: it would be shorter, or longer, than its next holder was promised.
    pub(super) fn is_renewed_for(&self, terms: Terms, now: Moment) -> bool {
        self.wanted == Wanted::Always && terms.renewed && now < self.valid_until
    }

    /// Returns `true` if the next holder in this process may have it without the backend being asked.
    pub(super) fn may_pass_to(&self, terms: Terms, now: Moment) -> bool {
        let Budget::Open { tokens, until, .. } = self.budget else {
            return false;
        };
        self.is_renewed_for(terms, now)
            && self.tokens.handed_off + 1 < tokens
            && now < until
            && now + self.ttl() / RENEW_AT <= self.valid_until
    }

    pub(super) fn hand_on(&mut self) {
        self.tokens.handed_off += 1;
    }

    /// Other processes wait as well: those who wait here now get it once, and most of them once more.
    pub(super) fn take_turns(&mut self, waiting: usize) {
        let Budget::Open { tokens, ask, .. } = &mut self.budget else {
            return;
        };
        let turn = SHORTEST_TURN.max(waiting + waiting * 3 / 4);
        let turn = u32::try_from(turn).unwrap_or(u32::MAX);
        *tokens = (*tokens).min(self.tokens.handed_off.saturating_add(turn));
        *ask = Ask::Done;
    }

    /// The next holder must have a fresh counter.
    pub(super) fn retire(&mut self) {
        self.budget = Budget::Retired;
    }

    /// Returns `true` if it is time to ask for more hand-offs, so that the next holders need not wait for
    /// the reply.
    pub(super) fn asks_ahead(&mut self, now: Moment) -> bool {
        let in_flight = self.is_in_flight();
        let Budget::Open { tokens, until, ask } = &mut self.budget else {
            return false;
        };
        let soon = self.tokens.handed_off * 2 >= *tokens || now + ASK_AHEAD >= *until;
        let asks = soon && *ask == Ask::NotYet && !in_flight;
        if asks {
            *ask = Ask::Done;
        }
        asks
    }

    /// Begins an extension, which counts as a renewal that a release waits for, and returns how long it
    /// asks for. `None` if one is in flight, or the next holder must have a counter that is still to be
    /// drawn.
    pub(super) fn start_extension(&mut self, now: Moment) -> Option<Duration> {
        if self.is_in_flight() || self.budget == Budget::Retired {
            return None;
        }
        self.upkeep = Upkeep::InFlight {
            since: now,
            again: false,
        };
        Some(self.ttl())
    }

    /// `waiting`: how many there are here.
    pub(super) fn extension_answered(
        &mut self,
        ttl: Duration,
        sent_at: Moment,
        outcome: &Result<Extended, BackendError>,
        waiting: usize,
        now: Moment,
    ) {
        let renewed = match outcome {
            Ok(Extended::Kept { counter }) => {
                // Unless it is not fresh enough any more.
                if self.budget != Budget::Retired {
                    self.keep(*counter, sent_at, ttl);
                }
                Ok(Renewed::Renewed)
            }
            Ok(Extended::Wanted { watchers }) => {
                if *watchers > 0 {
                    self.take_turns(waiting);
                }
                // Nothing was extended: a third of what was granted has to pass, as before.
                self.upkeep = if self.is_wanted_again() {
                    Upkeep::Due(now)
                } else {
                    Upkeep::Due(
                        self.valid_until
                            .before(self.ttl() / RENEW_AT * (RENEW_AT - 1)),
                    )
                };
                return;
            }
            Ok(Extended::NotHeld) => Ok(Renewed::NotHeld),
            Err(error) => Err(error.clone()),
        };
        self.renewal_answered(ttl, sent_at, &renewed, now);
    }

    /// The backend kept the lease for us, under fresh counters.
    pub(super) fn keep(&mut self, counter: u64, sent_at: Moment, ttl: Duration) {
        self.tokens.counter = counter;
        self.tokens.handed_off = 0;
        self.budget = Budget::Open {
            tokens: self
                .tokens
                .per_counter
                .saturating_mul(ReleasedOrKept::COUNTERS),
            until: sent_at + HANDOFF_TIME,
            ask: Ask::NotYet,
        };
        self.prolong(sent_at, ttl);
    }

    // ---- renewals -------------------------------------------------------------------------

    fn prolong(&mut self, sent_at: Moment, ttl: Duration) {
        self.valid_until = self.valid_until.max(valid_until(sent_at, ttl));
        self.expires_at = self.expires_at.max(expires_at(sent_at, ttl));
        self.upkeep = Upkeep::Due(sent_at + self.ttl() / RENEW_AT);
    }

    /// The holds ask for renewals of `ttl` for as long as they last.
    pub(super) fn want_always(&mut self, ttl: Span, now: Moment) {
        if self.wanted != Wanted::Always {
            self.wanted = Wanted::Always;
            self.ttl = ttl;
            self.mark_suspect(now);
        }
    }

    /// The holds ask for nothing beyond `end`, to be fetched by the watchdog if that is later than what
    /// is left: so the nested acquire that asks costs no round trip.
    pub(super) fn want_until(&mut self, end: Moment, now: Moment) {
        if end <= self.valid_until {
            self.wanted = Wanted::Nothing;
            return;
        }
        self.wanted = Wanted::Once;
        // A lease of this length, asked for by now, ends at `end` or later.
        let left = end.since(now);
        self.ttl = Span::new(left + left / 50 + Duration::from_millis(5));
        self.mark_suspect(now);
    }

    /// A renewal is due now: the backend may have lost the lease, or is to be asked for more.
    pub(super) fn mark_suspect(&mut self, now: Moment) {
        match &mut self.upkeep {
            Upkeep::Due(at) | Upkeep::RetryDue(at) => *at = (*at).min(now),
            Upkeep::InFlight { again, .. } => *again = true,
        }
    }

    /// Returns `true` if something happened while a renewal was in flight that its reply does not cover.
    fn is_wanted_again(&self) -> bool {
        matches!(self.upkeep, Upkeep::InFlight { again: true, .. })
    }

    /// Returns when the watchdog has to renew it; `None` if it is not to be renewed, or a renewal is in
    /// flight.
    pub(super) fn next_renewal(&self) -> Option<Moment> {
        match self.upkeep {
            Upkeep::Due(at) | Upkeep::RetryDue(at) if self.wanted != Wanted::Nothing => Some(at),
            _ => None,
        }
    }

    /// Returns `true` if a renewal is due, or soon enough to join one that is sent now.
    pub(super) fn renews_early(&self, now: Moment) -> bool {
        let early = match self.upkeep {
            Upkeep::RetryDue(_) => Duration::ZERO,
            _ => self.ttl() / RENEW_EARLY,
        };
        self.next_renewal().is_some_and(|due| due <= now + early)
    }

    /// If a renewal is due, begins it and returns how long it asks for.
    pub(super) fn start_renewal(&mut self, now: Moment) -> Option<Duration> {
        if !self.renews_early(now) {
            return None;
        }
        self.upkeep = Upkeep::InFlight {
            since: now,
            again: false,
        };
        Some(self.ttl())
    }

    /// Its runtime has ended: it is not renewed any more.
    pub(super) fn leave_to_expire(&mut self, now: Moment) {
        self.give_up_renewal(now);
        self.wanted = Wanted::Nothing;
    }

    /// The task that sent the renewal does not run: its reply is not waited for.
    pub(super) fn give_up_renewal(&mut self, now: Moment) {
        if self.is_in_flight() {
            self.upkeep = Upkeep::Due(now);
        }
    }

    /// `ttl` is what the renewal asked for.
    pub(super) fn renewal_answered(
        &mut self,
        ttl: Duration,
        sent_at: Moment,
        outcome: &Result<Renewed, BackendError>,
        now: Moment,
    ) {
        match outcome {
            Ok(Renewed::Renewed) => {
                let again = self.is_wanted_again();
                self.prolong(sent_at, ttl);
                if again || self.ttl() != ttl {
                    self.upkeep = Upkeep::Due(now);
                } else if self.wanted == Wanted::Once {
                    self.wanted = Wanted::Nothing;
                }
            }
            // Where it is being returned, it cannot be taken back.
            Ok(Renewed::NotHeld) => {
                self.upkeep = Upkeep::Due(now);
                self.retire();
            }
            // Again soon, until the local deadline. Of what is left, if that is less than a lease: a
            // nested acquire may have asked for more.
            Err(_) => {
                let left = self.valid_until.since(now);
                let soon = (self.ttl() / 30).min(left / 4);
                let soon = soon.clamp(Duration::from_millis(10), Duration::from_secs(1));
                self.upkeep = Upkeep::RetryDue(now + soon);
            }
        }
    }
}

#[cfg(test)]
mod tests;
