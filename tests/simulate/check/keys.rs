//! A free key is granted, and a key that no guard holds becomes free.

use tower_lock::backend::LeaseId;

use crate::environment::{Environment, number};
use crate::plan::Messages;
use crate::seen::{Seen, Waiter};
use crate::time::{MS, Time};
use crate::violation::Invariant;

/// How long a lost notification may delay a waiter: the time between two polls or refreshes, 1 s, with its jitter of a
/// tenth.
pub(super) const BACKSTOP: Time = 1_100 * MS;

/// A timer is late by up to 1 ms, and the attempt that it causes starts a task.
const TIMER: Time = 2 * MS;

/// How long a free key may wait for the next waiter, and a lease for its release, if nothing is lost or late,
/// beyond its round trips. Polls have jitter: with 0 ms, seed 9063 violates the bound.
const PROMPT: Time = 100 * MS;

/// How long a transfer to a runtime that is blocked stays unconfirmed.
const CONFIRM: Time = 1_500 * MS;

impl Environment {
    /// I6, I7, I13.
    pub(super) fn check_keys(&self, seen: &mut Seen, now: Time) {
        let slack = 2 * self.round_trip() + 150 * MS;
        // I6: the key became free after the last poll or refresh, whose reply is in flight, and the next attempt
        // follows that reply after the time between two. The guide page `order` states this bound.
        let limit = BACKSTOP + self.round_trip() + TIMER;
        let unowned_limit = slack + if self.plan.queue { CONFIRM } else { BACKSTOP };
        for key in 0..self.plan.keys {
            self.check_places(seen, key, now, slack);
            let holders = self.store.lock().unwrap().holders(key, now);
            seen.unowned.retain(|(of, lease), _| {
                *of != key || holders.iter().any(|(holder, _)| holder == lease)
            });
            if holders.is_empty() {
                // The store has lost a lease, and its guard does not know. A fixed lease is not renewed. A guard that
                // lost one of several keys holds the others until it is dropped.
                let holds = seen.guards.iter().any(|it| {
                    let holds_rest = it.keys.len() > 1 && now < it.valid_until;
                    it.keys.contains(&key) && (it.held.is_held() || holds_rest)
                });
                // A renewal shows the loss, unless the runtime that renews idles.
                let unpolled = (seen.waiters.iter())
                    .filter(|it| !it.renewed || self.worked_since(seen, it.manager).is_none())
                    .any(|it| self.may_hold_unpolled(seen, it, key, now));
                if holds || unpolled {
                    seen.free_since.remove(&key);
                    continue;
                }
                let free_since = *seen.free_since.entry(key).or_insert(now);
                for waiter in &seen.waiters {
                    self.check_progress(seen, waiter, key, free_since, now, limit);
                }
                continue;
            }
            seen.free_since.remove(&key);
            for (lease, _) in holders {
                self.check_owned(seen, key, lease, now, unowned_limit);
            }
        }
    }

    /// A lease that no guard has is released within `limit`.
    fn check_owned(&self, seen: &mut Seen, key: usize, lease: LeaseId, now: Time, limit: Time) {
        let owned = (seen.guards.iter()).any(|guard| guard.lease_of(key) == Some(lease));
        let Some(record) = self.store.lock().unwrap().records.get(&lease).cloned() else {
            return;
        };
        let waiters = &seen.waiters;
        let unpolled = (waiters.iter().filter(|it| it.manager == record.manager))
            .any(|waiter| self.may_hold_unpolled(seen, waiter, key, now));
        if owned || unpolled || seen.killed[record.manager] {
            seen.unowned.remove(&(key, lease));
            return;
        }
        let since = *seen.unowned.entry((key, lease)).or_insert(now);
        let Some(running) = self.worked_since(seen, record.manager) else {
            return;
        };
        // A shutdown lets any runtime release it.
        let all_running = self.all_running_since(seen, record.manager);
        if seen.closing[record.manager] && all_running.is_none() {
            return;
        }
        // Its process repeats a release until the lease must have expired. After a backward step of the clock, the lease
        // outlasts the releases.
        let outlasts = record.stepped_back && record.release_sent && now > record.valid_until;
        if outlasts && record.failed.is_some() {
            return;
        }
        let since = since.max(running).max(seen.troubled[record.manager]);
        let since = since + self.keep(record.manager);
        let prompt = self.prompt_since(seen, record.manager, key);
        let prompt = prompt.map(|all| since.max(all) + PROMPT + 2 * self.round_trip());
        let latest = since + limit;
        if now > prompt.map_or(latest, |prompt| prompt.min(latest)) {
            let (lease, manager) = (number(lease), record.manager);
            self.violate(Invariant::CleanUp, || {
                format!("lease {lease} of m{manager} holds k{key}, and no guard does")
            });
        }
    }

