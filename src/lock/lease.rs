//! What the backend granted to this process, and for how long that can be trusted.

use std::time::Duration;

use super::moment::{Moment, Span};
use crate::FencingToken;
use crate::backend::{BackendError, Extended, LeaseId, Passed, Renewal, Renewed};

/// How long a lock is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    /// The length of the lease.
    pub(super) ttl: Span,
    /// Whether the watchdog renews it for as long as it is held.
    pub(super) renewed: bool,
    /// When the lock is lost however often it was renewed.
    pub(super) max_hold: Span,
}

/// How long one lease may be handed on in this process before the others are asked.
const HANDOFF_TIME: Duration = Duration::from_millis(100);

/// How long before the end of that they are asked ahead, at the latest.
const ASK_AHEAD: Duration = Duration::from_millis(25);

/// A turn of a process that others wait for, too, has at least so many holders: each turn costs every
/// other process a try.
const SHORTEST_TURN: usize = 16;

/// A renewal is due when a third of the lease has passed, as in Redisson.
const RENEW_AT: u32 = 3;

/// Renewals that are due within this part of their lease join a round that is under way.
const RENEW_EARLY: u32 = 20;

/// What a lane knows its lease by. The rest of the [`LeaseId`] is the manager, the same for all lanes of a
/// table: each lock that is held would have it once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeaseNumber(u64);

impl LeaseNumber {
    /// Of a lease of this manager.
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
    counter: u64,
    tokens_per_counter: u32,
    handoffs: u32,
    /// How many tokens there are under this counter, and those that follow it and are ours too.
    tokens: u32,
    /// When the hand-offs end however many are left.
    budget_until: Moment,
    ttl: Span,
    policy: Policy,
    valid_until: Moment,
    renew_at: Moment,
    /// A renewal is on the wire, or an extension, which is one too.
    renewing: bool,
    /// The backend was asked for more hand-offs, or there is no sense in it.
    asked: bool,
    /// The last renewal had no answer; the next one is not sent early.
    failing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Never,
    /// A nested acquire asked for more than was left.
    Once,
    Always,
}

