//! What the parts of one simulation share: time, the store and its wires, what has been seen.

mod messages;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio::time::Instant;
use tower_lock::backend::{HintSender, LeaseId};
use tower_lock::{LockManager, test_util};

use crate::executor::{Alarm, Runtime};
use crate::plan::{Command, Plan, Trouble};
use crate::seen::Seen;
use crate::store::{Item, Outcome, Store, Transfer};
use crate::time::{MS, RESPONSE_TIMEOUT, Time, duration, time};
use crate::violation::{Invariant, Violation};

pub const OUTSIDE: usize = usize::MAX;

pub struct Environment {
    pub plan: Plan,
    origin: Instant,
    suspended: AtomicI64,
    pub alarm: Arc<Alarm>,
    /// By manager.
    pub runtimes: Mutex<Vec<Vec<Arc<Runtime>>>>,
    /// The manager and the runtime whose task is polled now.
    running: (AtomicUsize, AtomicUsize),
    pub store: Mutex<Store>,
    wires: Mutex<Wires>,
    pub seen: Mutex<Seen>,
    violation: Mutex<Option<Violation>>,
    trace: Option<Mutex<Vec<String>>>,
}

/// What a command meets, for as long as it lasts.
#[derive(Debug, Clone)]
pub struct Weather {
    pub until: Time,
    pub manager: Option<usize>,
    pub key: Option<usize>,
    pub command: Option<Command>,
    pub share: u64,
    pub kind: Trouble,
}

#[derive(Default)]
struct Wires {
    /// In the order in which they happen, by the time that the machine is awake.
    events: BTreeMap<(Time, u64), WireEvent>,
    next: u64,
    /// The latest effect per manager and key: commands do not overtake each other.
    last_effect: BTreeMap<(usize, usize), Time>,
    weather: Vec<Weather>,
    no_hints_until: Time,
    /// The messages of transfers that wait for a reply.
    held: Vec<Transfer>,
    healthy: bool,
}

pub type Reply = Vec<Result<Outcome, Failure>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Refused,
    Unknown,
}

struct Call {
    number: u64,
    manager: usize,
    command: Command,
    items: Vec<Item>,
    /// Refused by the store, one by one.
    refused: Vec<bool>,
    sent: Time,
    reply: Option<oneshot::Sender<Reply>>,
    reply_after: Time,
}

/// The command of a reply.
struct Sent {
    number: u64,
    manager: usize,
    /// The first one.
    key: usize,
}

enum WireEvent {
    Effect(Call),
    Reply(oneshot::Sender<Reply>, Reply, Sent),
    /// To one subscription of a key by a manager.
    Hint(usize, usize, HintSender),
    Transfer(Transfer),
    Watch(usize, usize, HintSender),
}

impl Environment {
    pub fn new(plan: Plan, traced: bool) -> Arc<Self> {
        Arc::new(Self {
            origin: Instant::now(),
            suspended: AtomicI64::new(0),
            alarm: Arc::default(),
            runtimes: Mutex::default(),
            running: (AtomicUsize::new(OUTSIDE), AtomicUsize::new(OUTSIDE)),
            store: Mutex::new(Store::new(
                plan.queue,
                MS * i64::try_from(plan.transfer_ttl).unwrap(),
            )),
            wires: Mutex::default(),
            seen: Mutex::new(Seen::new(&plan)),
            violation: Mutex::default(),
            trace: traced.then(Mutex::default),
            plan,
        })
    }

    // ---- time -----------------------------------------------------------------------------

    /// The time that the machine has been awake: timers follow it.
    pub fn awake(&self) -> Time {
        time(self.origin.elapsed())
    }

    pub fn now(&self) -> Time {
        self.awake() + self.suspended.load(Ordering::Relaxed)
    }

    pub fn instant(&self, awake: Time) -> Instant {
        self.origin + duration(awake)
    }

    pub fn suspend(&self, pause: Time) {
        test_util::suspend(duration(pause));
        self.suspended.fetch_add(pause, Ordering::Relaxed);
    }

    // ---- runtimes -------------------------------------------------------------------------

    pub fn runtime(&self, manager: usize, runtime: usize) -> Arc<Runtime> {
        Arc::clone(&self.runtimes.lock().unwrap()[manager][runtime])
    }

    pub fn set_current(&self, manager: usize, runtime: usize) {
        self.running.0.store(manager, Ordering::Relaxed);
        self.running.1.store(runtime, Ordering::Relaxed);
    }

    /// The runtime whose task is polled now, if it is one of this manager.
    fn current_runtime(&self, manager: usize) -> Option<usize> {
        let of = self.running.0.load(Ordering::Relaxed);
        let runtime = self.running.1.load(Ordering::Relaxed);
        (of == manager).then_some(runtime)
    }

    // ---- reports --------------------------------------------------------------------------

