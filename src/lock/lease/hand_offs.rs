//! The hand-offs of a lease to other owners of this process.

use std::time::Duration;

use super::upkeep::Upkeep;
use super::{Lease, RENEW_AT};
use crate::FencingToken;
use crate::backend::{BackendError, Extended, Mode, ReleasedOrKept, Renewed};
use crate::lock::claim::Terms;
use crate::lock::clock::{Moment, Span};

/// The longest time for which one lease is handed off in this process before the backend decides.
pub(super) const HANDOFF_TIME: Duration = Duration::from_millis(50);

/// The time before the end of [`HANDOFF_TIME`] at which an extension is sent at the latest.
const ASK_AHEAD: Duration = Duration::from_millis(25);

/// The shortest turn of this process while other processes wait. A turn costs several commands, which more
/// than one short hold should pay for.
pub(super) const SHORTEST_TURN: Duration = Duration::from_millis(2);

/// The hand-offs of a lease in this process under its present counters.
#[derive(Debug, Clone, Copy)]
pub(super) struct HandOffs {
    /// The number of tokens of the lease under these counters.
    tokens: u32,
    handed_off: u32,
    /// The number of tokens after which other processes have their turn.
    turn: u32,
    /// A turn that has begun lasts at least until then.
    turn_until: Option<Moment>,
    ask: Ask,
}

impl HandOffs {
    fn new(tokens: u32) -> Self {
        Self {
            tokens,
            handed_off: 0,
            turn: tokens,
            turn_until: None,
            ask: Ask::NotYet,
        }
    }

    fn has_tokens(&self) -> bool {
        self.handed_off + 1 < self.tokens
    }
}

/// Whether an extension was sent, at most once under the same counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    NotYet,
    /// An extension was sent, or is known to be rejected.
    Done,
}

impl Lease {
    pub(in crate::lock) fn token(&self) -> FencingToken {
        let handed_off = self.hand_offs().handed_off;
        FencingToken::new(self.counter, self.tokens_per_counter(), handed_off)
    }

    /// Returns `true` if this lease and the leases of `terms` are both renewed. A fixed lease is never
    /// handed off: its remaining TTL would differ from the TTL that the next holder requested.
    pub(in crate::lock) fn is_renewed_for(&self, terms: Terms, now: Moment) -> bool {
        self.is_renewed()
            && terms.renewed
            && self.mode == terms.mode
            && !self.is_downgrading
            && now < self.valid_until
    }

    /// Returns `true` if the lease may be handed off to a holder with `terms` without a command. Only the backend counts
    /// permits, and others with larger limits may have been granted since.
    pub(in crate::lock) fn may_pass_to(&self, terms: Terms, now: Moment) -> bool {
        let it = self.hand_offs();
        let lasts = it.turn_until.is_some_and(|until| now < until);
        self.mode != Mode::Permit
            && self.is_renewed_for(terms, now)
            && (it.handed_off + 1 < it.turn || lasts && it.has_tokens())
            && self.hands_off_until.is_some_and(|until| now < until)
            && self.lasts(now)
    }

    /// Returns `true` if enough time is left for a further holder.
    fn lasts(&self, now: Moment) -> bool {
        now + self.least_left() <= self.valid_until
    }

    fn hand_offs(&self) -> HandOffs {
        match &self.hand_offs {
            Some(begun) => **begun,
            None => HandOffs::new(self.tokens_per_counter()),
        }
    }

    fn hand_offs_mut(&mut self) -> &mut HandOffs {
        let tokens = self.tokens_per_counter();
        (self.hand_offs).get_or_insert_with(|| Box::new(HandOffs::new(tokens)))
    }

    /// Returns `true` if the next holder may receive a token of the present counters.
    pub(in crate::lock) fn has_tokens(&self) -> bool {
        self.hands_off_until.is_some() && self.hand_offs().has_tokens()
    }

    pub(in crate::lock) fn hand_on(&mut self) {
        self.hand_offs_mut().handed_off += 1;
    }