/// `sent_at + ttl − drift`: counted from before the command was sent, since the backend's clock
/// starts somewhere between that and the answer. The drift, 1 % + 2 ms, allows for clocks that run
/// at different speed, and tells the loss before the backend can let anybody else in.
fn valid_until(sent_at: Moment, ttl: Duration) -> Moment {
    let drift = ttl / 100 + Duration::from_millis(2);
    sent_at + ttl.saturating_sub(drift)
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
            counter,
            tokens_per_counter,
            handoffs: 0,
            tokens: tokens_per_counter,
            budget_until: sent_at + HANDOFF_TIME,
            ttl: terms.ttl,
            policy: if terms.renewed {
                Policy::Always
            } else {
                Policy::Never
            },
            valid_until: valid_until(sent_at, terms.ttl.get()),
            renew_at: sent_at + terms.ttl.get() / RENEW_AT,
            renewing: false,
            asked: false,
            failing: false,
        }
    }

    pub(super) fn number(&self) -> LeaseNumber {
        self.number
    }

    /// Whether it has this id, which is one of this manager.
    pub(super) fn is(&self, id: LeaseId) -> bool {
        self.number == LeaseNumber::of(id)
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl.get()
    }

    /// How long the backend may hold it still, whatever became of the last renewal. A nested acquire may
    /// have asked for less than what is left.
    pub(super) fn longest(&self) -> Duration {
        let left = self.expires_at().since(Moment::now());
        left.max(self.ttl())
    }

    pub(super) fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// When the backend itself must have let go, with room for a clock that runs slow.
    pub(super) fn expires_at(&self) -> Moment {
        self.valid_until + self.ttl() / 50 + Duration::from_millis(4)
    }

    pub(super) fn token(&self) -> FencingToken {
        FencingToken::new(self.counter, self.tokens_per_counter, self.handoffs)
    }

    pub(super) fn is_renewing(&self) -> bool {
        self.renewing
    }

    /// Whether a fresh lease is what `terms` ask for.
    pub(super) fn fits(&self, terms: Terms) -> bool {
        self.ttl == terms.ttl && (self.policy == Policy::Always) == terms.renewed
    }

    /// Whether this lease is renewed and so are the leases that `terms` ask for. A fixed lease is
    /// never handed on: it would be shorter, or longer, than its next holder was promised.
    pub(super) fn is_renewed_for(&self, terms: Terms, now: Moment) -> bool {
        self.policy == Policy::Always && terms.renewed && now < self.valid_until
    }

    /// Whether the next holder in this process may have it without the backend being asked.
    pub(super) fn may_pass_to(&self, terms: Terms, now: Moment) -> bool {
        self.is_renewed_for(terms, now)
            && self.handoffs + 1 < self.tokens
            && now < self.budget_until
            && now + self.ttl() / RENEW_AT <= self.valid_until
    }

    pub(super) fn hand_on(&mut self) {
        self.handoffs += 1;
    }

    /// Other processes wait as well: those who wait here now get it once, and most of them once more.
    pub(super) fn take_turns(&mut self, waiting: usize) {
        let turn = SHORTEST_TURN.max(waiting + waiting * 3 / 4);
        let turn = u32::try_from(turn).unwrap_or(u32::MAX);
        self.tokens = self.tokens.min(self.handoffs.saturating_add(turn));
        self.asked = true;
    }

    /// Whether it is time to ask for more hand-offs, so that the next holders need not wait for the answer.
    /// At most once for each budget.
    pub(super) fn asks_ahead(&mut self, now: Moment) -> bool {
        let soon = self.handoffs * 2 >= self.tokens || now + ASK_AHEAD >= self.budget_until;
        let asks = soon && !self.asked && !self.renewing;
        self.asked |= asks;
        asks
    }

    /// It is under way from here on as a renewal, whose answer a release waits for, and asks for so long. Not
    /// if the next holder must have a counter that is still to be drawn.
    pub(super) fn start_extension(&mut self) -> Option<Duration> {
        if self.renewing || self.tokens == 0 {
            return None;
        }
        self.renewing = true;
        Some(self.ttl())
    }

    /// `waiting`: how many there are here.
    pub(super) fn extension_answered(
        &mut self,
        extension: &Renewal,
        sent_at: Moment,
        outcome: &Result<Extended, BackendError>,
        waiting: usize,
        now: Moment,
    ) {
        let renewed = match outcome {
            Ok(Extended::Kept { counter }) => {
                // Unless it is not fresh enough any more.
                if self.tokens > 0 {
                    self.keep(*counter, sent_at, extension.ttl);
                }
                Ok(Renewed::Renewed)
            }
            Ok(Extended::Wanted { watchers }) => {
                if *watchers > 0 {
                    self.take_turns(waiting);
                }
                self.renewing = false;
                return;
            }
            Ok(Extended::NotHeld) => Ok(Renewed::NotHeld),
            Err(error) => Err(error.clone()),
        };
        self.renewal_answered(extension, sent_at, &renewed, now);
    }

    pub(super) fn end_budget(&mut self) {
        self.tokens = 0;
    }

    /// The backend kept the lease for us, under fresh counters.
    pub(super) fn keep(&mut self, counter: u64, sent_at: Moment, ttl: Duration) {
        self.counter = counter;
        self.handoffs = 0;
        self.asked = false;
        self.tokens = self.tokens_per_counter.saturating_mul(Passed::COUNTERS);
        self.budget_until = sent_at + HANDOFF_TIME;
        self.prolong(sent_at, ttl);
    }

    fn prolong(&mut self, sent_at: Moment, ttl: Duration) {
        self.valid_until = self.valid_until.max(valid_until(sent_at, ttl));
        self.renew_at = sent_at + self.ttl() / RENEW_AT;
    }

    /// A nested acquire never shortens the lease; what it asks for beyond is fetched by the
    /// watchdog, so that the nested acquire costs no round trip.
    pub(super) fn widen(&mut self, terms: Terms, now: Moment) {
        if self.policy == Policy::Always {
            return;
        }
        if terms.renewed || valid_until(now, terms.ttl.get()) > self.valid_until {
            // More that is not fetched yet stays wanted.
            self.ttl = match self.policy {
                Policy::Once => self.ttl.max(terms.ttl),
                _ => terms.ttl,
            };
            self.policy = if terms.renewed {
                Policy::Always
            } else {
                Policy::Once
            };
            self.renew_at = now;
        }
    }

    /// The backend may have lost it: a renewal is due now.
    pub(super) fn doubt(&mut self, now: Moment) {
        self.renew_at = self.renew_at.min(now);
    }

    /// When the watchdog has to look at this lease again; `None` if it is not to be renewed, or a
    /// renewal is on the wire.
    pub(super) fn next_renewal(&self) -> Option<Moment> {
        (self.policy != Policy::Never && !self.renewing).then_some(self.renew_at)
    }

    /// If a renewal is due, it is under way from here on, and asks for so long.
    pub(super) fn start_renewal(&mut self, now: Moment) -> Option<Duration> {
        let due = self.next_renewal()?;
        let early = if self.failing {
            Duration::ZERO
        } else {
            self.ttl() / RENEW_EARLY
        };
        if due > now + early {
            return None;
        }
        self.renewing = true;
        Some(self.ttl())
    }

    pub(super) fn renewal_answered(
        &mut self,
        renewal: &Renewal,
        sent_at: Moment,
        outcome: &Result<Renewed, BackendError>,
        now: Moment,
    ) {
        self.renewing = false;
        self.failing = outcome.is_err();
        match outcome {
            Ok(Renewed::Renewed) => {
                // A nested acquire asked for more while this one was on the wire.
                let more = self.policy == Policy::Once && self.renew_at > sent_at;
                self.prolong(sent_at, renewal.ttl);
                if more || self.ttl() != renewal.ttl {
                    self.renew_at = now;
                } else if self.policy == Policy::Once {
                    self.policy = Policy::Never;
                }
            }
            // Where it is on its way back, nobody takes it back.
            Ok(Renewed::NotHeld) => self.end_budget(),
            // Again soon, until the local deadline.
            Err(_) => {
                // Of what is left, if that is less than a lease: a nested acquire may have widened it.
                let left = self.valid_until.since(now);
                let soon = (self.ttl() / 30).min(left / 4);
                let soon = soon.clamp(Duration::from_millis(10), Duration::from_secs(1));
                self.renew_at = now + soon;
            }
        }
    }
}
