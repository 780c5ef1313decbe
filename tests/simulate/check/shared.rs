//! S1 to S9: what shared leases promise beside those of any lease.

use tower_lock::backend::{LeaseId, Mode};
use tower_lock::{ErrorKind, Held};

use super::SLACK;
use super::keys::BACKSTOP;
use crate::environment::{Environment, number};
use crate::plan::Command;
use crate::seen::{Joins, Seen, Waiter};
use crate::store::{Begun, How, Item, Record};
use crate::time::{MS, RESPONSE_TIMEOUT, Time};
use crate::violation::Invariant;

/// After this time without a reply, a join makes a renewal due. Until then the lease may begin again for other owners.
const ASK_AFTER: Time = (50 + 50) * MS;

/// How long owners join without a reply to that renewal. A reply that is late can be from before the writer waited, and
/// begins this time again.
const WITHOUT_REPLY: Time = RESPONSE_TIMEOUT + 500 * MS;

/// How long a renewal takes to be sent.
const PROMPT: Time = 100 * MS;

impl Environment {
    /// S4, and I6 for readers.
    pub(super) fn check_shared(&self, seen: &mut Seen, now: Time) {
        for key in 0..self.plan.keys {
            let store = self.store.lock().unwrap();
            if let Some(late) = store.outlives(key, now).filter(|late| late.abs() > 2 * MS) {
                self.violate(Invariant::Stored, || {
                    format!("k{key} is held for {late} µs after its last lease")
                });
            }
            let shares = (store.mode(key, now)).is_none_or(|mode| mode == Mode::Shared)
                && (store.queued(key, now).iter()).all(|place| place.mode == Mode::Shared)
                && store.outside(key).is_empty();
            drop(store);
            self.check_readers(seen, key, shares, now);
        }
    }

    /// I6: a key that only shared leases hold is granted to a reader, unless an exclusive lease or waiter is before it.
    fn check_readers(&self, seen: &mut Seen, key: usize, shares: bool, now: Time) {
        let limit = BACKSTOP + 2 * self.round_trip() + 150 * MS;
        // Otherwise a lease may expire before its grant arrives.
        let shares = shares && self.shortest_lease() >= 6 * self.round_trip();
        let readers = |it: &&Waiter| it.keys == [key] && it.mode(key) == Mode::Shared;
        let mut unblocked = std::mem::take(&mut seen.unblocked);
        for waiter in seen.waiters.iter().filter(readers) {
            let (id, manager) = (waiter.id, waiter.manager);
            let running = self.running_since(seen, manager, waiter.runtime);
            let all_running = self.all_running_since(seen, manager);
            let writes = (seen.waiters.iter()).any(|it| {
                it.manager == manager && it.keys.contains(&key) && it.mode(key) != Mode::Shared
            });
            // What is lost in the store may be held here.
            let held = (seen.guards.iter()).any(|it| {
                it.manager == manager
                    && it.mode_of(key) != Some(Mode::Shared)
                    && (it.held.is_held() || it.keys.len() > 1)
            });
            let (true, false, false, Some(running), Some(all_running), Some(attentive)) = (
                shares,
                writes || waiter.single_try || seen.closing[manager],
                held,
                running,
                all_running,
                waiter.attentive,
            ) else {
                unblocked.remove(&id);
                continue;
            };
            let since = *unblocked.entry(id).or_insert(now);
            let since = since.max(running).max(all_running).max(attentive);
            if now > since.max(seen.troubled[manager]) + limit {
                let since = since / MS;
                self.violate(Invariant::Progress, || {
                    format!("w{id} waits, and k{key} may be shared since {since} ms")
                });
            }
        }
        let waits = |id: &u64| seen.waiters.iter().any(|waiter| waiter.id == *id);
        unblocked.retain(|id, _| waits(id));
        seen.unblocked = unblocked;
    }

    /// S5: after a command for one key, with the leases before and after it, and the rest of each.
    pub fn check_renewal(
        &self,
        command: Command,
        item: &Item,
        before: &[(LeaseId, Time)],
        after: &[(LeaseId, Time)],
    ) {
        let others = |leases: &[(LeaseId, Time)]| {
            let others = leases
                .iter()
                .filter(|(lease, _)| item.lease != Some(*lease));
            others.copied().collect::<Vec<_>>()
        };
        if command == Command::Renew && others(before) != others(after) {
            let key = item.key;
            self.violate(Invariant::Stored, || {
                format!("a renewal changes other leases of k{key}: {before:?}, {after:?}")
            });
        }
    }

    /// S7: when a lease begins to hold a key. A shared one does not pass exclusive ones that wait, except those that
    /// are not served at a free key: no message reaches them, or they sleep.
    pub fn check_begun(&self, begun: Begun, now: Time) {
        let Begun { key, entered, .. } = begun;
        let store = self.store.lock().unwrap();
        let places = store.places(key, now).into_iter();
        drop(store);
        let all = matches!(begun.how, How::Outside | How::Beside);
        let places = places.filter(|(_, is_served)| all || *is_served);
        let places = places.map(|(place, _)| place);
        let is_before = |at: Time| entered.is_none_or(|entered| at < entered);
        let mut writers =
            places.filter(|place| place.mode != Mode::Shared && is_before(place.entered));
        if begun.mode == Mode::Shared
            && let Some(writer) = writers.next()
        {
            self.violate(Invariant::Joined, || {
                let (lease, manager) = (number(writer.lease), begun.manager);
                format!("m{manager:?} shares k{key}, and lease {lease} waits")
            });
        }
    }