    /// Begins a turn because other processes wait: each of `holders` holders of this process gets the lease
    /// once, and others too for [`SHORTEST_TURN`].
    pub(in crate::lock) fn take_turns(&mut self, holders: usize, now: Moment) {
        let holders = u32::try_from(holders).unwrap_or(u32::MAX);
        let it = self.hand_offs_mut();
        it.turn = it.turn.min(it.handed_off.saturating_add(holders));
        it.turn_until = Some(now + SHORTEST_TURN);
        it.ask = Ask::Done;
    }

    /// Ends the hand-offs: the next holder needs a fresh counter.
    pub(in crate::lock) fn retire(&mut self) {
        self.hands_off_until = None;
    }

    /// Returns `true` if an extension should be sent now, so that its reply arrives before the budget ends.
    pub(in crate::lock) fn asks_ahead(&mut self, now: Moment) -> bool {
        let Some(until) = self.hands_off_until else {
            return false;
        };
        let it = self.hand_offs();
        let soon = it.handed_off * 2 >= it.turn || now + ASK_AHEAD >= until;
        let asks = soon && it.ask == Ask::NotYet && !self.is_in_flight();
        if asks {
            self.hand_offs_mut().ask = Ask::Done;
        }
        asks
    }

    /// Begins an extension, and returns the TTL to request. Returns `None` if a command is in flight, or if
    /// the next holder needs a fresh counter.
    ///
    /// A release waits for the reply to an extension, as for that to a renewal.
    pub(in crate::lock) fn start_extension(&mut self, now: Moment) -> Option<Duration> {
        if self.is_in_flight() || self.hands_off_until.is_none() {
            return None;
        }
        self.upkeep = Upkeep::sent(now);
        Some(self.ttl.get())
    }

    /// Applies the reply to an extension. `waiting` is the number of waiters in this process.
    pub(in crate::lock) fn extension_answered(
        &mut self,
        ttl: Duration,
        sent_at: Moment,
        outcome: &Result<Extended, BackendError>,
        waiting: usize,
        now: Moment,
    ) {
        let renewed = match outcome {
            Ok(Extended::Kept { counter }) => {
                // A retired lease needs a counter drawn after the retirement. A late reply has a counter that was
                // drawn before the present one.
                let is_late = counter.is_some_and(|counter| counter <= self.counter);
                if self.hands_off_until.is_some() && !is_late {
                    let again = self.upkeep.is_due_again(now);
                    self.keep(*counter, sent_at, ttl);
                    if again {
                        self.upkeep = Upkeep::Due(now);
                        return;
                    }
                }
                Ok(Renewed::Renewed)
            }
            Ok(Extended::Wanted { watchers }) => {
                if *watchers > 0 {
                    // The present holder is one of them.
                    self.take_turns(waiting + 1, now);
                }
                // The lease is unchanged: the renewal is due a third after the last grant or renewal.
                self.upkeep = if self.upkeep.is_due_again(now) || self.is_short {
                    Upkeep::Due(now)
                } else {
                    let left = self.ttl.get() / RENEW_AT * (RENEW_AT - 1);
                    Upkeep::Due(self.valid_until.before(left))
                };
                return;
            }
            Ok(Extended::NotHeld) => Ok(Renewed::NotHeld),
            Err(error) => Err(error.clone()),
        };
        self.renewal_answered(ttl, sent_at, &renewed, now);
    }

    /// Continues the lease that the backend kept, under fresh counters or the present ones.
    pub(in crate::lock) fn keep(&mut self, counter: Option<u64>, sent_at: Moment, ttl: Duration) {
        let HandOffs {
            tokens, handed_off, ..
        } = self.hand_offs();
        let kept = match counter {
            Some(counter) => {
                self.counter = counter;
                let tokens = self.tokens_per_counter();
                HandOffs::new(tokens.saturating_mul(ReleasedOrKept::COUNTERS))
            }
            None => HandOffs {
                handed_off,
                ..HandOffs::new(tokens)
            },
        };
        *self.hand_offs_mut() = kept;
        self.hands_off_until = Some(sent_at + HANDOFF_TIME);
        self.prolong(sent_at, Span::new(ttl));
    }
}