    pub fn trace(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            let now = self.now();
            let line = format!("{:>9}.{:03} {}", now / MS, now % MS, line());
            trace.lock().unwrap().push(line);
        }
    }

    pub fn violate(&self, invariant: Invariant, what: impl FnOnce() -> String) {
        let mut violation = self.violation.lock().unwrap();
        if violation.is_none() {
            let what = what();
            self.trace(|| format!("VIOLATION of {invariant:?}: {what}"));
            *violation = Some(Violation { invariant, what });
        }
    }

    pub fn violation(&self) -> Option<Violation> {
        self.violation.lock().unwrap().clone()
    }

    pub fn take_trace(&self) -> Vec<String> {
        let trace = self.trace.as_ref();
        trace.map_or_else(Vec::new, |trace| std::mem::take(&mut trace.lock().unwrap()))
    }

    // ---- the wires ------------------------------------------------------------------------

    pub fn add_weather(&self, weather: Weather) {
        self.wires.lock().unwrap().weather.push(weather);
    }

    pub fn drop_hints_until(&self, until: Time) {
        self.wires.lock().unwrap().no_hints_until = until;
    }

    /// From here on nothing is lost, refused or late.
    pub fn heal(&self) {
        self.wires.lock().unwrap().healthy = true;
    }

    /// Sends a command. The reply comes through the receiver, if it is not lost.
    pub fn send(
        &self,
        manager: usize,
        command: Command,
        items: Vec<Item>,
    ) -> oneshot::Receiver<Reply> {
        let (sender, receiver) = oneshot::channel();
        let (now, awake) = (self.now(), self.awake());
        let runtime = self.current_runtime(manager);
        for item in &items {
            self.check_command(manager, command, item, now);
            (self.store.lock().unwrap()).sent(command, item, manager, runtime, now);
        }
        let mut wires = self.wires.lock().unwrap();
        let number = wires.next;
        wires.next += 1;
        // Without a state of its own, so that the rest of a shortened plan stays as it was.
        let mut random = self.random(number ^ (command as u64) << 40);
        let (shortest, longest) = self.plan.delay;
        let mut delay = || MS * i64::try_from(random.u64(shortest..=longest)).unwrap();
        let (there, back) = (delay(), delay());
        let troubles = wires.troubles(manager, command, &items, awake, &mut random);
        let mut effect_at = awake + there;
        let mut reply_after = back;
        let mut refused = vec![false; items.len()];
        let mut arrives = true;
        let mut answered = true;
        for (trouble, until, key) in &troubles {
            match trouble {
                Trouble::RequestLost => arrives = false,
                Trouble::ReplyLost => answered = false,
                Trouble::ReplyLate(late) => reply_after += MS * i64::try_from(*late).unwrap(),
                Trouble::Hung => effect_at = effect_at.max(*until),
                Trouble::Refused => {
                    for (item, refused) in items.iter().zip(&mut refused) {
                        *refused |= key.is_none_or(|key| key == item.key);
                    }
                }
            }
        }
        for item in &items {
            let last = wires
                .last_effect
                .entry((manager, item.key))
                .or_insert(awake);
            effect_at = effect_at.max(*last);
        }
        if arrives {
            for item in &items {
                wires.last_effect.insert((manager, item.key), effect_at);
            }
        }
        if !troubles.is_empty() || effect_at + reply_after >= awake + RESPONSE_TIMEOUT {
            let mut seen = self.seen.lock().unwrap();
            let late = effect_at - awake + now;
            seen.trouble(manager, late.max(now + RESPONSE_TIMEOUT));
        }
        self.trace(|| {
            let items = self.describe(&items);
            format!("m{manager} sends #{number} {command:?} {items} {troubles:?}")
        });
        let call = Call {
            number,
            manager,
            command,
            items,
            refused,
            sent: now,
            reply: answered.then_some(sender),
            reply_after,
        };
        if arrives {
            wires.schedule(effect_at, WireEvent::Effect(call));
        }
        receiver
    }

    fn describe(&self, items: &[Item]) -> String {
        let items = items.iter().map(|item| {
            let lease = item.lease.map(number);
            format!("k{} {lease:?} for {} ms", item.key, item.ttl / MS)
        });
        items.collect::<Vec<_>>().join(", ")
    }

    pub fn random(&self, number: u64) -> fastrand::Rng {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        fastrand::Rng::with_seed(self.plan.seed ^ mixed)
    }

    /// When the next command arrives, or the next message.
    pub fn next_event(&self) -> Option<Time> {
        let wires = self.wires.lock().unwrap();
        wires.events.keys().next().map(|(at, _)| *at)
    }

    /// Lets one event happen that is due; false if none is.
    pub fn happen(&self) -> bool {
        let awake = self.awake();
        let event = {
            let mut wires = self.wires.lock().unwrap();
            match wires.events.first_entry() {
                Some(first) if first.key().0 <= awake => first.remove(),
                _ => return false,
            }
        };
        match event {
            WireEvent::Effect(call) => self.take_effect(call),
            WireEvent::Reply(sender, reply, sent) => {
                let call = sent.number;
                self.trace(|| format!("reply to #{call}: {}", describe_reply(&reply)));
                if matches!(reply[..], [Ok(Outcome::Waiting { .. })]) {
                    self.let_go(sent.manager, sent.key);
                }
                // Its caller may be gone.
                drop(sender.send(reply));
            }
            WireEvent::Hint(key, manager, sender) => self.hint_arrives(key, manager, &sender),
            WireEvent::Transfer(transfer) => self.transfer_arrives(transfer),
            WireEvent::Watch(key, manager, sender) => {
                (self.store.lock().unwrap()).watch(key, manager, sender.clone());
                self.hint(key, manager, sender);
            }
        }
        true
    }

    fn take_effect(&self, call: Call) {
        let now = self.now();
        let mut reply = Reply::new();
        for (item, refused) in call.items.iter().zip(&call.refused) {
            if *refused {
                reply.push(Err(Failure::Refused));
                continue;
            }
            let outcome = (self.store.lock().unwrap()).execute(call.command, item, call.sent, now);
            reply.push(Ok(outcome));
            if let Outcome::Waiting {
                poll_after: Some(after),
                ..
            } = outcome
                && let Some(lease) = item.lease
            {
                (self.seen.lock().unwrap()).polled(lease, call.manager, item.key, after, now);
            }
            if call.command == Command::Contend && matches!(outcome, Outcome::Busy { .. }) {
                // Its process leaves the place that it had.
                let mut seen = self.seen.lock().unwrap();
                seen.trouble(call.manager, now + RESPONSE_TIMEOUT);
            }
            let freed = matches!(outcome, Outcome::Released { .. });
            if freed {
                let watchers = self.store.lock().unwrap().senders(item.key);
                for (manager, sender) in watchers {
                    self.hint(item.key, manager, sender);
                }
            }
            let transfers = self.store.lock().unwrap().take_transfers();
            for transfer in transfers {
                self.transferred(transfer);
            }
        }
        self.trace(|| {
            let (number, reply) = (call.number, describe_reply(&reply));
            format!("#{number} of m{} takes effect: {reply}", call.manager)
        });
        if let Some(sender) = call.reply {
            let at = self.awake() + call.reply_after;
            let mut wires = self.wires.lock().unwrap();
            let sent = Sent {
                number: call.number,
                manager: call.manager,
                key: call.items[0].key,
            };
            wires.schedule(at, WireEvent::Reply(sender, reply, sent));
        }
    }

    pub fn watch(&self, key: usize, manager: usize, sender: HintSender) {
        let mut wires = self.wires.lock().unwrap();
        let mut random = self.random(wires.next ^ 1 << 51);
        let delay = random.u64(self.plan.delay.0..=self.plan.delay.1);
        let at = self.awake() + MS * i64::try_from(delay).unwrap();
        wires.schedule(at, WireEvent::Watch(key, manager, sender));
    }
}

