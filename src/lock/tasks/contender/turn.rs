//! The turn of an acquire loop in the line of the waiters for permits.

use std::pin::pin;

use tokio::time::sleep_until;

use super::pause::last_attempt_at;
use super::{AcquireLoop, watch};
use crate::lock::engine::line::LONGEST_IN_LINE;

impl AcquireLoop {
    /// Waits for a turn to contend for a permit: at most for [`LONGEST_IN_LINE`], or until the last attempt of the
    /// waiter. The wait has no jitter, so loops that end it stay in order. Returns `false` if no waiter is left.
    pub(super) async fn take_turn(&mut self) -> bool {
        let mut turn = pin!(self.engine.home.line.of(&self.key).acquire_owned());
        let began = self.engine.now();
        let until = began + LONGEST_IN_LINE;
        let hints = (self.hints).get_or_insert_with(|| watch(&self.engine, &self.key, &self.task));
        loop {
            let pause = self.engine.event(&self.key, |lane, effects| {
                lane.pause(&self.own, self.engine.now(), effects)
            });
            let Some(pause) = pause else {
                return false;
            };
            if pause.at_once {
                return true;
            }
            let last_at = last_attempt_at(pause.deadline, began);
            let wake_at = last_at.map_or(until, |at| at.min(until));
            // All branches are cancel safe: the turn, hints and wakeups are kept for the next round.
            tokio::select! {
                biased;
                turn = &mut turn => {
                    self.turn = turn.ok();
                    return true;
                }
                // Loops with a turn attempt.
                _ = hints.next() => self.listens = true,
                () = sleep_until(wake_at.into()) => return true,
                () = self.wakeup.notified() => {}
            }
        }
    }
}
