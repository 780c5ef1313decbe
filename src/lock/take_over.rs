//! The end of an inline attempt that its acquire no longer polls: a task finishes it.

use std::num::NonZeroU32;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::attempt::{InFlight, Inline, InlineAttempt, Queued};
use super::clock::Moment;
use super::contender::AcquireLoop;
use super::engine::Engine;
use super::lane::{TakeOver, Waiter};
use super::lease::LeaseNumber;
use super::yielded::Yielded;
use crate::task::RuntimeId;
use crate::{Error, ErrorKind, LockKey};

/// Finishes the attempt of an unpolled acquire, which becomes a waiter, by a task in `home`.
pub(super) fn take_over(
    engine: &Arc<Engine>,
    key: &LockKey,
    inline: &Arc<InlineAttempt>,
    home: RuntimeId,
) {
    // `None` means that the acquire is being polled.
    let Some(mut state) = inline.unpolled() else {
        return;
    };
    let Inline::InFlight(_) = &*state else {
        return;
    };
    let (reply, answer) = oneshot::channel();
    // It came before all that queue.
    let position = Some(NonZeroU32::MIN);
    let queued = Inline::TakenOver(Queued { answer, position });
    let Inline::InFlight(in_flight) = std::mem::replace(&mut *state, queued) else {
        unreachable!("BUG: the attempt was just found in flight");
    };
    let InFlight {
        attempt,
        claim,
        seat,
        waker,
    } = in_flight;
    // Its attempt may be granted, so the bound of the key does not apply.
    let Some(seat) = engine.add_permit_seat(seat, key, usize::MAX) else {
        unreachable!("BUG: memory ends before such a bound");
    };
    let waiter = Box::new(Waiter {
        claim,
        reply,
        _seat: seat,
    });
    let now = Moment::now();
    let take_over = TakeOver {
        in_flight: (LeaseNumber::of(attempt.lease), attempt.terms.ttl),
        waiter,
        home,
        now,
        due: engine.stuck_at(now),
    };
    // With the mutex of the attempt: the acquire must find its waiter in the queue once it is taken over.
    let taken = engine.event(key, |lane, effects| {
        let taken = lane.take_over_inline(inline, take_over, effects);
        // Under the mutex of the lane: `close` finds the waiter, unless the flag is already set.
        if engine.is_closing() {
            lane.dismiss(&Error::new(ErrorKind::ShuttingDown), effects);
        }
        // The effects are carried out without any mutex.
        drop(state);
        taken
    });
    waker.wake();
    match taken {
        Ok(wakeup) => AcquireLoop::new(engine, key, home, wakeup)
            .with_attempt(attempt)
            .spawn(Yielded::ToNobody),
        Err(_waiter) => unreachable!("BUG: a lane keeps its inline attempt until it ends"),
    }
}
