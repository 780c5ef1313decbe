//! The random draws.

use super::Comparison;
use crate::queue::model::{ALIVE, Body, Mode, Model, Place, STEP, id_of, manager_of, mode_of};
use crate::queue::scripts::Call;

const TTL: i64 = 30_000;
/// The TTLs of leases that hold a lock together. Some are shorter than that of a transferred lease.
const TOGETHER_TTLS: [i64; 6] = [TTL, TTL, TTL + 1, 4_000, 600, 200];
/// Across every deadline, on both sides of it.
const PAUSES: [i64; 17] = [
    0, 1, 3, 6, 9, 10, 11, 100, 299, 300, 301, 499, 500, 1500, 1501, 3000, 6001,
];

/// The modes of most leases besides exclusive ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Modes {
    All,
    Shared,
    Permits,
}

impl Comparison {
    /// Returns the time to a deadline, or just beyond it, or any.
    pub(super) fn draw_pause(&mut self) -> i64 {
        let model = if self.random.u8(..5) == 0 {
            &self.second
        } else {
            &self.model
        };
        let queue = &model.queue;
        let mut deadlines = vec![queue.turn, queue.due, queue.expires];
        deadlines.extend(queue.places.iter().map(|place| match place {
            Place::Lease { until, .. } => Some(*until),
            Place::Others => None,
        }));
        // A waiter that polls is passed over until about its next attempt.
        deadlines.extend(queue.places.iter().map(|place| match place {
            Place::Lease { until, .. } => Some(*until - ALIVE - STEP),
            Place::Others => None,
        }));
        let held: Vec<i64> = match &model.body {
            Body::Held { until, .. } => vec![*until],
            body => body
                .leases()
                .into_iter()
                .flat_map(|it| it.values().copied())
                .collect(),
        };
        let is_near = |until: &i64| *until < model.now + TTL / 2;
        deadlines.extend(held.into_iter().filter(is_near).map(Some));
        let now = self.server.now();
        let ahead = |at: Option<i64>| at.filter(|at| *at >= now);
        let deadlines: Vec<_> = deadlines.into_iter().filter_map(ahead).collect();
        if let (Some(leases), 0..2) = (model.body.leases(), self.random.u8(..3)) {
            // A lease expires beside others, or one of another mode behind them.
            let mode = model.body.mode();
            let writers = queue.places.iter().filter_map(|place| match place {
                Place::Lease { lease, until, .. } if mode_of(lease) != mode => Some(*until),
                _ => None,
            });
            let latest = model.body.until();
            let first = leases.values().copied().filter(|at| Some(*at) < latest);
            let aims = first.chain(writers).filter(|at| *at >= now);
            if let Some(at) = self.random.choice(aims.collect::<Vec<_>>()) {
                return at - now + self.random.i64(0..2);
            }
        }
        if deadlines.is_empty() || self.random.bool() {
            let longest = 1 + self.random.usize(..PAUSES.len());
            return PAUSES[self.random.usize(..longest)];
        }
        let at = deadlines[self.random.usize(..deadlines.len())];
        at - now + self.random.i64(0..2)
    }

    pub(super) fn draw(&mut self) -> Call {
        if self.random.u8(..200) == 0 {
            let modes = [Modes::All, Modes::Shared, Modes::Permits, Modes::Permits];
            self.modes = modes[self.random.usize(..4)];
        }
        match self.random.u8(..20) {
            0 => Call::Second(Box::new(self.draw_for(true))),
            1 | 2 => self.draw_both(),
            3..8 => self.draw_rare().unwrap_or_else(|| self.draw_for(false)),
            _ => self.draw_for(false),
        }
    }

    /// Returns a call for a lease that has expired beside others, or in its place, for one of these others, or for one of
    /// another mode behind them. Where a permit waits, returns the release of one of several.
    fn draw_rare(&mut self) -> Option<Call> {
        let (leases, mode) = (self.model.body.leases()?, self.model.body.mode());
        let now = self.server.now();
        let writer = self
            .model
            .queue
            .places
            .iter()
            .find_map(|place| match place {
                Place::Lease { lease, .. } if mode_of(lease) != mode => Some(lease.clone()),
                _ => None,
            });
        let is_permit = |place: &Place| matches!(place, Place::Lease { lease, .. } if mode_of(lease) == Some(Mode::Permits));
        let permit_waits = self.model.queue.places.iter().any(is_permit);
        if mode == Some(Mode::Permits) && permit_waits && leases.len() > 1 && self.random.bool() {
            let name = self.random.choice(leases.keys()).unwrap();
            return Some(Call::Release(id_of(name).to_owned()));
        }
        let mut expired = leases.iter().filter(|(_, until)| **until <= now);
        let name = match (expired.next(), writer) {
            (Some((name, _)), None) => name.clone(),
            (Some((name, _)), Some(_)) if self.random.bool() => name.clone(),
            (_, writer) => return writer.map(|it| Call::Leave(id_of(&it).to_owned())),
        };
        let live = leases.iter().find(|(_, until)| **until > now);
        let live = live.map(|(name, _)| name.clone());
        if mode == Some(Mode::Permits) && self.random.bool() {
            // A permit takes the place of the expired one.
            let lease = self.random.choice(&self.leases).unwrap();
            return Some(Call::Share {
                lease: format!("p{lease}"),
                ttl: TTL,
            });
        }
        Some(match (self.random.u8(..5), live) {
            (0 | 1, _) => Call::Release(id_of(&name).to_owned()),
            (2, _) => Call::Force {
                holder: name,
                spares: true,
            },
            (3, Some(lease)) => Call::RenewShared {
                lease,
                ttl: TTL,
                alone: self.random.bool(),
            },
            _ => Call::Contend {
                lease: name,
                ttl: TTL,
                listens: self.random.bool(),
            },
        })
    }