    /// I10: a process has at most one place for locks in the queue of a key, and one for each permit, and only while an
    /// acquire waits for it.
    fn check_places(&self, seen: &mut Seen, key: usize, now: Time, slack: Time) {
        let places = self.store.lock().unwrap().queued(key, now);
        for manager in 0..self.plan.managers.len() {
            let own = places.iter().filter(|place| place.manager == manager);
            let waiters = (seen.waiters.iter())
                .filter(|waiter| waiter.manager == manager && waiter.keys.contains(&key));
            let (permits, locks): (Vec<&Waiter>, Vec<&Waiter>) =
                waiters.partition(|waiter| waiter.permits.is_some());
            let needed = permits.len() + usize::from(!locks.is_empty());
            if own.clone().count() <= needed || seen.killed[manager] {
                seen.misplaced.remove(&(manager, key));
                continue;
            }
            let since = *seen.misplaced.entry((manager, key)).or_insert(now);
            let Some(running) = self.all_running_since(seen, manager) else {
                continue;
            };
            // A leave that failed is repeated after a pause, which a suspend prolongs.
            let calm = seen.troubled[manager].max(seen.resumed) + BACKSTOP;
            if now > since.max(running).max(calm) + slack {
                let leases: Vec<u64> = own.map(|place| number(place.lease)).collect();
                self.violate(Invariant::CleanUp, || {
                    format!("m{manager} queues for k{key} under {leases:?}, and needs {needed}")
                });
            }
        }
    }

    /// A waiter that is not polled may have been served, until its deadline.
    pub(super) fn may_hold_unpolled(
        &self,
        seen: &Seen,
        waiter: &Waiter,
        key: usize,
        now: Time,
    ) -> bool {
        let suspended = now - self.awake();
        let running = self.running_since(seen, waiter.manager, waiter.runtime);
        let polled = waiter.attentive.is_some() && running.is_some();
        waiter.keys.contains(&key)
            && (!polled || waiter.keys.len() > 1)
            && waiter.deadline.is_none_or(|at| now <= at + suspended)
    }

    /// Since when `manager` acts promptly at this key: all of its runtimes run, and nothing is lost or late.
    fn prompt_since(&self, seen: &Seen, manager: usize, key: usize) -> Option<Time> {
        let healthy = self.plan.events.is_empty()
            && self.plan.messages == Messages::PROMPT
            && !seen.forced.contains_key(&key)
            && self.shortest_lease() >= 6 * self.round_trip();
        self.all_running_since(seen, manager).filter(|_| healthy)
    }

    fn check_progress(
        &self,
        seen: &Seen,
        waiter: &Waiter,
        key: usize,
        free_since: Time,
        now: Time,
        limit: Time,
    ) {
        let manager = waiter.manager;
        if waiter.keys != [key] || waiter.single_try || seen.closing[manager] {
            return;
        }
        let running = self.running_since(seen, manager, waiter.runtime);
        let (Some(running), Some(attentive)) = (running, waiter.attentive) else {
            return;
        };
        let since = free_since.max(running).max(attentive);
        // A blocked runtime may have to return the lease of the key, and has half a second for that.
        let prompt = self.prompt_since(seen, manager, key);
        let prompt = prompt.map(|all| since.max(all) + PROMPT + 2 * self.round_trip());
        let latest = prompt.map_or(since + limit, |prompt| prompt.min(since + limit));
        if now > latest.max(seen.troubled[manager] + limit) {
            let (id, since) = (waiter.id, since / MS);
            self.violate(Invariant::Progress, || {
                format!("w{id} waits, and k{key} is free since {since} ms")
            });
        }
    }
}
