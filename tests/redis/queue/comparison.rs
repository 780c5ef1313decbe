//! Random steps of processes, on a server and on the reference.

use std::collections::HashMap;

use fastrand::Rng;
use redis::{Connection, Value};

use super::expected::expected;
use super::model::{
    ALIVE, Body, Counted, Model, Place, Queue, Reply, STEP, lease, manager_name, manager_of,
};
use super::scripts::{A, B, BODY, CHANNEL, Call, FENCE, Flavor, QUEUE};
use super::server::FrozenServer;
use super::stored::assert_stored;

const MANAGERS: u64 = 6;
const TTL: i64 = 30_000;
/// Across every deadline, on both sides of it.
const PAUSES: [i64; 17] = [
    0, 1, 3, 6, 9, 10, 11, 100, 299, 300, 301, 499, 500, 1500, 1501, 3000, 6001,
];

pub(crate) struct Comparison {
    flavor: Flavor,
    server: FrozenServer,
    admin: Connection,
    model: Model,
    /// Another lock, to whose messages no client subscribes.
    second: Model,
    random: Rng,
    /// The subscriptions of managers, and of clients outside the queue.
    listeners: HashMap<String, Connection>,
    others: Vec<Connection>,
    /// The lease under which each manager contends.
    leases: Vec<String>,
    next: u64,
    last: Option<Call>,
    counter: i64,
    pub(crate) granted: usize,
    pub(crate) transferred: usize,
}

/// The server reads its clock for this figure about ten times a second.
fn await_uptime(admin: &mut Connection) {
    let seconds = |admin: &mut Connection| -> Option<u64> {
        let info: String = redis::cmd("INFO").arg("server").query(admin).unwrap();
        let line = info
            .lines()
            .find_map(|it| it.strip_prefix("uptime_in_seconds:"));
        line?.parse().ok()
    };
    while seconds(admin) < Some(3) {
        std::thread::yield_now();
    }
}

impl Comparison {
    pub(crate) fn new(seed: u64, counted: Counted, flavor: Flavor) -> Self {
        let mut server = FrozenServer::start();
        let mut admin = server.connect();
        if flavor == Flavor::Guarded {
            // The quarantine after the start is over, and the server has lost no data.
            server.advance(3_000);
            await_uptime(&mut admin);
            redis::cmd("SET")
                .arg(FENCE)
                .arg(1)
                .exec(&mut admin)
                .unwrap();
        }
        let leases = (0..MANAGERS).map(lease);
        let kinds = i64::from(flavor == Flavor::Both) + 1;
        let model = Model::new(server.now(), counted, kinds);
        Self {
            second: model.clone(),
            model,
            flavor,
            server,
            admin,
            random: Rng::with_seed(seed),
            listeners: HashMap::new(),
            others: Vec::new(),
            leases: leases.collect(),
            next: 2,
            last: None,
            counter: 0,
            granted: 0,
            transferred: 0,
        }
    }

    fn is_numbered(&self) -> bool {
        self.model.counted == Counted::All && self.flavor != Flavor::Guarded
    }

