//! The referee: records the observations of holders, and judges them without the crate.

mod checked_guard;
mod hold;
pub(crate) mod made_up;
pub(crate) mod silence;
mod stall_detector;
mod verdict;
pub(crate) mod wire;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tower_lock::backend::Mode;
use tower_lock::{Error, FencingToken, Held, LockGuard};

use crate::support::errors::chain;

pub(crate) use checked_guard::CheckedGuard;
pub(crate) use hold::{Hold, Refusal, drift};
pub(crate) use stall_detector::StallDetector;
pub(crate) use verdict::{BACKSTOP, Verdict};

/// A broken invariant.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    /// `I1` to `I16`, or the name of a row's own requirement.
    pub(crate) of: &'static str,
    pub(crate) what: String,
}

/// A time in which the store was unusable for one process or for all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outage {
    pub(crate) begin: Instant,
    pub(crate) usable: Instant,
    /// The affected process, or `None` for all.
    pub(crate) process: Option<usize>,
}

impl Outage {
    pub(crate) fn concerns(&self, process: usize) -> bool {
        self.process.is_none_or(|it| it == process)
    }
}

pub(crate) struct Referee {
    /// The start by both clocks: the log of the server has the second one.
    pub(crate) start: (Instant, SystemTime),
    pub(crate) stall_detector: StallDetector,
    log: Mutex<Log>,
}

#[derive(Default)]
pub(crate) struct Log {
    pub(crate) holds: Vec<Hold>,
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) outages: Vec<Outage>,
    /// The time until which two servers may have accepted writes as the primary.
    pub(crate) divided_until: Option<Instant>,
    pub(crate) violations: Vec<Violation>,
    /// The milliseconds by which the clock of the server was ahead of this one at times.
    pub(crate) clock_steps: Vec<i64>,
    /// The number of acquires that have begun, cancelled ones included.
    pub(crate) asked: Vec<Instant>,
    /// The texts that must contain no key, owner or password.
    pub(crate) shown: BTreeSet<String>,
}

impl Referee {
    /// Starts the stall detector in the current runtime.
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self {
            start: (Instant::now(), SystemTime::now()),
            stall_detector: StallDetector::start(),
            log: Mutex::default(),
        })
    }

    /// Creates a referee for made-up records, which contain no delays.
    fn without_a_runtime() -> Self {
        Self {
            start: (Instant::now(), SystemTime::now()),
            stall_detector: StallDetector::default(),
            log: Mutex::default(),
        }
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the milliseconds since the start, for reports.
    pub(crate) fn ms(&self, at: Instant) -> u128 {
        at.saturating_duration_since(self.start.0).as_millis()
    }

    pub(crate) fn violation(&self, of: &'static str, what: impl Into<String>) {
        let what = what.into();
        self.log().violations.push(Violation { of, what });
    }

    /// Records a violation if the condition is false.
    pub(crate) fn expect(&self, is_so: bool, of: &'static str, what: impl FnOnce() -> String) {
        if !is_so {
            self.violation(of, what());
        }
    }

    /// Records that all servers agree from now on.
    pub(crate) fn is_whole(&self) {
        self.log().divided_until = Some(Instant::now());
    }

    pub(crate) fn outage(&self, outage: Outage) {
        self.log().outages.push(outage);
    }

    pub(crate) fn asked_since(&self, moment: Instant) -> usize {
        let log = self.log();
        log.asked.iter().filter(|asked| **asked >= moment).count()
    }

    pub(crate) fn asks(&self) -> Instant {
        let now = Instant::now();
        self.log().asked.push(now);
        now
    }

    /// Records that a process holds the lock now.
    pub(crate) fn granted(
        self: &Arc<Self>,
        guard: LockGuard,
        process: usize,
        asked: Instant,
        terms: (Duration, bool),
    ) -> CheckedGuard {
        let held = guard.held();
        self.noted(held, Some(guard), process, asked, terms)
    }

    /// Records a holder that observes a lock which another process releases.
    pub(crate) fn shown(
        self: &Arc<Self>,
        held: Held,
        process: usize,
        asked: Instant,
        terms: (Duration, bool),
    ) -> CheckedGuard {
        self.noted(held, None, process, asked, terms)
    }

    fn noted(
        self: &Arc<Self>,
        held: Held,
        guard: Option<LockGuard>,
        process: usize,
        asked: Instant,
        (lease, renewed): (Duration, bool),
    ) -> CheckedGuard {
        let mut log = self.log();
        let first = log.holds.len();
        for key in held.keys() {
            let token = held.fencing_token_for(key);
            let token = token.map_or(0, FencingToken::get);
            let hold = Hold::begins(key.as_str(), process, token, (lease, renewed));
            let is_one_of_several = held.keys().len() > 1;
            log.holds.push(Hold {
                mode: held.mode(),
                asked,
                is_one_of_several,
                ..hold
            });
        }
        let holds = first..log.holds.len();
        drop(log);
        let checked = CheckedGuard::new(Arc::clone(self), holds, guard, held);
        checked.look();
        checked
    }

    /// Records that another process reports a lock.
    pub(crate) fn claimed(&self, key: &str, process: usize, token: i64, lease: Duration) {
        self.claimed_as(Mode::Exclusive, key, process, token, lease);
    }

    pub(crate) fn claimed_as(
        &self,
        mode: Mode,
        key: &str,
        process: usize,
        token: i64,
        lease: Duration,
    ) {
        let hold = Hold::begins(key, process, token, (lease, true));
        self.log().holds.push(Hold { mode, ..hold });
    }

    /// Records that the process was killed or stopped. It held its locks until now.
    pub(crate) fn gone(&self, process: usize) {
        let now = Instant::now();
        let mut log = self.log();
        let claimed = log.holds.iter_mut().filter(|hold| hold.process == process);
        for hold in claimed {
            (hold.confirmed, hold.released) = (now, Some(now));
        }
    }

    pub(crate) fn refused(
        &self,
        key: &str,
        process: usize,
        (wait, asked): (Option<Duration>, Instant),
        error: &Error,
    ) {
        self.shows_error(error);
        let refusal = Refusal {
            key: key.to_owned(),
            process,
            wait,
            asked,
            answered: Instant::now(),
            kind: error.kind(),
            why: chain(error),
        };
        self.log().refusals.push(refusal);
    }

    /// Records a text that was shown to a caller, and must contain no key, owner or password.
    pub(crate) fn shows(&self, text: impl Into<String>) {
        self.log().shown.insert(text.into());
    }

    pub(crate) fn shows_error(&self, error: &Error) {
        self.shows(chain(error));
        self.shows(format!("{error:?}"));
    }

    /// Returns the first grant of the key after a moment.
    pub(crate) fn next_grant(&self, key: &str, after: Instant) -> Option<Instant> {
        let log = self.log();
        let of_key = log.holds.iter().filter(|hold| hold.key == key);
        of_key
            .map(|hold| hold.granted)
            .filter(|at| *at > after)
            .min()
    }
}