    /// S7: an owner joins a lease that others share. While an exclusive lease waits in the store, the first join after
    /// 50 ms asks for it, and none follows the reply.
    pub fn check_join(
        &self,
        seen: &mut Seen,
        waiter: &Waiter,
        (key, token): (usize, i64),
        lease: LeaseId,
        now: Time,
    ) {
        let mut groups = seen.groups.keys();
        let joins = groups.any(|it| (it.0, it.1) == (key, token));
        let manager = waiter.manager;
        let running = self.all_running_since(seen, manager);
        let is_prompt = waiter.attentive == Some(waiter.started)
            && running.is_some_and(|since| since <= waiter.started);
        if !joins || !is_prompt || waiter.owner.is_some() || waiter.keys.len() > 1 {
            return;
        }
        let id = waiter.id;
        // A join before the reply may be seen at its time.
        let closed = seen.joins.get(&lease).and_then(|it| it.closed);
        if closed.is_some_and(|at| at < now) {
            self.violate(Invariant::Joined, || {
                let lease = number(lease);
                format!("w{id} joins lease {lease} of k{key}, after a reply that a writer waits")
            });
        }
        let places = self.store.lock().unwrap().queued(key, now).into_iter();
        let writers = places.filter(|it| it.mode != Mode::Shared && it.manager != manager);
        let since = writers.map(|it| it.entered).min();
        // A downgrade is also a reply.
        let decided = (self.store.lock().unwrap().records.get(&lease)).map(|it| it.decided);
        let since = since.map(|since| since.max(decided.unwrap_or(since)));
        let Joins { asked, .. } = seen.joins.entry(lease).or_default();
        let Some(since) = since else {
            *asked = None;
            return;
        };
        if now < since + ASK_AFTER {
            return;
        }
        let (of, first) = *asked.get_or_insert((since, now));
        if of != since {
            *asked = Some((since, now));
            return;
        }
        let mut fellows = seen.guards.iter().filter(|it| it.leases.contains(&lease));
        let renewed = fellows.all(|it| it.lease.is_none());
        let calm = seen.troubled[manager] <= since && running.is_some_and(|at| at <= since);
        let limit = match calm && renewed {
            true => PROMPT + 2 * self.round_trip(),
            false => WITHOUT_REPLY,
        };
        if now > first + limit + SLACK {
            self.violate(Invariant::Joined, || {
                let (lease, since) = (number(lease), since / MS);
                format!("w{id} joins lease {lease} of k{key}, and a writer waits since {since} ms")
            });
        }
    }

    /// A lease has one mode, and only exclusive ones are kept.
    pub(super) fn check_mode(&self, command: Command, item: &Item, record: Option<&Record>) {
        let Some(record) = record else { return };
        let fits = match command {
            Command::Acquire | Command::Contend | Command::Renew => record.mode == item.mode,
            Command::Pass | Command::Downgrade => record.mode == Mode::Exclusive,
            _ => true,
        };
        if !fits {
            let (key, mode) = (item.key, record.mode);
            self.violate(Invariant::Mode, || {
                format!("{command:?} of a lease of k{key}, whose mode is {mode:?}")
            });
        }
    }

    /// A guard has the modes that were asked for. Its owner may hold a key exclusively that it asks for shared. During a
    /// downgrade, such a guard is shared.
    pub fn check_modes(&self, waiter: &Waiter, held: &Held, modes: &[Mode]) {
        let id = waiter.id;
        let may_be = |(key, mode): (&usize, &Mode)| match waiter.mode(*key) {
            Mode::Exclusive => *mode == Mode::Exclusive,
            asked => *mode == asked || *mode == Mode::Exclusive && waiter.owner.is_some(),
        };
        let all = match modes.contains(&Mode::Exclusive) {
            true => Mode::Exclusive,
            false => modes.first().copied().unwrap_or(Mode::Exclusive),
        };
        let mode = held.mode();
        let asks_shared = |key: &usize| waiter.mode(*key) == Mode::Shared;
        let all_shared =
            waiter.owner.is_some() && mode == Mode::Shared && waiter.keys.iter().all(asks_shared);
        if !waiter.keys.iter().zip(modes).all(may_be) || mode != all && !all_shared {
            self.violate(Invariant::Mode, || {
                format!("w{id} receives a guard of mode {mode:?} with leases of {modes:?}")
            });
        }
    }

    /// S8: an upgrade, and only an upgrade, is rejected as one.
    pub fn check_refusal(&self, waiter: &Waiter, kind: ErrorKind) {
        let seen = self.seen.lock().unwrap();
        self.check_conflict(&seen, waiter, kind);
        let id = waiter.id;
        let is_written = |key: &&usize| waiter.mode(**key) == Mode::Exclusive;
        let mut written = waiter.keys.iter().filter(is_written);
        let may_be = waiter
            .owner
            .is_some_and(|owner| written.any(|key| seen.readers.contains(&(owner, *key))));
        let own = (seen.guards.iter()).find(|guard| {
            waiter.owner == Some(guard.owner)
                && waiter.keys.len() == 1
                && waiter.mode(waiter.keys[0]) == Mode::Exclusive
                && (guard.mode_of(waiter.keys[0])).is_some_and(|it| it != Mode::Exclusive)
                && guard.id < waiter.id
                && guard.held.is_held()
        });
        if kind == ErrorKind::Upgrade && !may_be {
            self.violate(Invariant::Reentry, || {
                format!("w{id} is rejected as an upgrade, and its owner holds none of its keys beside others")
            });
        }
        let has_home = self.worked_since(&seen, waiter.manager).is_some();
        if let Some(guard) = own
            && kind != ErrorKind::Upgrade
            && (has_home || kind != ErrorKind::Unavailable)
        {
            let guard = guard.id;
            self.violate(Invariant::Reentry, || {
                format!("w{id} fails with {kind:?}, and its owner holds the key beside others as g{guard}")
            });
        }
    }
}
