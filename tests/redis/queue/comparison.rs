//! Random steps of processes, on a server and on the reference.

mod draw;
mod reached;

use std::collections::{BTreeMap, HashMap};

use fastrand::Rng;
use redis::{Connection, Value};

use super::expected::expected;
use super::model::{Body, Counted, Model, Queue, Reply, id_of, manager_name, manager_of};
use super::scripts::{A, B, BODY, CHANNEL, COUNTERS, Call, FENCE, Flavor, QUEUE};
use super::server::FrozenServer;
use super::stored::assert_stored;

use draw::Modes;
pub(crate) use reached::{CASES, PERMIT_CASES};

/// With a client outside the queue, a channel has at most seven subscribers. Valkey 9.1.2 miscounts those of a larger
/// table while it rehashes the table.
const MANAGERS: u64 = 6;
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
    pub(crate) last: Option<Call>,
    counter: i64,
    pub(crate) granted: usize,
    pub(crate) transferred: usize,
    /// The modes of most leases at present.
    modes: Modes,
    /// How often a case of shared leases or permits came up.
    pub(crate) reached: BTreeMap<&'static str, usize>,
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
        let leases = (0..MANAGERS).map(|it| format!("{}:{it}", manager_name(it)));
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
            next: MANAGERS,
            last: None,
            counter: 0,
            granted: 0,
            transferred: 0,
            modes: Modes::All,
            reached: BTreeMap::new(),
        }
    }

    /// Returns the commands that subscribe to messages and count their subscribers.
    fn kinds(&self) -> &'static [(&'static str, &'static str)] {
        const KINDS: [(&str, &str); 2] = [("SUBSCRIBE", "NUMSUB"), ("SSUBSCRIBE", "SHARDNUMSUB")];
        match self.flavor {
            Flavor::Plain | Flavor::Guarded | Flavor::Implausible => &KINDS[..1],
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

    fn call(&mut self, call: &Call) {
        let now = self.server.now();
        let mut locks = [&mut self.model, &mut self.second];
        locks.iter_mut().for_each(|lock| lock.begin(now));
        let before = self.model.clone();
        let locks = [&mut self.model, &mut self.second];
        let mut expected = expected(locks, call);
        let (reply, counter) = call.run_as(self.flavor, &mut self.admin, self.model.counted);
        if let (Reply::Shared(.., expected), Reply::Shared(.., name)) = (&mut expected, &reply) {
            self.choose_latest(call, expected, name);
        }
        assert_eq!(reply, expected, "{call:?} after {before:?}");
        self.note(call, &before, &reply);
        self.note_permits(call, &before, &reply);
        self.receive();
        if counter > 0 {
            let last = self.counter;
            assert!(counter > last, "{counter} after {last}");
            // A kept lease has several, and each grant of a call its own.
            let kept = i64::try_from(COUNTERS).unwrap() - 1;
            let more = match &reply {
                Reply::Kept => kept,
                Reply::Each(replies) if replies.iter().any(|it| **it == Reply::Kept) => kept,
                Reply::Each(replies) => {
                    let granted = replies
                        .iter()
                        .filter(|it| matches!(***it, Reply::Granted(_) | Reply::Again(_)));
                    i64::try_from(granted.count()).unwrap() - 1
                }
                _ => 0,
            };
            self.counter = self.counter.max(counter + more);
        }
        self.granted += usize::from(matches!(reply, Reply::Granted(_) | Reply::Again(_)));
        self.transferred += self.model.woken.len();
    }

    /// The script `inspect` returns any of several leases with the latest deadline.
    fn choose_latest(&self, call: &Call, expected: &mut String, name: &str) {
        let second = matches!(call, Call::Second(_));
        let model = if second { &self.second } else { &self.model };
        if let Some(leases) = model.body.leases()
            && leases.get(name) == leases.get(expected)
        {
            name.clone_into(expected);
        }
    }

    /// Every subscriber receives its messages.
    fn receive(&mut self) {
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
            let id = |name: &String| (format!("%{}", manager_of(name)), id_of(name).to_owned());
            expected.extend(woken.map(id));
            let received = expected.iter().map(|_| {
                let message = connection.recv_response().unwrap();
                let (_, channel, text): (String, String, String) =
                    redis::from_redis_value(message).unwrap();
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
        if self.model.body.until().is_some() {
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
