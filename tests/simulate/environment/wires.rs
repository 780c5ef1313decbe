//! The wires between the processes and the store: delays, losses, and what else a command meets.

use std::collections::BTreeMap;

use tokio::sync::oneshot;
use tower_lock::backend::HintSender;

use super::outsiders::Act;
use super::{Environment, number};
use crate::plan::{Command, Plan, Trouble};
use crate::store::{Item, Outcome, Transfer};
use crate::time::{MS, RESPONSE_TIMEOUT, Time};

/// What a command meets, for as long as it lasts.
#[derive(Debug, Clone)]
pub struct Weather {
    pub from: Time,
    pub until: Time,
    pub manager: Option<usize>,
    pub key: Option<usize>,
    pub command: Option<Command>,
    pub share: u64,
    pub kind: Trouble,
}

#[derive(Default)]
pub(super) struct Wires {
    /// In the order in which they happen, by the time that the machine is awake.
    events: BTreeMap<(Time, u64), WireEvent>,
    pub(super) next: u64,
    /// The latest effect per manager and key: commands do not overtake each other.
    last_effect: BTreeMap<(usize, usize), Time>,
    weather: Vec<Weather>,
    pub(super) no_hints_until: Time,
    /// The messages of transfers that wait for a reply.
    pub(super) held: Vec<Transfer>,
    pub(super) healthy: bool,
}

pub type Reply = Vec<Result<Outcome, Failure>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Refused,
    Unknown,
}

#[derive(Debug)]
pub(super) struct Call {
    number: u64,
    manager: usize,
    command: Command,
    items: Vec<Item>,
    /// Refused by the store, one by one.
    refused: Vec<bool>,
    sent: Time,
    /// Whether it was executed before, and that reply was lost.
    resent: bool,
    reply: Option<oneshot::Sender<Reply>>,
    reply_after: Time,
}

/// The command of a reply.
pub(super) struct Sent {
    number: u64,
    manager: usize,
    /// The first one.
    key: usize,
}

pub(super) enum WireEvent {
    Effect(Call),
    Reply(oneshot::Sender<Reply>, Reply, Sent),
    /// To one subscription of a key by a manager.
    Hint(usize, usize, HintSender),
    Transfer(Transfer),
    Watch(usize, usize, HintSender),
    /// A client outside the queue sent the command.
    Outsider(usize, Act),
}

impl Environment {
    pub fn add_weather(&self, weather: Weather) {
        self.wires.lock().unwrap().weather.push(weather);
    }

    pub fn drop_hints_until(&self, until: Time) {
        let mut wires = self.wires.lock().unwrap();
        wires.no_hints_until = wires.no_hints_until.max(until);
    }

    /// From here on nothing is lost, refused or late. What hangs takes effect now.
    pub fn heal(&self) {
        self.end_outsiders();
        let awake = self.awake();
        let mut wires = self.wires.lock().unwrap();
        wires.healthy = true;
        for ((at, number), event) in std::mem::take(&mut wires.events) {
            let at = match event {
                WireEvent::Effect(_) => at.min(awake),
                _ => at,
            };
            wires.events.insert((at, number), event);
        }
        wires.last_effect.clear();
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
        self.check_repeats(manager, command, &items, now);
        for item in &items {
            self.check_command(manager, command, item, now);
            (self.store.lock().unwrap()).sent(command, item, manager, now);
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
        let mut connects = true;
        let mut again = None;
        for (trouble, until, key) in &troubles {
            match trouble {
                Trouble::RequestLost => arrives = false,
                Trouble::ReplyLost => answered = false,
                Trouble::ReplyLate(late) => reply_after += MS * i64::try_from(*late).unwrap(),
                Trouble::Hung => effect_at = effect_at.max(*until),
                Trouble::Stopped => connects = false,
                Trouble::Twice { after, first } if command.may_repeat() => {
                    again = Some((MS * i64::try_from(*after).unwrap(), *first));
                }
                Trouble::Twice { .. } => {}
                Trouble::Refused => {
                    for (item, refused) in items.iter().zip(&mut refused) {
                        *refused |= key.is_none_or(|key| key == item.key);
                    }
                }
            }
        }
        if connects {
            let lasts = items.iter().map(|item| (manager, item.key));
            let lasts = lasts.filter_map(|key| wires.last_effect.get(&key).copied());
            effect_at = lasts.fold(effect_at, Time::max);
        } else {
            effect_at = awake + there;
            refused.fill(true);
        }
        let again = again.filter(|_| connects);
        // Later commands of this process do not overtake the second execution.
        let last_effect_at = effect_at + again.map_or(0, |(after, _)| after);
        if arrives && connects {
            for item in &items {
                wires
                    .last_effect
                    .insert((manager, item.key), last_effect_at);
            }
        }
        if !troubles.is_empty() || last_effect_at + reply_after >= awake + RESPONSE_TIMEOUT {
            let mut seen = self.seen.lock().unwrap();
            let late = last_effect_at - awake + now;
            seen.trouble(manager, late.max(now + RESPONSE_TIMEOUT));
        }
        self.trace(|| {
            let items = self.describe(&items);
            format!("m{manager} sends #{number} {command:?} {items} {troubles:?}")
        });
        let mut sender = answered.then_some(sender);
        let call = |resent, reply| Call {
            number,
            manager,
            command,
            items: items.clone(),
            refused: refused.clone(),
            sent: now,
            resent,
            reply,
            reply_after,
        };
        if arrives {
            let of_first = again.is_none_or(|(_, first)| first && command.may_repeat_after_reply());
            let reply = sender.take_if(|_| of_first);
            wires.schedule(effect_at, WireEvent::Effect(call(false, reply)));
            if again.is_some() {
                let resent = call(!of_first, sender.take());
                wires.schedule(last_effect_at, WireEvent::Effect(resent));
            }
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
            WireEvent::Outsider(client, act) => self.outsider_acts(client, act),
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
            if call.command == Command::Leave {
                self.leave_turn(call.manager, item);
            }
            let mut store = self.store.lock().unwrap();
            let before = store.holders(item.key, now);
            let mut outcome = store.execute(call.command, item, call.sent, now);
            let after = store.holders(item.key, now);
            drop(store);
            self.check_renewal(call.command, item, &before, &after);
            if call.resent
                && outcome == Outcome::NotHeld
                && let Some(lease) = item.lease
                && matches!(
                    call.command,
                    Command::Release | Command::Leave | Command::Pass
                )
            {
                // Without a lease, a release that was sent before is done.
                outcome = Outcome::Released { watchers: 0 };
                self.store.lock().unwrap().absence_is_release(lease);
            }
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
            self.store_changed();
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
        if (self.store.lock().unwrap()).watch_again(key, manager, &sender) {
            return;
        }
        let mut wires = self.wires.lock().unwrap();
        let mut random = self.random(wires.next ^ 1 << 51);
        let delay = random.u64(self.plan.delay.0..=self.plan.delay.1);
        let at = self.awake() + MS * i64::try_from(delay).unwrap();
        wires.schedule(at, WireEvent::Watch(key, manager, sender));
    }
}

impl Wires {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            no_hints_until: if plan.messages.lost { Time::MAX } else { 0 },
            ..Self::default()
        }
    }

    pub(super) fn schedule(&mut self, at: Time, event: WireEvent) {
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
            let is_buffered = awake < weather.from + RESPONSE_TIMEOUT;
            let kind = match weather.kind {
                Trouble::Stopped if is_buffered => Trouble::Hung,
                kind => kind,
            };
            if meets {
                troubles.push((kind, weather.until, weather.key));
            }
        }
        troubles
    }
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