    /// Returns the commands that subscribe to messages and count their subscribers.
    fn kinds(&self) -> &'static [(&'static str, &'static str)] {
        const KINDS: [(&str, &str); 2] = [("SUBSCRIBE", "NUMSUB"), ("SSUBSCRIBE", "SHARDNUMSUB")];
        match self.flavor {
            Flavor::Plain | Flavor::Guarded => &KINDS[..1],
            Flavor::Sharded => &KINDS[1..],
            Flavor::Both => &KINDS,
        }
    }

    fn command(&mut self, words: &[&str]) -> Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.admin).unwrap()
    }

    /// Takes one step. Panics if the server and the reference differ.
    pub(crate) fn step(&mut self) {
        // A server out of order does not stay so for long.
        let out_of_order =
            self.model.full || self.model.foreign_queue || self.model.body == Body::Foreign;
        match self.random.u16(..1000) {
            0..60 => {
                let pause = self.draw_pause();
                self.server.advance(pause);
            }
            60..100 => self.toggle_listener(),
            100..120 => self.toggle_other(),
            120..125 => self.toggle_memory(),
            125..128 => self.toggle_queue_type(),
            128..131 => self.toggle_body_type(),
            131..150 => self.unlock_outside(),
            150..210 if out_of_order => self.repair(),
            _ => {
                let repeated = self.last.take().filter(|_| self.random.u8(..5) == 0);
                let call = repeated.unwrap_or_else(|| self.draw());
                self.call(&call);
                self.last = Some(call);
            }
        }
        self.compare();
    }

    /// Returns the time to a deadline, or just beyond it, or any.
    fn draw_pause(&mut self) -> i64 {
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
        if let Body::Held { until, .. } = &model.body {
            deadlines.push(Some(*until).filter(|until| *until < self.model.now + TTL / 2));
        }
        let now = self.server.now();
        let ahead = |at: Option<i64>| at.filter(|at| *at >= now);
        let deadlines: Vec<_> = deadlines.into_iter().filter_map(ahead).collect();
        if deadlines.is_empty() || self.random.bool() {
            let longest = 1 + self.random.usize(..PAUSES.len());
            return PAUSES[self.random.usize(..longest)];
        }
        let at = deadlines[self.random.usize(..deadlines.len())];
        at - now + self.random.i64(0..2)
    }

    fn draw(&mut self) -> Call {
        match self.random.u8(..20) {
            0 => Call::Second(Box::new(self.draw_for(true))),
            1 | 2 => self.draw_both(),
            _ => self.draw_for(false),
        }
    }

    fn draw_both(&mut self) -> Call {
        let leases = [&self.model, &self.second].map(|lock| match &lock.body {
            Body::Held { holder, .. } if self.random.u8(..4) > 0 => holder.clone(),
            _ => self.random.choice(&self.leases).unwrap().clone(),
        });
        let ttl = TTL + self.random.i64(0..2);
        match self.random.u8(..8) {
            0..3 => Call::AcquireBoth { leases, ttl },
            3 => Call::RenewBoth { leases, ttl },
            4..7 => Call::ReleaseBoth(leases),
            _ => Call::LeaveBoth(leases),
        }
    }

    fn draw_for(&mut self, second: bool) -> Call {
        let index = self.random.usize(..self.leases.len());
        let lease = self.leases[index].clone();
        let model = if second { &self.second } else { &self.model };
        let holder = match &model.body {
            Body::Held { holder, .. } => holder.clone(),
            _ => lease.clone(),
        };
        // A waiter that says it listens may have lost its connection.
        let listens = |comparison: &mut Self, lease: &str| {
            let is_connected = comparison.listeners.contains_key(manager_of(lease));
            is_connected != (comparison.random.u8(..12) == 0)
        };
        match self.random.u8(..21) {
            0 => Call::Acquire { lease, ttl: TTL },
            1..10 => {
                let listens = listens(self, &lease);
                let ttl = TTL;
                Call::Contend {
                    lease,
                    ttl,
                    listens,
                }
            }
            10..14 => Call::Release(holder),
            14 => Call::Leave(lease),
            15 => {
                // Left, and contends again.
                let again = format!("{}:{}", manager_of(&lease), self.next);
                self.next += 1;
                self.leases[index] = again;
                Call::Leave(lease)
            }
            16 => Call::Force(holder),
            17 => Call::Inspect,
            18 => {
                let (lease, ttl) = (holder, TTL + self.random.i64(0..2));
                Call::Renew { lease, ttl }
            }
            _ => {
                let own = self.random.i64(-1..2);
                let next = self.random.bool().then(|| {
                    let listens = listens(self, &lease);
                    (lease, listens)
                });
                let lease = holder;
                let ttl = TTL;
                let releases = self.random.u8(..3) > 0;
                Call::Pass {
                    lease,
                    ttl,
                    own,
                    next,
                    releases,
                }
            }
        }
    }

    fn call(&mut self, call: &Call) {
        let before = self.model.body.clone();
        let now = self.server.now();
        let mut locks = [&mut self.model, &mut self.second];
        locks.iter_mut().for_each(|lock| lock.begin(now));
        let expected = expected(locks, call);
        let (reply, counter) = call.run_as(self.flavor, &mut self.admin, self.model.counted);
        assert_eq!(reply, expected, "{call:?} after {before:?}");
        // The transfers of this call, which have counters as well.
        self.receive();
        if let Reply::Waiting(_, _, poll_after, _) = reply {
            // Messages cannot be grants for a waiter that polls, or where they may not arrive.
            let numbered = poll_after == 0 && self.is_numbered();
            assert_eq!(counter > 0, numbered, "{call:?}");
            if numbered {
                assert!(counter >= self.counter, "{counter} after {}", self.counter);
                self.counter = counter;
            }
        } else if counter > 0 {
            assert!(counter > self.counter, "{counter} after {}", self.counter);
            // A kept lease has eight, and each grant of a call its own.
            let more = match &reply {
                Reply::Kept => 7,
                Reply::Each(replies) => {
                    let granted = replies.iter().filter(|it| ***it == Reply::Granted(0));
                    i64::try_from(granted.count()).unwrap() - 1
                }
                _ => 0,
            };
            self.counter = counter + more;
        }
        self.granted += usize::from(matches!(reply, Reply::Granted(_) | Reply::Again(_)));
        self.transferred += self.model.woken.len();
    }

    /// Every subscriber receives its messages. A transfer has a fresh counter, if its message can be a grant.
    fn receive(&mut self) {
        let numbered = self.is_numbered();
        let mut subscribers: Vec<_> = self.others.iter_mut().map(|it| (None, it)).collect();
        let listeners = self.listeners.iter_mut();
        subscribers.extend(listeners.map(|(manager, it)| (Some(manager.clone()), it)));
        for (manager, connection) in subscribers {
            let kinds = match &manager {
                Some(_) => usize::try_from(self.model.kinds).unwrap(),
                None => 1,
            };
            let mut expected = vec![("".to_owned(), "0".to_owned()); kinds * self.model.published];
            let own = |it: &&String| Some(manager_of(it)) == manager.as_deref();
            let woken = self.model.woken.iter().filter(own);
            expected.extend(woken.map(|lease| (format!("%{}", manager_of(lease)), lease.clone())));
            let received = expected.iter().map(|_| {
                let message = connection.recv_response().unwrap();
                let (_, channel, text): (String, String, String) =
                    redis::from_redis_value(message).unwrap();
                let text = match text.split_once(' ') {
                    Some((lease, counter)) => {
                        let counter: i64 = counter.parse().unwrap();
                        assert!(counter > self.counter, "{counter} after {}", self.counter);
                        self.counter = counter;
                        assert!(numbered);
                        lease.to_owned()
                    }
                    None => {
                        assert!(text == "0" || !numbered, "{text}");
                        text
                    }
                };
                (channel.replace(CHANNEL, ""), text)
            });
            let mut received: Vec<_> = received.collect();
            received.sort();
            expected.sort();
            assert_eq!(received, expected, "messages to {manager:?}");
        }
    }

    /// The server notices the end of a connection soon.
    fn await_subscribers(&mut self) {
        let kinds = self.kinds();
        let expected = kinds.len() * self.listeners.len() + self.others.len();
        let count = |comparison: &mut Self| {
            let counts = kinds.iter().map(|(_, count)| {
                let counts = comparison.command(&["PUBSUB", count, CHANNEL]);
                let (_, count): (String, usize) = redis::from_redis_value(counts).unwrap();
                count
            });
            counts.sum::<usize>()
        };
        while count(self) != expected {
            std::thread::yield_now();
        }
        self.model.others = i64::try_from(self.others.len()).unwrap();
        self.model.listening = self.listeners.keys().cloned().collect();
    }

    fn toggle_listener(&mut self) {
        let manager = manager_name(self.random.u64(..MANAGERS));
        if self.listeners.remove(&manager).is_none() {
            let ours = [format!("{CHANNEL}%w"), format!("{CHANNEL}%{manager}")];
            let channels = [&ours[..], &[CHANNEL.to_owned()]].concat();
            let kinds = self.kinds().iter();
            let commands: Vec<_> = kinds.map(|(subscribe, _)| *subscribe).collect();
            let connection = self.server.subscribe_by(&commands, &channels);
            self.listeners.insert(manager, connection);
        }
        self.await_subscribers();
    }

    fn toggle_other(&mut self) {
        if self.others.pop().is_none() {
            // A client outside the queue subscribes in one of the ways.
            let (command, _) = self.random.choice(self.kinds()).unwrap();
            let connection = self.server.subscribe_by(&[command], &[CHANNEL.to_owned()]);
            self.others.push(connection);
        }
        self.await_subscribers();
    }

    fn repair(&mut self) {
        if self.model.full {
            self.toggle_memory();
        }
        if self.model.foreign_queue {
            self.toggle_queue_type();
        }
        if self.model.body == Body::Foreign {
            self.toggle_body_type();
        }
    }

    fn toggle_memory(&mut self) {
        self.model.full = !self.model.full;
        self.second.full = self.model.full;
        let limit = if self.model.full { "1" } else { "0" };
        self.command(&["CONFIG", "SET", "maxmemory", limit]);
    }

    fn toggle_queue_type(&mut self) {
        self.model.begin(self.server.now());
        self.model.foreign_queue = !self.model.foreign_queue && !self.model.full;
        self.model.queue = Queue::default();
        self.command(&["DEL", QUEUE]);
        if self.model.foreign_queue {
            self.command(&["SET", QUEUE, "something else"]);
        }
    }

    fn toggle_body_type(&mut self) {
        self.model.begin(self.server.now());
        let foreign = self.model.body != Body::Foreign && !self.model.full;
        self.model.body = if foreign { Body::Foreign } else { Body::Free };
        self.command(&["DEL", BODY]);
        if foreign {
            self.command(&["SET", BODY, "something else"]);
        }
    }

    /// A holder outside the queue unlocks without it.
    fn unlock_outside(&mut self) {
        self.model.begin(self.server.now());
        if matches!(self.model.body, Body::Held { .. }) {
            self.model.body = Body::Free;
            self.model.published = 1;
            self.command(&["DEL", BODY]);
            for (subscribe, _) in self.kinds() {
                let publish = subscribe.replace("SUBSCRIBE", "PUBLISH");
                self.command(&[&publish, CHANNEL, "0"]);
            }
            self.receive();
        }
    }

    /// Compares the keys of the server with the reference.
    fn compare(&mut self) {
        for (model, names) in [(&mut self.model, A), (&mut self.second, B)] {
            model.begin(self.server.now());
            assert_stored(&mut self.admin, names, model);
        }
    }
}
