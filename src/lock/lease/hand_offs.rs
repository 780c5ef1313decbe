//! The hand-offs of a lease to other owners of this process.

use std::time::Duration;

use super::claim::Terms;
use super::renewal::RenewalState;
use super::{Lease, RENEW_AT};
use crate::FencingToken;
use crate::backend::{KeepRequest, Mode};
use crate::lock::clock::{Moment, Span};

/// The longest time for which one lease is handed off in this process before the backend decides.
const HANDOFF_TIME: Duration = Duration::from_millis(50);

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
    turn_tokens: u32,
    /// A turn that has begun lasts at least until then.
    turn_until: Option<Moment>,
    /// Until when the lease stays here for the next acquire if the backend keeps it. `None` if its key does not come back.
    stays_until: Option<Moment>,
}

/// The terms under which the backend kept a lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// The first fresh counter. Without one, the lease has tokens left.
    pub(crate) counter: Option<u64>,
    /// The number of fresh counters.
    pub(crate) counters: u32,
    pub(crate) ttl: Span,
    pub(crate) sent_at: Moment,
}

impl HandOffs {
    fn new(tokens: u32) -> Self {
        Self {
            tokens,
            handed_off: 0,
            turn_tokens: tokens,
            turn_until: None,
            stays_until: None,
        }
    }

    fn has_tokens(&self) -> bool {
        self.handed_off + 1 < self.tokens
    }
}

impl Lease {
    pub(crate) fn token(&self) -> FencingToken {
        let handed_off = self.hand_offs().handed_off;
        FencingToken::new(self.counter, self.tokens_per_counter(), handed_off)
    }

    /// Returns `true` if this lease and the leases of `terms` are both renewed. A fixed lease is never
    /// handed off: its remaining TTL would differ from the TTL that the next holder requested.
    pub(crate) fn is_renewed_for(&self, terms: Terms, now: Moment) -> bool {
        self.is_renewed()
            && terms.renewed
            && self.mode == terms.mode
            && !self.is_downgrading
            && now < self.valid_until
    }

    /// Returns `true` if the lease may be handed off to a holder with `terms` without a command. Only the backend counts
    /// permits, and others with larger limits may have been granted since.
    pub(crate) fn may_pass_to(&self, terms: Terms, now: Moment) -> bool {
        let end = self.turn_from.map(|from| from + HANDOFF_TIME);
        end.is_some_and(|end| self.may_pass_until(end, terms, now))
    }

    /// Returns the same for a turn that ends at `end`.
    pub(crate) fn may_pass_until(&self, end: Moment, terms: Terms, now: Moment) -> bool {
        let it = self.hand_offs();
        let lasts = it.turn_until.is_some_and(|until| now < until);
        self.mode != Mode::Permit
            && self.is_renewed_for(terms, now)
            && (it.handed_off + 1 < it.turn_tokens || lasts && it.has_tokens())
            && self.turn_from.is_some()
            && now < end
            && self.lasts(now)
    }

    /// Returns the end of a turn of this length, if the lease may be kept after its last hold: an exclusive lease that is
    /// renewed, and was not granted with those of other keys.
    pub(crate) fn keeps_until(&self, length: Span) -> Option<Moment> {
        let may_be_kept = self.mode == Mode::Exclusive && self.is_renewed() && !self.is_downgrading;
        let from = self.turn_from.filter(|_| may_be_kept);
        from.map(|from| from + length)
    }

    /// Returns `true` if the lease may stay here for the next holder of a turn that ends at `end`: no other process is
    /// known to wait, and nothing suggests that the backend has lost the lease. A lease without holders is not renewed.
    pub(crate) fn may_stay(&self, end: Moment, now: Moment) -> bool {
        let others_wait = self.hand_offs().turn_until.is_some();
        let is_certain = matches!(self.renewal, RenewalState::Due(at) if now < at);
        now < end && !others_wait && is_certain && self.has_tokens() && self.lasts(now)
    }

    /// Sets until when the lease stays here if the backend keeps it.
    pub(crate) fn keep_until(&mut self, until: Option<Moment>) {
        // Mostly neither is there.
        if until.is_some() || self.hand_offs.is_some() {
            self.hand_offs_mut().stays_until = until;
        }
    }

    pub(crate) fn stays_until(&self) -> Option<Moment> {
        self.hand_offs.as_ref()?.stays_until
    }

    /// Returns `true` if enough time is left for a further holder.
    fn lasts(&self, now: Moment) -> bool {
        now + self.ttl / RENEW_AT <= self.valid_until
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
    pub(crate) fn has_tokens(&self) -> bool {
        self.turn_from.is_some() && self.hand_offs().has_tokens()
    }

    pub(crate) fn hand_on(&mut self) {
        self.hand_offs_mut().handed_off += 1;
    }

    /// Begins a turn because other processes wait: each of `holders` holders of this process gets the lease
    /// once, and others too for [`SHORTEST_TURN`].
    pub(crate) fn begin_turn(&mut self, holders: usize, now: Moment) {
        let holders = u32::try_from(holders).unwrap_or(u32::MAX);
        let it = self.hand_offs_mut();
        it.turn_tokens = it.turn_tokens.min(it.handed_off.saturating_add(holders));
        it.turn_until = Some(now + SHORTEST_TURN);
    }

    /// Ends the hand-offs: the next holder needs a fresh counter.
    pub(crate) fn end_hand_offs(&mut self) {
        self.turn_from = None;
    }

    /// Returns how many counters the next turn should have: enough for twice the holders of this one, so that a busy key
    /// needs few commands. The counter of a node must not outrun the microseconds of its clock, even if thousands of
    /// keys are handed off a few times in each turn.
    pub(crate) fn next_counters(&self) -> u32 {
        let holders = self.hand_offs().handed_off.saturating_add(1);
        let counters = holders
            .saturating_mul(2)
            .div_ceil(self.tokens_per_counter());
        counters.clamp(1, KeepRequest::MAX_COUNTERS)
    }

    /// Continues the lease that the backend kept.
    pub(crate) fn keep(&mut self, kept: Kept, now: Moment) {
        let HandOffs {
            tokens, handed_off, ..
        } = self.hand_offs();
        let hand_offs = match kept.counter {
            Some(counter) => {
                self.counter = counter;
                let tokens = self.tokens_per_counter();
                HandOffs::new(tokens.saturating_mul(kept.counters))
            }
            None => HandOffs {
                handed_off,
                ..HandOffs::new(tokens)
            },
        };
        *self.hand_offs_mut() = hand_offs;
        // A distant store would leave little of a budget that counts from the command.
        self.turn_from = Some(now);
        self.prolong(kept.sent_at, kept.ttl);
    }
}