impl Wires {
    fn schedule(&mut self, at: Time, event: WireEvent) {
        let number = self.next;
        self.next += 1;
        self.events.insert((at, number), event);
    }

    /// What a command meets, and until when.
    fn troubles(
        &self,
        manager: usize,
        command: Command,
        items: &[Item],
        awake: Time,
        random: &mut fastrand::Rng,
    ) -> Vec<(Trouble, Time, Option<usize>)> {
        if self.healthy {
            return Vec::new();
        }
        let mut troubles = Vec::new();
        for weather in &self.weather {
            let meets = weather.until > awake
                && weather.manager.is_none_or(|of| of == manager)
                && weather.command.is_none_or(|of| of == command)
                && (weather.key).is_none_or(|key| items.iter().any(|item| item.key == key))
                && random.u64(0..100) < weather.share;
            if meets {
                troubles.push((weather.kind, weather.until, weather.key));
            }
        }
        troubles
    }
}

/// The name of a lease without the random part.
pub fn number(lease: LeaseId) -> u64 {
    let text = lease.to_string();
    let (_, number) = text.rsplit_once(':').unwrap();
    number.parse().unwrap()
}

fn describe_reply(reply: &Reply) -> String {
    let reply = reply.iter().map(|outcome| match outcome {
        Ok(Outcome::Holder(Some((lease, ttl)))) => {
            format!("held by {} for {} ms", number(*lease), ttl / MS)
        }
        outcome => format!("{outcome:?}"),
    });
    reply.collect::<Vec<_>>().join(", ")
}

/// The processes of one simulation.
pub type Managers = Vec<LockManager>;
