//! A guard whose holder records its observations.

use std::ops::{Deref, Range};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower_lock::backend::Mode;
use tower_lock::{Error, Held, LockGuard};

use super::hold::drift;
use super::{Hold, Referee};

/// The interval at which a holder checks its lock.
const LOOK: Duration = Duration::from_millis(20);
/// An end that was read during a stall of the process is not evidence.
const AT_ONCE: Duration = Duration::from_millis(1);

pub(crate) struct CheckedGuard {
    referee: Arc<Referee>,
    holds: Range<usize>,
    /// `None` if another process releases the lock.
    guard: Option<LockGuard>,
    held: Held,
    control: JoinHandle<()>,
}

impl CheckedGuard {
    pub(super) fn new(
        referee: Arc<Referee>,
        holds: Range<usize>,
        guard: Option<LockGuard>,
        held: Held,
    ) -> Self {
        let control = tokio::spawn(control(Arc::clone(&referee), holds.clone(), held.clone()));
        Self {
            referee,
            holds,
            guard,
            held,
            control,
        }
    }

    /// Records the limit under which the permit was granted.
    pub(crate) fn below(self, limit: u32) -> Self {
        self.each(|hold| hold.limit = limit);
        self
    }

    fn each(&self, mut note: impl FnMut(&mut Hold)) {
        let mut log = self.referee.log();
        log.holds[self.holds.clone()].iter_mut().for_each(&mut note);
    }

    /// Returns `true` if the guard reports that the lock is held.
    pub(crate) fn look(&self) -> bool {
        let before = Instant::now();
        let (is_held, left) = (self.held.is_held(), self.held.remaining());
        let after = Instant::now();
        let mut contradicted = false;
        let mut too_long = false;
        self.each(|hold| {
            if is_held {
                // The answer was true at some moment between `before` and `after`, and at `before` for
                // certain.
                contradicted |= hold.denied.is_some() || hold.reported.is_some();
                hold.confirmed = before;
                // The lease of readers lasts as long as the longest of them requires.
                let longest = match hold.mode {
                    Mode::Shared => hold.lease + drift(hold.lease),
                    _ => hold.lease.saturating_sub(drift(hold.lease)),
                };
                too_long |= left > longest;
                let end = before + left;
                let is_news = end > hold.deadline() + AT_ONCE;
                if !left.is_zero() && after - before < AT_ONCE && is_news {
                    hold.deadlines.push(end);
                }
            } else {
                hold.denied.get_or_insert(after);
            }
        });
        let key = self.held.key();
        self.referee
            .expect(!too_long, "I2", || format!("{key:?}: {left:?} are left"));
        self.referee
            .expect(!contradicted, "I3", || format!("{key:?}: held again"));
        is_held
    }

    /// Holds the lock for a time, or until it is lost. Returns `true` if it was held throughout.
    pub(crate) async fn keep(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut lost = pin!(self.held.lost());
        loop {
            let is_held = self.look();
            let now = Instant::now();
            if !is_held {
                // The guard must also notify its holder.
                if timeout(Duration::from_secs(1), lost).await.is_err() {
                    let key = self.held.key();
                    self.referee
                        .violation("I3", format!("{key:?}: lost() is silent"));
                }
                self.record_loss();
                return false;
            }
            if now >= end {
                return true;
            }
            tokio::select! {
                biased;
                () = &mut lost => {
                    self.record_loss();
                    self.look();
                    return false;
                }
                () = sleep_until(end.min(now + LOOK)) => {}
            }
        }
    }

    fn record_loss(&self) {
        let now = Instant::now();
        self.each(|hold| {
            hold.reported.get_or_insert(now);
        });
    }

    /// Records the end of the hold before the release is sent. Returns `true` if the lock was lost by then.
    fn ends(&self) -> bool {
        self.look();
        let now = Instant::now();
        let mut was_lost = false;
        self.each(|hold| {
            hold.released.get_or_insert(now);
            was_lost |= hold.is_lost();
        });
        was_lost
    }

    /// Another guard of the same owner represents the lock from now on.
    pub(crate) fn pass_to(&mut self, guard: LockGuard) {
        self.held = guard.held();
        drop(self.guard.replace(guard));
    }

    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let was_lost = self.ends();
        let key = self.held.key().clone();
        let Some(guard) = self.guard.take() else {
            return Ok(());
        };
        let outcome = guard.release().await;
        if let Err(error) = &outcome {
            self.referee.shows_error(error);
        }
        self.referee
            .expect(!(was_lost && outcome.is_ok()), "I3", || {
                format!("{key:?}: lost, and released without an error")
            });
        outcome
    }
}

/// Records when a bare timer completes that is set to the end of the hold. A notification that comes no
/// later is not late, because only the runtime can delay this timer.
///
/// The timer is set again shortly before its end, so that the runtime reaches it after all earlier timers
/// of the same moment. The task then yields once, because the task that was woken last runs first.
async fn control(referee: Arc<Referee>, holds: Range<usize>, held: Held) {
    const SHORTLY: Duration = Duration::from_millis(3);
    loop {
        let left = held.remaining();
        if left.is_zero() {
            break;
        }
        sleep(left.checked_sub(SHORTLY).unwrap_or(left)).await;
    }
    yield_now().await;
    let now = Instant::now();
    for hold in &mut referee.log().holds[holds] {
        hold.timer = Some(now);
    }
}

impl Deref for CheckedGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for CheckedGuard {
    fn drop(&mut self) {
        // The guard is dropped after this.
        if !self.ends() {
            self.control.abort();
        }
    }
}
