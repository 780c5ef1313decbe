//! Q2 and Q8: the order of the processes at the store, and the length of their turns.

use tower_lock::backend::{LeaseId, Mode};

use crate::environment::{Environment, number};
use crate::plan::Command;
use crate::seen::{Seen, Waiter, Waits};
use crate::store::{Begun, How, Item};
use crate::time::{MS, Time};
use crate::violation::Invariant;

/// A process hands a lease off for so long before the store decides again.
const TURN: Time = 50 * MS;

/// How long after a transfer the next acquire of a process enters the queue.
const YIELDING: Time = 20 * MS;

impl Environment {
    /// Q2, Q8: called when a turn begins, by a grant to a process or for the clients outside the queue.
    ///
    /// While a place in the queue waits, each other process has at most one turn from its begin to its end: its own
    /// place may have been earlier, and the next one is later. So no turn of a process may begin while a place waits
    /// that has been in the queue for all of its last turn. The clients outside are one such place while one of them
    /// listens, and have turns as a process has.
    ///
    /// - A place that a release passes over, because no message reaches its process or the process sleeps between two
    ///   attempts, counts from the next turn at whose begin a release would serve it.
    /// - A turn that its process leaves or lets expire without a guard is none: it was transferred to an earlier place of
    ///   the process.
    /// - A key that became free outside of the queue, such as by its expiry, can be acquired by any first attempt. Such
    ///   a turn does not count. Clients outside can do the same, so that the next turn of the queue does not count
    ///   against them. What shares the key with such a turn belongs to it.
    pub fn check_turn(&self, begun: Begun, now: Time) {
        let Begun {
            key,
            manager,
            transferred,
            how,
            ..
        } = begun;
        let store = self.store.lock().unwrap();
        let places = store.places(key, now).into_iter();
        let served =
            places.filter(|(place, is_served)| *is_served && Some(place.manager) != manager);
        let mut waiting: Vec<Waits> = served.map(|(it, _)| Waits::Place(it.lease)).collect();
        let outside_waits = manager.is_some() && !store.outside(key).is_empty();
        waiting.extend(outside_waits.then_some(Waits::Outside));
        drop(store);
        let mut seen = self.seen.lock().unwrap();
        let passed_over = seen.passed_over.entry(key).or_default();
        passed_over.retain(|waits, _| waiting.contains(waits));
        // A process has a place for each permit.
        if begun.mode == Mode::Permit {
            return;
        }
        let counts = |waits: &Waits| match how {
            How::Outside => false,
            How::Contended | How::Beside => *waits != Waits::Outside,
            How::Transferred => true,
        };
        for waits in waiting.into_iter().filter(counts) {
            let turns = passed_over.entry(waits).or_default();
            let earlier = turns.insert(manager, transferred);
            if earlier.is_some_and(|lease| lease.is_none_or(|it| self.had_guard(it))) {
                self.violate(Invariant::Order, || {
                    let others = manager.map(|it| format!("m{it}"));
                    let others = others.unwrap_or("the clients outside".to_owned());
                    let waits = match waits {
                        Waits::Place(lease) => format!("lease {}", number(lease)),
                        Waits::Outside => "a client outside".to_owned(),
                    };
                    format!("{waits} waits for k{key} for a turn of {others}, and the next turn is theirs")
                });
            }
        }
    }

    /// Returns `true` if a guard had the lease.
    fn had_guard(&self, lease: LeaseId) -> bool {
        let store = self.store.lock().unwrap();
        store.records.get(&lease).is_some_and(|it| it.granted)
    }

    /// A process leaves a lease or a place.
    pub fn leave_turn(&self, manager: usize, item: &Item) {
        let store = self.store.lock().unwrap();
        let now = self.now();
        let is_left = item.lease.is_some_and(|lease| {
            let is_granted = store.records.get(&lease).is_some_and(|it| it.granted);
            store.holds(item.key, lease, now) && !is_granted
        });
        drop(store);
        if is_left {
            let mut seen = self.seen.lock().unwrap();
            let passed_over = seen.passed_over.entry(item.key).or_default();
            for turns in passed_over.values_mut() {
                turns.remove(&Some(manager));
            }
        }
    }

    /// After a release that was transferred or left to clients outside, the next attempt is a `contend`, unless it
    /// is a single one: an `acquire` could take the turn of others.
    pub(super) fn check_yielded(
        &self,
        seen: &mut Seen,
        manager: usize,
        command: Command,
        key: usize,
        now: Time,
    ) {
        let yielded = match command {
            // A single attempt takes no turn if it is rejected.
            Command::Acquire => seen.yielded.get(&(manager, key)).copied(),
            _ => seen.yielded.remove(&(manager, key)),
        };
        let is_single = (seen.waiters.iter())
            .any(|it| it.manager == manager && it.keys.contains(&key) && it.single_try);
        if command == Command::Acquire
            && yielded.is_some_and(|at| now < at + YIELDING)
            && !is_single
        {
            self.violate(Invariant::Order, || {
                format!(
                    "m{manager} acquires k{key} outside the queue, and it is the turn of others"
                )
            });
        }
    }

    /// Q2: a hand-off belongs to the turn of its process. The turn serves the waiters at its begin, and later ones for
    /// 2 ms. It ends 50 ms after the store has granted or kept the lease, or after the time for which it is kept.
    ///
    /// - A process knows that others wait if it was in the queue.
    /// - A waiter that ends without a guard may have had a token. One whose owner has other acquires may enter the hold
    ///   of one of them, which is not polled.
    /// - The time of a hand-off is known if its waiter is polled at once, and the begin of a turn if its process runs
    ///   and receives its replies.
    pub fn check_hand_off(
        &self,
        seen: &mut Seen,
        waiter: &Waiter,
        (lease, before): (LeaseId, u64),
        now: Time,
    ) {
        let (manager, key) = (waiter.manager, waiter.keys[0]);
        let decided = self.store.lock().unwrap().records[&lease].decided;
        seen.handed_off(lease, before);
        let turn = seen.hand_offs[&lease].turn;
        let running = self.all_running_since(seen, manager);
        let is_calm = running.is_some_and(|since| since <= decided)
            && seen.troubled[manager] <= decided
            && waiter.attentive == Some(waiter.started);
        if before == 0 || !is_calm {
            return;
        }
        let longest = TURN.max(self.keep(manager));
        if now > decided + longest + self.round_trip() {
            let decided = decided / MS;
            self.violate(Invariant::Turn, || {
                format!("k{key} is handed off in m{manager}, whose turn began at {decided} ms")
            });
        }
        let gone = seen.gone.get(&(manager, key)).into_iter().flatten();
        let gone = gone.filter(|at| **at >= decided).count() as u64;
        if let Some(turn) = turn.filter(|turn| now >= turn.until)
            && before >= turn.tokens + gone
        {
            self.violate(Invariant::Turn, || {
                let tokens = turn.tokens + gone;
                format!("m{manager} hands k{key} off {before} times, and others wait for {tokens}")
            });
        }
    }
}
