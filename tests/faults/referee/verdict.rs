//! The judgment of the log of one run.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tower_lock::ErrorKind;
use tower_lock::backend::Mode;

use super::hold::drift;
use super::{Hold, Log, Outage, Referee, Refusal, Violation};
use crate::rows::Row;
use crate::store::Topology;
use crate::support::engine::{MS, SECOND};

/// A waiter attempts at least once a second with a jitter of a tenth. A round trip follows.
pub(crate) const BACKSTOP: Duration = Duration::from_millis(1_100 + 100);
/// The time from a release to the grant of a notified waiter, on a busy machine.
const HEARD_WITHIN: Duration = Duration::from_millis(100);
/// A stall of the machine that excuses a late reply: a third of the response timeout.
const STALL: Duration = Duration::from_millis(150);
/// A third of the node timeout of a quorum, likewise.
const STALL_OF_NODE: Duration = Duration::from_millis(30);
/// The latest report of a loss, and the most by which a wait may be exceeded.
const REPORTED_WITHIN: Duration = Duration::from_millis(10);
const OVERRUN: Duration = Duration::from_millis(50);

/// The figures and the violations of one run.
#[derive(Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<Violation>,
    pub(crate) longest_overlap: Duration,
    pub(crate) recovery: Option<Duration>,
    /// The latest completion of `lost()`: by the clock, and less the delays of the runtime.
    pub(crate) reported_late: (Duration, Duration),
    pub(crate) orphans: usize,
    pub(crate) evidence: String,
}

impl Verdict {
    fn expect(&mut self, is_so: bool, of: &'static str, what: impl FnOnce() -> String) {
        if !is_so {
            let what = what();
            self.violations.push(Violation { of, what });
        }
    }

    /// Judges the log of a run of this row, in which the `contended` keys were wanted throughout, and the `mixed`
    /// ones as well: several leases hold these at times.
    pub(crate) fn of(row: &Row, referee: &Referee, contended: &[String], mixed: &[String]) -> Self {
        let log = referee.log();
        let mut verdict = Self {
            violations: log.violations.clone(),
            ..Self::default()
        };
        let mut by_key: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for hold in &log.holds {
            by_key.entry(&hold.key).or_default().push(hold);
        }
        for holds in by_key.values_mut() {
            holds.sort_by_key(|hold| hold.granted);
            verdict.overlaps(row, referee, &log, holds);
            verdict.tokens(row, referee, &log, holds);
            verdict.permits(row, referee, &log, holds);
        }
        verdict.losses(referee, &log);
        let (mut handed, mut changes) = (Vec::new(), 0);
        let of_key = |key: &String| by_key.get(key.as_str()).map_or(&[][..], |it| it);
        for key in contended {
            let (heard, of) = verdict.gaps(row, referee, &log, of_key(key));
            handed.extend(heard);
            changes += of;
        }
        for key in contended.iter().chain(mixed) {
            verdict.recoveries(row, referee, &log, key, of_key(key));
        }
        if row.hears {
            verdict.messages(handed, changes);
        }
        for refusal in &log.refusals {
            verdict.refusal(row, referee, &log.outages, refusal);
        }
        verdict
    }

    /// I1. The hold with the lower token is the older one. Shared holds may overlap, and so may permits.
    fn overlaps(&mut self, row: &Row, referee: &Referee, log: &Log, holds: &[&Hold]) {
        let mut holds = holds.to_vec();
        holds.sort_by_key(|hold| hold.token);
        for (index, old) in holds.iter().enumerate() {
            for new in &holds[index + 1..] {
                if old.shares_with(new) {
                    continue;
                }
                let from = old.granted.max(new.granted);
                let until = old.end().min(new.end());
                let overlap = until.saturating_duration_since(from);
                if overlap.is_zero() {
                    continue;
                }
                self.longest_overlap = self.longest_overlap.max(overlap);
                let allowed = if may_be_forgotten(row, log, old) {
                    // Reading the clock takes a moment.
                    old.deadline_as_of(new.granted) + MS
                } else {
                    from
                };
                self.expect(until <= allowed, "I1", || {
                    format!(
                        "{}: {overlap:?} from {} ms on, of process {} (granted {} ms, deadline {} ms) and process {}",
                        old.key,
                        referee.ms(from),
                        old.process,
                        referee.ms(old.granted),
                        referee.ms(old.deadline()),
                        new.process,
                    )
                });
            }
        }
    }

