//! One acquire that waits, which its future and its lane share.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::seats::Seat;
use crate::Error;
use crate::lock::lane::Attempt;
use crate::lock::lease::{Claim, Grant};
use crate::mutex::{Mutex, replace_waker};

/// An acquire that waits: for the reply to its own first attempt, or in the queue.
///
/// The mutex is held only to move what it contains: a waker is called, and an attempt polled or dropped, without it.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) claim: Claim,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    answer: Option<Answer>,
    /// Whether the acquire was dropped.
    is_closed: bool,
    /// The task of the acquire.
    waker: Option<Waker>,
    /// Until the answer.
    seat: Option<Seat>,
    /// The first attempt between two polls of the acquire that drives it.
    attempt: Option<Attempt>,
}

pub(crate) type Answer = Result<Given, Error>;

/// A hold for a waiter.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) grant: Arc<Grant>,
    /// Whether the waiter waited in the queue, and not only for the reply to its own first attempt.
    pub(crate) queued: bool,
}

impl Waiter {
    pub(crate) fn new(claim: Claim, seat: Seat) -> Arc<Self> {
        let state = Mutex::new(State {
            answer: None,
            is_closed: false,
            waker: None,
            seat: Some(seat),
            attempt: None,
        });
        Arc::new(Self { claim, state })
    }

    /// Puts an attempt here that the acquire drives.
    pub(crate) fn put_attempt(&self, attempt: Attempt) {
        self.state.lock().attempt = Some(attempt);
    }

    /// Takes the attempt out, to drive it elsewhere. Returns `None` if it is over, or is being polled.
    pub(crate) fn take_attempt(&self) -> Option<Attempt> {
        self.state.lock().attempt.take()
    }

    /// Takes the attempt out, for the acquire to poll it. Until [`poll`](Self::poll), an answer wakes no task. It would wake
    /// the one that polls, which would then run once more, and a runtime wakes a second thread for that.
    pub(crate) fn begin_poll(&self) -> Option<Attempt> {
        let mut state = self.state.lock();
        let (attempt, waker) = (state.attempt.take(), state.waker.take());
        drop(state);
        drop(waker);
        attempt
    }

    /// Completes with the answer. Puts an attempt back that has no reply.
    pub(crate) fn poll(&self, attempt: Option<Attempt>, cx: &Context<'_>) -> Poll<Answer> {
        let mut state = self.state.lock();
        if attempt.is_some() {
            state.attempt = attempt;
        }
        if let Some(answer) = state.answer.take() {
            return Poll::Ready(answer);
        }
        let replaced = replace_waker(&mut state.waker, cx.waker());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// Answers the acquire.
    ///
    /// # Errors
    ///
    /// Returns the answer if the acquire was dropped.
    pub(crate) fn answer(&self, answer: Answer) -> Result<(), Answer> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(answer);
        }
        state.answer = Some(answer);
        let (waker, seat) = (state.waker.take(), state.seat.take());
        drop(state);
        drop(seat);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Applies the drop of the acquire. Returns the answer that it has not received.
    pub(crate) fn close(&self) -> Option<Answer> {
        let mut state = self.state.lock();
        state.is_closed = true;
        let (answer, waker, seat) = (state.answer.take(), state.waker.take(), state.seat.take());
        drop(state);
        drop((waker, seat));
        answer
    }

    /// Replaces the seat by what `change` returns. Returns `false` if that is none.
    pub(crate) fn change_seat(&self, change: impl FnOnce(Seat) -> Option<Seat>) -> bool {
        let seat = self.state.lock().seat.take().and_then(change);
        let has_seat = seat.is_some();
        self.state.lock().seat = seat;
        has_seat
    }
}
