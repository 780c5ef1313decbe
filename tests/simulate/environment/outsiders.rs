//! Clients outside the queue, as Redisson or an older version of this crate: they attempt, and listen while the key is
//! held.

use tower_lock::backend::LeaseId;
use uuid::Uuid;

use super::Environment;
use super::wires::WireEvent;
use crate::plan::{Ms, Outsider};
use crate::time::{MS, Time};

/// What such a client does at the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Attempt,
    /// The TTL of the holder has passed that an attempt found. Later attempts have replaced it.
    AttemptAtExpiry {
        attempts: u64,
    },
    Release,
}

pub(super) struct Client {
    holds_left: u32,
    attempts: u64,
    holds: bool,
}

impl Client {
    pub(super) fn new(plan: &Outsider) -> Self {
        Self {
            holds_left: plan.holds,
            attempts: 0,
            holds: false,
        }
    }
}

fn ms(time: Ms) -> Time {
    MS * i64::try_from(time).unwrap()
}

impl Environment {
    pub fn start_outsiders(&self) {
        for (client, plan) in self.plan.outsiders.iter().enumerate() {
            self.act_after(client, ms(plan.start), Act::Attempt);
        }
    }

    /// Lets a client act after a pause and the way to the store.
    fn act_after(&self, client: usize, pause: Time, act: Act) {
        let mut wires = self.wires.lock().unwrap();
        let mut random = self.random(wires.next ^ 1 << 54);
        let at = self.awake() + pause + self.message_delay(&mut random);
        wires.schedule(at, WireEvent::Outsider(client, act));
    }

    /// Notifies a client of a release, unless messages are lost.
    pub(super) fn notify_outsider(&self, client: usize) {
        let wires = self.wires.lock().unwrap();
        let mut random = self.random(wires.next ^ 1 << 55);
        let delay = self.message_delay(&mut random);
        let delivers = wires.delivers(self.awake());
        drop(wires);
        if delivers {
            self.act_after(client, delay, Act::Attempt);
        }
    }

    pub(super) fn outsider_acts(&self, client: usize, act: Act) {
        let plan = &self.plan.outsiders[client];
        let mut outsiders = self.outsiders.lock().unwrap();
        let it = &mut outsiders[client];
        let is_outdated =
            matches!(act, Act::AttemptAtExpiry { attempts } if attempts < it.attempts);
        if it.holds_left == 0 || it.holds != (act == Act::Release) || is_outdated {
            return;
        }
        let lease = |it: &Client| LeaseId::new(Uuid::from_u128(client as u128), it.attempts);
        let mut store = self.store.lock().unwrap();
        let (next, pause) = match act {
            Act::Release => {
                store.release_outside(plan.key, lease(it), self.now());
                it.holds = false;
                it.holds_left -= 1;
                (Act::Attempt, ms(plan.pause))
            }
            Act::Attempt | Act::AttemptAtExpiry { .. } => {
                it.attempts += 1;
                match store.attempt_outside(client, plan.key, lease(it), self.now()) {
                    None => {
                        it.holds = true;
                        (Act::Release, ms(plan.hold))
                    }
                    Some(ttl) => {
                        let attempts = it.attempts;
                        (Act::AttemptAtExpiry { attempts }, ttl + MS)
                    }
                }
            }
        };
        self.trace(|| format!("client {client} outside: {act:?}, then {next:?} after {pause} µs"));
        drop(store);
        drop(outsiders);
        self.act_after(client, pause, next);
        self.store_changed();
    }

    /// Ends all clients outside the queue. What they hold is released.
    pub(super) fn end_outsiders(&self) {
        let mut outsiders = self.outsiders.lock().unwrap();
        let mut store = self.store.lock().unwrap();
        store.end_outside();
        for (client, it) in outsiders.iter_mut().enumerate() {
            let lease = LeaseId::new(Uuid::from_u128(client as u128), it.attempts);
            store.release_outside(self.plan.outsiders[client].key, lease, self.now());
            it.holds_left = 0;
        }
        drop(store);
        drop(outsiders);
        self.store_changed();
    }
}