    /// I4. The tokens of shared holds and of permits have no order among each other, so each hold is compared with the ones from the last exclusive
    /// one on.
    fn tokens(&mut self, row: &Row, referee: &Referee, log: &Log, holds: &[&Hold]) {
        let mut since = 0;
        for (index, new) in holds.iter().enumerate() {
            for old in holds[since..index].iter().filter(|it| !it.shares_with(new)) {
                self.token(row, referee, log, old, new);
            }
            if new.mode == Mode::Exclusive {
                since = index;
            }
        }
    }

    /// S2. When a permit is granted, fewer are held than its limit. A process may learn of a grant later than another one
    /// of a later grant, whose limit may be larger.
    fn permits(&mut self, row: &Row, referee: &Referee, log: &Log, holds: &[&Hold]) {
        let permits = holds.iter().filter(|hold| hold.mode == Mode::Permit);
        let permits: Vec<&&Hold> = permits.collect();
        for (index, new) in permits.iter().enumerate().filter(|(_, it)| it.limit > 0) {
            let mut held = vec![new];
            let old = permits[..index].iter();
            let old = old.filter(|it| it.end() > new.granted + MS);
            held.extend(old.filter(|it| !may_be_forgotten(row, log, it)));
            let certain = held[1..].iter().filter(|it| it.granted <= new.asked);
            let certain = 1 + u32::try_from(certain.count()).unwrap_or(u32::MAX);
            let count = u32::try_from(held.len()).unwrap_or(u32::MAX);
            let largest = held.iter().map(|it| it.limit).max().unwrap_or(0);
            self.expect(count <= largest && certain <= new.limit, "S2", || {
                let (at, limit) = (referee.ms(new.granted), new.limit);
                let processes: Vec<usize> = held.iter().map(|it| it.process).collect();
                format!(
                    "{}: {processes:?} hold permits below {limit} at {at} ms",
                    new.key
                )
            });
        }
    }

    fn token(&mut self, row: &Row, referee: &Referee, log: &Log, old: &Hold, new: &Hold) {
        // Two servers granted the key as primaries at the same time. The order of their replies is not
        // evidence, and a process hands off the lease that it has from one of them.
        let divided = may_be_forgotten(row, log, old) && old.end() > new.granted;
        let taken_after = match divided {
            true => new.asked.min(new.lease_from()),
            false => new.taken_after(),
        };
        // A process that has not noticed the loss of its lease still grants under it.
        let spans =
            |outage: &Outage| new.lease_from() < outage.usable && new.granted >= outage.begin;
        let is_stale = row.loses_data && log.outages.iter().any(spans);
        // Otherwise the second grant may precede the first one.
        let in_order = taken_after >= old.granted && !is_stale;
        self.expect(new.token > old.token || !in_order, "I4", || {
            let times = |hold: &Hold| {
                let times = [hold.asked, hold.granted, hold.end()].map(|at| referee.ms(at));
                format!("{} of process {} ({times:?} ms)", hold.token, hold.process)
            };
            format!("{}: token {} after {}", new.key, times(new), times(old))
        });
    }

    /// I3.
    fn losses(&mut self, referee: &Referee, log: &Log) {
        for hold in log.holds.iter().filter(|hold| hold.is_lost()) {
            let Some((late, net)) = hold.reported_late(&referee.stall_detector) else {
                continue;
            };
            self.reported_late.0 = self.reported_late.0.max(late);
            self.reported_late.1 = self.reported_late.1.max(net);
            self.expect(net <= REPORTED_WITHIN, "I3", || {
                format!(
                    "{}: reported {late:?} late, of which {net:?} its own",
                    hold.key
                )
            });
        }
    }

    /// I6 and I7, apart from outages: the time from the earliest moment at which the key was free to the
    /// grant of its waiter. Returns the times for waiters in another process than the last holder's, and
    /// the number of grants.
    fn gaps(
        &mut self,
        row: &Row,
        referee: &Referee,
        log: &Log,
        holds: &[&Hold],
    ) -> (Vec<Duration>, usize) {
        let (mut handed, mut grants) = (Vec::new(), 0);
        for pair in holds.windows(2) {
            let (old, new) = (pair[0], pair[1]);
            let after = |outage: &&Outage| {
                let troubled = outage.begin.checked_sub(SECOND).unwrap_or(outage.begin);
                old.end() < outage.usable + row.recovery && new.granted > troubled
            };
            // The recovery of the outage covers these.
            if log.outages.iter().any(|outage| after(&outage)) {
                continue;
            }
            grants += 1;
            let free = if old.is_lost() {
                old.deadline() + drift(old.lease)
            } else {
                old.end()
            };
            let since = free.max(new.asked);
            let waited = new.granted.saturating_duration_since(since);
            let net = waited.saturating_sub(referee.stall_detector.delay(since, new.granted));
            self.expect(net <= BACKSTOP, "I6", || {
                let at = referee.ms(new.granted);
                format!(
                    "{}: free for {waited:?} before its grant at {at} ms",
                    new.key
                )
            });
            if new.asked < free && old.process != new.process && !old.is_lost() {
                handed.push(net);
            }
        }
        (handed, grants)
    }

