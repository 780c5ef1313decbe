//! The messages of the store: hints to subscriptions, and the messages of transfers.

use tower_lock::backend::{Hint, HintSender};

use super::wires::{WireEvent, Wires};
use super::{Environment, number};
use crate::store::Transfer;
use crate::time::{MS, Time};

impl Environment {
    /// Sends what a command of the store has published, and checks the turns that it began.
    pub(super) fn store_changed(&self) {
        let mut store = self.store.lock().unwrap();
        let (published, transfers) = (store.take_published(), store.take_transfers());
        let begun = store.take_begun();
        drop(store);
        for key in published {
            let mut store = self.store.lock().unwrap();
            let (watchers, outside) = (store.senders(key), store.outside(key));
            drop(store);
            for (manager, sender) in watchers {
                self.hint(key, manager, sender);
            }
            for client in outside {
                self.notify_outsider(client);
            }
        }
        for transfer in transfers {
            self.transferred(transfer);
        }
        for begun in begun {
            self.check_turn(begun, self.now());
            self.check_begun(begun, self.now());
            self.check_begun_permit(begun, self.now());
        }
    }

    /// Sends a hint to one subscription, unless messages are lost.
    pub(super) fn hint(&self, key: usize, manager: usize, sender: HintSender) {
        let mut wires = self.wires.lock().unwrap();
        let mut random = self.random(wires.next ^ 1 << 50);
        let at = self.awake() + self.message_delay(&mut random);
        if wires.delivers(self.awake()) {
            wires.schedule(at, WireEvent::Hint(key, manager, sender));
        }
    }

    /// Sends the message of a transfer, unless messages are lost. A second copy may arrive in any case.
    pub(super) fn transferred(&self, transfer: Transfer) {
        let messages = self.plan.messages;
        let mut wires = self.wires.lock().unwrap();
        let mut random = self.random(wires.next ^ 1 << 52);
        let at = self.awake() + self.message_delay(&mut random);
        let mut late = || random.i64(0..=MS * i64::try_from(messages.delay).unwrap());
        let (first, second) = (late(), late());
        let mut comes = |percent| !wires.healthy && random.u64(0..100) < percent;
        let (is_held, is_late) = (comes(messages.held), comes(messages.late));
        let is_repeated = comes(messages.repeated);
        let first = if is_late { at + first } else { at };
        if is_held {
            wires.held.push(transfer);
        } else if wires.delivers(self.awake()) {
            wires.schedule(first, WireEvent::Transfer(transfer));
        }
        if is_repeated {
            wires.schedule(first + second, WireEvent::Transfer(transfer));
        }
    }

    /// Delivers the messages that waited for a reply to this process.
    pub(super) fn let_go(&self, manager: usize, key: usize) {
        let mut wires = self.wires.lock().unwrap();
        let held = std::mem::take(&mut wires.held);
        let (due, held): (Vec<_>, Vec<_>) =
            (held.into_iter()).partition(|it| (it.manager, it.key) == (manager, key));
        wires.held = held;
        let at = self.awake();
        for transfer in due {
            let mut random = self.random(wires.next ^ 1 << 53);
            let late = random.i64(0..50 * MS);
            wires.schedule(at + late, WireEvent::Transfer(transfer));
        }
    }

    pub(super) fn message_delay(&self, random: &mut fastrand::Rng) -> Time {
        let (shortest, longest) = self.plan.delay;
        MS * i64::try_from(random.u64(shortest..=longest)).unwrap()
    }

    pub(super) fn hint_arrives(&self, key: usize, manager: usize, sender: &HintSender) {
        self.trace(|| format!("m{manager} is notified of k{key}"));
        self.seen.lock().unwrap().hinted(manager, key, self.now());
        sender.send(Hint::Released);
    }

    /// Reaches the subscriptions of this moment, which may be later than the transfer.
    pub(super) fn transfer_arrives(&self, transfer: Transfer) {
        let Transfer {
            key,
            lease,
            manager,
        } = transfer;
        let mut store = self.store.lock().unwrap();
        store.notify(key, manager, Hint::transferred(lease));
        drop(store);
        self.trace(|| {
            let lease = number(lease);
            format!("m{manager} is notified of k{key}: lease {lease}")
        });
        self.seen.lock().unwrap().hinted(manager, key, self.now());
    }
}

impl Wires {
    /// Whether messages that are sent now arrive.
    pub(super) fn delivers(&self, awake: Time) -> bool {
        awake >= self.no_hints_until || self.healthy
    }
}
