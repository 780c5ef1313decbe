//! The pauses between the attempts of an acquire loop, and the hints that end them.

use std::time::Duration;

use tokio::time::sleep_until;

use super::{AcquireLoop, watch};
use crate::backend::Hint;
use crate::jitter::{jittered, up_to};
use crate::lock::clock::Moment;
use crate::lock::lane::{Lane, LastReply};
use crate::lock::lease::LeaseNumber;
use crate::observe::WokenBy;

/// The pause after a failed attempt, doubled after each further one up to [`BACKSTOP`].
pub(super) const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// The longest delay that a lost notification causes.
pub(super) const BACKSTOP: Duration = Duration::from_secs(1);

/// The time after which a process refreshes its place in the queue of the backend. A transferred lease lasts longer, so a
/// refresh confirms a transfer whose message is lost.
pub(super) const REFRESH: Duration = Duration::from_secs(1);

/// The longest time between two attempts of a process in a queue that no notification reaches.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// The part of a wait without progress after which such a process attempts again.
pub(super) const POLL_PART: u32 = 10;

/// The number of processes in a queue that attempt at once after a hint that no transfer caused.
pub(super) const AT_ONCE: u32 = 8;

/// The time between a waiter's last attempt and its deadline, for the reply to arrive.
pub(super) const LAST_ATTEMPT: Duration = Duration::from_millis(20);

/// The longest time for which a loop waits for its slot to contend for a permit. It then learns from its own attempt
/// whether the backend replies.
pub(crate) const LONGEST_FOR_SLOT: Duration = Duration::from_secs(1);

impl AcquireLoop {
    /// Waits for a slot to contend for a permit: at most for [`LONGEST_FOR_SLOT`], or until the last attempt of the
    /// waiter. The wait has no jitter, so loops that end it stay in order. Returns `false` if no waiter is left.
    pub(super) async fn take_slot(&mut self) -> bool {
        let Some(slots) = self.engine.seats.slots(&self.key) else {
            return true;
        };
        let slot = slots.acquire_owned();
        let until = self.engine.now() + LONGEST_FOR_SLOT;
        // A hint is for the loops with a slot.
        self.hears = false;
        let goes_on = tokio::select! {
            biased;
            slot = slot => {
                self.slot = slot.ok();
                true
            }
            goes_on = self.pause(until, true) => goes_on,
        };
        self.hears = true;
        self.woken_by = None;
        goes_on
    }

    /// Waits for a hint, for `again_at`, or for the last attempt of the first waiter. Returns `false` if
    /// no attempt is needed: no waiter is left, and the lane is idle.
    pub(super) async fn pause(&mut self, mut again_at: Moment, last_attempt: bool) -> bool {
        let asleep_since = self.engine.now();
        self.woken_by = None;
        let hints = (self.hints).get_or_insert_with(|| watch(&self.engine, &self.key, &self.task));
        loop {
            let now = self.engine.now();
            let Some(pause) = self.engine.event(&self.key, now, Lane::pause) else {
                return false;
            };
            if pause.at_once {
                return true;
            }
            let last_at = last_attempt_at(pause.deadline, asleep_since).filter(|_| last_attempt);
            let wake_at = last_at.map_or(again_at, |at| at.min(again_at));
            // All three are cancel safe: hints and wakeups are kept for the next round.
            tokio::select! {
                biased;
                hint = hints.next() => {
                    let is_first = !std::mem::replace(&mut self.listens, true);
                    if !is_first {
                        self.woken_by = Some(WokenBy::Message);
                    }
                    again_at = match hint {
                        Hint::Transferred { lease }
                            if pause.place == Some(LeaseNumber::of(lease)) =>
                        {
                            return true;
                        }
                        // Another lane has that lease, or this process has left it.
                        Hint::Transferred { .. } => again_at,
                        _ if !self.hears => again_at,
                        _ => {
                            let spread = self.queued.map_or(Duration::ZERO, spread);
                            // A timer is late by up to 1 ms. Clients outside the queue attempt at once.
                            if is_first || spread.is_zero() {
                                return true;
                            }
                            again_at.min(self.engine.now() + spread)
                        }
                    };
                }
                () = sleep_until(wake_at.into()) => {
                    let expired = self.holder_expires.is_some_and(|at| at <= self.engine.now());
                    self.woken_by.get_or_insert(match expired {
                        true => WokenBy::Expiry,
                        false => WokenBy::Backstop,
                    });
                    return true;
                }
                () = self.wakeup.notified() => {}
            }
        }
    }

    /// Returns when to retry without a hint: at the expiry of the holder, or after the backstop.
    pub(super) fn next_attempt(&mut self, seen: &LastReply, now: Moment) -> Moment {
        match seen {
            LastReply::Busy(until) => {
                self.backoff = FIRST_BACKOFF;
                let expired = *until + Duration::from_millis(1);
                self.holder_expires = Some(expired);
                let refresh = match (self.queued, self.poll_after) {
                    (None, _) => BACKSTOP,
                    (Some(_), Some((after, since))) => {
                        after.max(now.since(since) / POLL_PART).min(POLL)
                    }
                    (Some(_), None) if !self.listens => POLL,
                    (Some(_), None) => REFRESH,
                };
                expired.min(now + jittered(refresh))
            }
            LastReply::Nothing | LastReply::Trouble(_) => {
                self.holder_expires = None;
                let pause = self.backoff;
                self.backoff = (pause * 2).min(BACKSTOP);
                now + jittered(pause)
            }
        }
    }
}

/// Returns when a waiter with this deadline has its last attempt, if that is after `since`.
pub(super) fn last_attempt_at(deadline: Option<Moment>, since: Moment) -> Option<Moment> {
    let at = deadline?.before(LAST_ATTEMPT);
    (at > since).then_some(at)
}

/// Returns when a process in a queue of `queued` attempts after a hint that all of them receive. One attempt
/// serves the first in the queue, so most others can wait for their turn.
pub(super) fn spread(queued: u32) -> Duration {
    if queued <= AT_ONCE {
        return Duration::ZERO;
    }
    up_to(Duration::from_millis(queued.into()))
        .saturating_sub(Duration::from_millis(AT_ONCE.into()))
}