    /// I6, while releases are published: waiters in other processes are notified, so they receive the key
    /// at once, and more often than by chance.
    fn messages(&mut self, mut handed: Vec<Duration>, grants: usize) {
        handed.sort_unstable();
        let median = handed.get(handed.len() / 2).copied().unwrap_or_default();
        let heard = handed.len() < 10 || median <= HEARD_WITHIN;
        let is_shared = grants < 150 || handed.len() * 20 >= grants;
        self.expect(heard && is_shared, "I6", || {
            let handed = handed.len();
            format!("{handed} of {grants} grants to waiters in other processes, after {median:?}")
        });
    }

    fn recoveries(&mut self, row: &Row, referee: &Referee, log: &Log, key: &str, holds: &[&Hold]) {
        for outage in &log.outages {
            let next = holds.iter().map(|hold| hold.granted);
            let Some(next) = next.filter(|at| *at > outage.usable).min() else {
                self.expect(false, "recovery", || format!("{key}: never granted again"));
                continue;
            };
            let took = next - outage.usable;
            let net = took.saturating_sub(referee.stall_detector.delay(outage.usable, next));
            self.recovery = self.recovery.max(Some(took));
            self.expect(net <= row.recovery, "recovery", || {
                format!("{key}: {took:?} after {} ms", referee.ms(outage.usable))
            });
        }
    }

    /// I15. A failed acquire must also have used its wait and have an allowed reason.
    fn refusal(&mut self, row: &Row, referee: &Referee, outages: &[Outage], refusal: &Refusal) {
        let Refusal { key, kind, .. } = refusal;
        let at = referee.ms(refusal.answered);
        let waited = refusal.answered - refusal.asked;
        let usual = [
            ErrorKind::Busy,
            ErrorKind::PermitsExhausted,
            ErrorKind::Unavailable,
        ];
        self.expect(
            usual.contains(kind) || row.errors.contains(kind),
            "errors",
            || format!("{key}: {kind:?} at {at} ms"),
        );
        if *kind == ErrorKind::Unavailable {
            let concerned = |outage: &Outage| {
                let over = outage.usable + row.recovery;
                outage.concerns(refusal.process)
                    && refusal.answered >= outage.begin
                    && refusal.asked <= over
            };
            let stall = match row.topology {
                Topology::Quorum => STALL_OF_NODE,
                _ => STALL,
            };
            // No reply can be late in a shorter time. Such an acquire joined others, and received the error of their last
            // attempt.
            let attempted = match waited < stall {
                true => refusal.asked.checked_sub(BACKSTOP),
                false => None,
            };
            let from = attempted.unwrap_or(refusal.asked);
            let stalled = referee.stall_detector.delay(from, refusal.answered);
            let excused = stalled > stall || outages.iter().any(concerned);
            self.expect(excused, "errors", || {
                let why = &refusal.why;
                format!(
                    "{key}: without an outage, at {at} ms, after {waited:?} with a stall of {stalled:?}: {why}"
                )
            });
        }
        let Some(wait) = refusal.wait else { return };
        let late = waited.saturating_sub(wait);
        let due = refusal.asked + wait;
        let net = late.saturating_sub(referee.stall_detector.delay(due, refusal.answered));
        self.expect(net <= OVERRUN, "I15", || {
            format!("{key}: a wait of {wait:?} took {waited:?}, until {at} ms")
        });
        if usual.contains(kind) {
            self.expect(waited + MS >= wait, "I15", || {
                format!("{key}: timed out after {waited:?} of {wait:?}: {kind:?} at {at} ms")
            });
        }
    }
}

/// Returns `true` if the store may have lost this hold. Only a fault that destroys data excuses this, and
/// only for earlier grants.
fn may_be_forgotten(row: &Row, log: &Log, hold: &Hold) -> bool {
    let before = |moment: Instant| hold.taken_after() < moment;
    let destroyed = log.outages.iter().any(|outage| before(outage.usable));
    let divided = log.divided_until.is_some_and(before);
    row.loses_data && (destroyed || divided)
}