    fn model(&self, second: bool) -> &Model {
        if second { &self.second } else { &self.model }
    }

    /// Returns the name of a lease that holds the lock, which may have expired, or of any.
    fn draw_holder(&mut self, second: bool) -> String {
        let names: Vec<String> = match &self.model(second).body {
            Body::Held { holder, .. } => vec![holder.clone()],
            body => body
                .leases()
                .into_iter()
                .flat_map(|it| it.keys().cloned())
                .collect(),
        };
        let name = self.random.choice(names);
        name.unwrap_or_else(|| {
            let lease = self.random.choice(&self.leases).unwrap().clone();
            self.name(&lease)
        })
    }

    /// Returns the name under which a lease contends. Most leases have one mode for some time.
    fn name(&mut self, lease: &str) -> String {
        let number: u64 = lease.split(':').nth(1).unwrap().parse().unwrap();
        let together = number % 5 < 3;
        if together == (self.random.u8(..20) == 0) {
            return lease.to_owned();
        }
        match self.modes {
            Modes::Permits => format!("p{lease}"),
            Modes::All if number.is_multiple_of(2) => format!("p{lease}"),
            Modes::All | Modes::Shared => format!("s{lease}"),
        }
    }

    fn draw_ttl(&mut self, name: &str) -> i64 {
        if mode_of(name).is_some() {
            *self.random.choice(&TOGETHER_TTLS).unwrap()
        } else {
            TTL
        }
    }

    fn draw_both(&mut self) -> Call {
        let names = [false, true].map(|second| match self.random.u8(..4) {
            0 => {
                let lease = self.random.choice(&self.leases).unwrap().clone();
                self.name(&lease)
            }
            _ => self.draw_holder(second),
        });
        let leases = names.each_ref().map(|name| id_of(name).to_owned());
        let ttl = TTL + self.random.i64(0..2);
        match self.random.u8(..16) {
            0..3 => Call::AcquireBoth { leases, ttl },
            3 => Call::RenewBoth { leases, ttl },
            kind @ (4 | 5 | 10..13) => {
                let mut together = |name: String| match mode_of(&name) {
                    Some(_) => name,
                    None if self.random.bool() => format!("s{name}"),
                    None => format!("p{name}"),
                };
                let leases = names.map(&mut together);
                match kind {
                    4 | 5 => Call::RenewSharedBoth { leases, ttl },
                    _ => Call::ShareBoth { leases, ttl },
                }
            }
            6 => Call::LeaveBoth(leases),
            13..16 => Call::PassBoth(leases.map(|lease| Box::new(self.draw_pass(lease)))),
            _ => Call::ReleaseBoth(leases),
        }
    }

    /// A waiter that says it listens may have lost its connection.
    fn draw_listens(&mut self, lease: &str) -> bool {
        let is_connected = self.listeners.contains_key(manager_of(lease));
        is_connected != (self.random.u8(..12) == 0)
    }

    fn draw_pass(&mut self, lease: String) -> Call {
        let own = self.random.i64(-1..2);
        let next = self.random.bool().then(|| {
            let next = self.random.choice(&self.leases).unwrap().clone();
            let listens = self.draw_listens(&next);
            (next, listens)
        });
        Call::Pass {
            lease,
            ttl: TTL,
            own,
            next,
        }
    }

    fn draw_for(&mut self, second: bool) -> Call {
        let index = self.random.usize(..self.leases.len());
        let lease = self.leases[index].clone();
        let name = self.name(&lease);
        let held = self.draw_holder(second);
        let holder = id_of(&held).to_owned();
        let ttl = self.draw_ttl(&name);
        match self.random.u8(..26) {
            0..3 if mode_of(&name).is_some() => Call::Share { lease: name, ttl },
            0 => Call::Acquire { lease, ttl },
            1..12 => {
                let listens = self.draw_listens(&lease);
                Call::Contend {
                    lease: name,
                    ttl,
                    listens,
                }
            }
            12..16 => Call::Release(holder),
            16 => Call::Leave(lease),
            17 => {
                // Left, and contends again.
                let again = format!("{}:{}", manager_of(&lease), self.next);
                self.next += 1;
                self.leases[index] = again;
                Call::Leave(lease)
            }
            18 => {
                let spares = self.random.bool();
                Call::Force {
                    holder: held,
                    spares,
                }
            }
            19 => Call::Inspect,
            20..23 if self.model(second).body.mode().is_some() => {
                let lease = held;
                let ttl = self.draw_ttl(&lease);
                let alone = self.random.u8(..4) == 0;
                Call::RenewShared { lease, ttl, alone }
            }
            20 => {
                let (lease, ttl) = (holder, TTL + self.random.i64(0..2));
                Call::Renew { lease, ttl }
            }
            25 => Call::Downgrade {
                lease: holder,
                ttl: *self.random.choice(&TOGETHER_TTLS).unwrap(),
                alone: self.random.u8(..4) == 0,
            },
            _ => self.draw_pass(holder),
        }
    }
}
