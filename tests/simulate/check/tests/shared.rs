//! Shared leases: readers beside writers, joins, tokens, and what the store holds of them.

use tower_lock::ErrorKind;
use tower_lock::backend::{LeaseId, Mode};

use super::{Fault, History, assert_finds, assert_finds_in, item, lease};
use crate::plan::{Acquire, Command, Plan, Wait};
use crate::seen::Largest;
use crate::store::{Begun, How, Item};
use crate::tests::{acquire, plan};
use crate::violation::Invariant;

fn reads() -> Acquire {
    Acquire {
        shared: vec![0],
        ..acquire()
    }
}

fn reads_forever() -> Acquire {
    Acquire {
        wait: Wait::Forever,
        ..reads()
    }
}

fn with_queue() -> Plan {
    Plan {
        queue: true,
        ..plan()
    }
}

fn shared(lease: LeaseId) -> Item {
    Item {
        mode: Mode::Shared,
        ..item(lease, 10_000)
    }
}

impl History {
    async fn reader(&self, manager: usize) -> u64 {
        self.guard(manager, None, &reads()).await
    }

    /// Shows a join of the lease that holds the key, without one.
    fn joins(&self) {
        let environment = &self.environment;
        let id = environment.acquire_starts(0, 0, &reads(), None);
        let waiter = environment.acquire_ends(id, String::new).unwrap();
        let lease = self.lease();
        let mut seen = self.seen();
        let token = seen.guards[0].tokens[0];
        environment.check_join(&mut seen, &waiter, (0, token), lease, environment.now());
    }

    /// Acquires the key shared. The history shows that the largest tokens before were one below that token, or with
    /// the fault the token itself.
    async fn token_after(&self, largest_of: Mode, asked: &Acquire, fault: Fault) {
        let (waiter, guard) = self.acquire(0, None, asked).await;
        let mut largest = Largest::default();
        let token = guard.fencing_token().get();
        largest.raise(largest_of, token - i64::from(!fault));
        self.seen().tokens.insert(0, largest);
        self.granted(&waiter, asked, guard);
    }
}

