//! The order of the processes at the store, and the length of their turns.

use tower_lock::backend::{Backend, LeaseId, Release};

use super::{Fault, History, assert_finds, assert_finds_in, item, lease};
use crate::plan::{Command, Outsider, Plan};
use crate::store::Item;
use crate::tests::{acquire, plan};
use crate::time::{MS, Time};
use crate::violation::Invariant;
use crate::wire::key;

fn with_queue() -> Plan {
    Plan {
        queue: true,
        ..plan()
    }
}

/// A lease of a process without a subscription.
fn polls(lease: LeaseId) -> Item {
    Item {
        listens: false,
        ..item(lease, 3_000)
    }
}

impl History {
    /// Lets process 0 release the key and wait, and process 1 have its turn. With the fault, process 1 has two places.
    async fn take_turn(&self, fault: Fault) {
        self.queue_twice(fault).await;
        (self.send(0, Command::Contend, polls(lease(1, 2)))).await;
        // Until the next attempt is due.
        self.advance(10).await;
        (self.send(0, Command::Release, item(lease(1, 1), 0))).await;
        self.use_turn();
        (self.send(1, Command::Release, item(lease(2, 1), 0))).await;
    }

    /// Lets process 1 use the turn of its lease for a guard.
    fn use_turn(&self) {
        let mut store = self.environment.store.lock().unwrap();
        let record = store.records.get_mut(&lease(2, 1));
        record.expect("a lease").granted = true;
    }

    /// Lets process 1 enter the queue, with the fault twice.
    async fn queue_twice(&self, fault: Fault) {
        for number in 1..2 + u64::from(fault) {
            (self.send(1, Command::Contend, polls(lease(2, number)))).await;
        }
    }

    /// Lets a client outside the queue listen.
    fn listen_outside(&self) {
        let mut store = self.environment.store.lock().unwrap();
        let now = self.environment.now();
        assert!(store.attempt_outside(0, 0, lease(0, 1), now).is_some());
    }

    /// Hands a lease off to a waiter of process 0, 3 ms after it was granted. The history may show another begin of
    /// the turn.
    async fn hand_off(&self, show: impl FnOnce(LeaseId)) {
        let asked = acquire();
        self.advance(100).await;
        let first = self.renewed_guard(0).await;
        let waiter = self.environment.acquire_starts(0, 0, &asked, None);
        let mut next = Box::pin(self.managers[0].acquire(key(0)).into_future());
        assert!(futures_util::poll!(&mut next).is_pending());
        show(self.lease());
        self.advance(3).await;
        self.environment.released(first, "is released");
        self.drop_unseen();
        let guard = self.drive(next).await.unwrap();
        let waiter = self.environment.acquire_ends(waiter, String::new).unwrap();
        self.granted(&waiter, &asked, guard);
    }
}

#[tokio::test(start_paused = true)]
async fn checker_finds_overtaken_process() {
    assert_finds_in(with_queue(), Invariant::Order, async |history, fault| {
        (history.send(0, Command::Acquire, item(lease(1, 1), 60_000))).await;
        history.take_turn(fault).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_overtaken_client_outside() {
    assert_finds_in(with_queue(), Invariant::Order, async |history, fault| {
        (history.send(0, Command::Acquire, item(lease(1, 1), 60_000))).await;
        history.listen_outside();
        history.queue_twice(fault).await;
        (history.send(0, Command::Release, item(lease(1, 1), 0))).await;
        history.use_turn();
        (history.send(1, Command::Release, item(lease(2, 1), 0))).await;
    })
    .await;
}

/// A process that is passed over between two of its attempts counts from the next turn on.
#[tokio::test(start_paused = true)]
async fn checker_spares_turn_beside_sleeping_process() {
    assert_finds_in(with_queue(), Invariant::Order, async |history, fault| {
        (history.send(0, Command::Acquire, item(lease(1, 1), 60_000))).await;
        for number in 1..30 {
            (history.send(1, Command::Contend, polls(lease(2, number)))).await;
        }
        (history.send(0, Command::Contend, polls(lease(1, 2)))).await;
        history.advance(100).await;
        (history.send(0, Command::Release, item(lease(1, 1), 0))).await;
        // Its next attempt is later than from a place that is closer to the front.
        (history.send(0, Command::Contend, polls(lease(1, 2)))).await;
        for number in 3..30 {
            (history.send(1, Command::Leave, item(lease(2, number), 0))).await;
        }
        if fault {
            (history.send(0, Command::Contend, polls(lease(1, 2)))).await;
            history.advance(10).await;
        }
        history.use_turn();
        (history.send(1, Command::Release, item(lease(2, 1), 0))).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_acquire_in_turn_of_others() {
    let outsider = Outsider {
        key: 0,
        start: 0,
        holds: 1,
        hold: 1_000,
        pause: 0,
    };
    let plan = Plan {
        outsiders: vec![outsider],
        ..with_queue()
    };
    assert_finds_in(plan, Invariant::Order, async |history, fault| {
        let wire = history.wire(0);
        let id = history.renewed_guard(0).await;
        history.listen_outside();
        let leases = [Release::new(key(0), history.lease())];
        history.environment.released(id, "is released");
        history.drive(wire.release(&leases)).await;
        let command = match fault {
            true => Command::Acquire,
            false => Command::Contend,
        };
        (history.send(0, command, item(lease(1, 1), 1_000))).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_hand_off_after_turn() {
    assert_finds(Invariant::Turn, async |history, fault| {
        let hand_off = history.hand_off(|lease| {
            let mut store = history.environment.store.lock().unwrap();
            let earlier: Time = if fault { 60 } else { 40 };
            store.decided(lease, history.environment.now() - earlier * MS);
        });
        hand_off.await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_hand_off_beyond_waiters() {
    assert_finds(Invariant::Turn, async |history, fault| {
        let hand_off = history.hand_off(|lease| {
            let tokens = if fault { 1 } else { 2 };
            let now = history.environment.now();
            history.seen().turn_begins(lease, tokens, now);
        });
        hand_off.await;
    })
    .await;
}