#[tokio::test(start_paused = true)]
async fn checker_finds_writer_beside_reader() {
    assert_finds(Invariant::Exclusion, async |history, fault| {
        history.reader(0).await;
        if !fault {
            history.reader(1).await;
            return;
        }
        history.free();
        history.renewed_guard(1).await;
        history.environment.check_exclusion(&history.seen());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_shared_token_below_exclusive_one() {
    assert_finds(Invariant::Fencing, async |history, fault| {
        history.token_after(Mode::Exclusive, &reads(), fault).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_exclusive_token_below_shared_one() {
    assert_finds(Invariant::Fencing, async |history, fault| {
        history.token_after(Mode::Shared, &acquire(), fault).await;
    })
    .await;
}

/// The tokens of two shared leases have no order.
#[tokio::test(start_paused = true)]
async fn checker_spares_equal_tokens_of_readers() {
    let history = History::new(plan());
    history.token_after(Mode::Shared, &reads(), true).await;
    history.observe();
    assert!(history.environment.violation().is_none());
}

#[tokio::test(start_paused = true)]
async fn checker_finds_two_tokens_of_one_lease() {
    assert_finds(Invariant::Fencing, async |history, fault| {
        history.reader(0).await;
        history.reader(0).await;
        history.seen().guards[1].tokens[0] += i64::from(fault);
        history.environment.check_exclusion(&history.seen());
        history.seen().guards[1].tokens[0] -= i64::from(fault);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_reader_that_passes_writer() {
    assert_finds_in(with_queue(), Invariant::Joined, async |history, fault| {
        (history.send(0, Command::Acquire, shared(lease(1, 1)))).await;
        let earlier = history.environment.now();
        (history.send(1, Command::Contend, item(lease(2, 1), 10_000))).await;
        let begun = Begun {
            key: 0,
            manager: Some(0),
            transferred: None,
            how: How::Beside,
            mode: Mode::Shared,
            limit: 0,
            held: 2,
            entered: (!fault).then_some(earlier),
        };
        (history.environment).check_begun(begun, history.environment.now());
        (history.send(1, Command::Leave, item(lease(2, 1), 0))).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_join_after_reply_of_writer() {
    assert_finds(Invariant::Joined, async |history, fault| {
        history.reader(0).await;
        let lease = history.lease();
        // A join at the time of the reply may come before it.
        let replied = history.environment.now() - i64::from(fault);
        history.seen().joins.entry(lease).or_default().closed = Some(replied);
        history.joins();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_joins_while_writer_waits() {
    assert_finds_in(with_queue(), Invariant::Joined, async |history, fault| {
        history.reader(0).await;
        (history.send(1, Command::Contend, item(lease(2, 1), 10_000))).await;
        history.advance(200).await;
        history.joins();
        history.advance(if fault { 130 } else { 90 }).await;
        history.joins();
        (history.send(1, Command::Leave, item(lease(2, 1), 0))).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_upgrade_of_owner_without_lock() {
    assert_finds(Invariant::Reentry, async |history, fault| {
        let owner = history.managers[0].new_owner();
        let (environment, reads) = (&history.environment, reads());
        let read = environment.acquire_starts(0, 0, &reads, (!fault).then_some(owner));
        environment.acquire_ends(read, String::new);
        let id = environment.acquire_starts(0, 0, &acquire(), Some(owner));
        let waiter = environment.acquire_ends(id, String::new).unwrap();
        environment.check_refusal(&waiter, ErrorKind::Upgrade);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_upgrade_refused_as_busy() {
    assert_finds(Invariant::Reentry, async |history, fault| {
        history.reader(0).await;
        let owner = history.seen().guards[0].owner;
        let id = (history.environment).acquire_starts(0, 0, &acquire(), Some(owner));
        let waiter = history.environment.acquire_ends(id, String::new).unwrap();
        let kind = match fault {
            true => ErrorKind::Busy,
            false => ErrorKind::Upgrade,
        };
        history.environment.check_refusal(&waiter, kind);
    })
    .await;
}

/// An acquire that starts at the time of the guard, and before it, may not know of it.
#[tokio::test(start_paused = true)]
async fn checker_finds_refusal_after_guard() {
    let permit = Acquire {
        permits: Some(2),
        ..acquire()
    };
    for (asked, kind) in [
        (acquire(), ErrorKind::Busy),
        (permit, ErrorKind::PermitsExhausted),
    ] {
        assert_finds(Invariant::Reentry, async |history, fault| {
            let before = history.seen().id();
            history.reader(0).await;
            let owner = history.seen().guards[0].owner;
            let id = (history.environment).acquire_starts(0, 0, &asked, Some(owner));
            let mut waiter = history.environment.acquire_ends(id, String::new).unwrap();
            waiter.id = if fault { id } else { before };
            history.environment.check_refusal(&waiter, kind);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn checker_finds_upgrade_that_waits() {
    assert_finds(Invariant::Reentry, async |history, fault| {
        history.reader(0).await;
        let owner = history.seen().guards[0].owner;
        let other = history.managers[0].new_owner();
        let owner = if fault { owner } else { other };
        (history.environment).acquire_starts(0, 0, &acquire(), Some(owner));
        history.advance(50).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_guard_of_lease_that_is_gone() {
    assert_finds(Invariant::Loss, async |history, fault| {
        history.reader(0).await;
        history.reader(0).await;
        let lease = history.lease();
        let mut store = history.environment.store.lock().unwrap();
        store.records.get_mut(&lease).unwrap().gone = fault;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_lost_guard_that_is_entered() {
    assert_finds(Invariant::LostEarly, async |history, fault| {
        let (_, guard) = history.acquire(0, Some(100), &reads()).await;
        history.advance(if fault { 200 } else { 10 }).await;
        let owner = Some(guard.owner());
        let id = (history.environment).acquire_starts(0, 0, &reads(), owner);
        let waiter = history.environment.acquire_ends(id, String::new).unwrap();
        history.granted(&waiter, &reads(), guard);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_key_held_after_last_reader() {
    assert_finds(Invariant::Stored, async |history, fault| {
        history.reader(0).await;
        let mut store = history.environment.store.lock().unwrap();
        store.hold_longer(0, 3_000 * i64::from(fault));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_renewal_of_other_reader() {
    assert_finds(Invariant::Stored, async |history, fault| {
        let renewal = shared(lease(1, 1));
        let before = [(lease(1, 1), 100), (lease(2, 1), 100)];
        let after = [(lease(1, 1), 200), (lease(2, 1), 100 + i64::from(fault))];
        (history.environment).check_renewal(Command::Renew, &renewal, &before, &after);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_keep_of_shared_lease() {
    assert_finds(Invariant::Mode, async |history, fault| {
        let mode = if fault { Mode::Shared } else { Mode::Exclusive };
        let lease = Item {
            mode,
            ..item(lease(1, 1), 10_000)
        };
        (history.send(0, Command::Acquire, lease.clone())).await;
        (history.send(0, Command::Pass, lease)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_shared_guard_of_writer() {
    assert_finds(Invariant::Mode, async |history, fault| {
        let (mut waiter, guard) = history.acquire(0, None, &reads()).await;
        if fault {
            waiter.shared.clear();
        }
        history.granted(&waiter, &reads(), guard);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_reader_waiting_beside_readers() {
    assert_finds(Invariant::Progress, async |history, fault| {
        if fault {
            history.reader(1).await;
        } else {
            history.renewed_guard(1).await;
        }
        (history.environment).acquire_starts(0, 0, &reads_forever(), None);
        history.observe();
        history.advance(1_300).await;
    })
    .await;
}

/// A reader that is served can lose the lease by force before it is polled.
#[tokio::test(start_paused = true)]
async fn checker_finds_overtaken_reader_without_force() {
    assert_finds(Invariant::Order, async |history, fault| {
        (history.environment).acquire_starts(0, 0, &reads_forever(), None);
        history.reader(0).await;
        let forced = history.environment.now() - i64::from(fault);
        history.seen().forced.insert(0, forced);
        history.observe();
        history.advance(50).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_overtaken_reader() {
    assert_finds(Invariant::Order, async |history, fault| {
        let first = (history.environment).acquire_starts(0, 0, &reads_forever(), None);
        history.reader(0).await;
        history.observe();
        if !fault {
            history.environment.acquire_ends(first, String::new);
        }
        history.advance(50).await;
    })
    .await;
}
