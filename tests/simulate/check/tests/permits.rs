//! Permits: their limits, their order, the room that they leave, and the other modes of their owners.

use tower_lock::ErrorKind;
use tower_lock::backend::{LeaseId, Mode};

use super::{Fault, History, assert_finds, assert_finds_in, item, lease};
use crate::plan::{Acquire, Command, Plan, Wait};
use crate::store::{Begun, How, Item};
use crate::tests::{acquire, plan};
use crate::violation::Invariant;

fn asks(limit: u16) -> Acquire {
    Acquire {
        permits: Some(limit),
        wait: Wait::Forever,
        ..acquire()
    }
}

fn permit(lease: LeaseId, limit: usize) -> Item {
    Item {
        mode: Mode::Permit,
        limit,
        ..item(lease, 10_000)
    }
}

const BEGUN: Begun = Begun {
    key: 0,
    manager: Some(0),
    transferred: None,
    how: How::Beside,
    mode: Mode::Permit,
    limit: 2,
    held: 2,
    entered: None,
};

impl History {
    async fn permit(&self, manager: usize, limit: u16) -> u64 {
        self.guard(manager, None, &asks(limit)).await
    }

    fn begins(&self, begun: Begun) {
        let environment = &self.environment;
        environment.check_begun_permit(begun, environment.now());
    }

    /// Shows the rejection of an acquire whose owner has the first guard.
    fn rejects(&self, asked: &Acquire, kind: ErrorKind) {
        let owner = self.seen().guards[0].owner;
        let id = self.environment.acquire_starts(0, 0, asked, Some(owner));
        let waiter = self.environment.acquire_ends(id, String::new).unwrap();
        self.environment.check_refusal(&waiter, kind);
    }
}

#[tokio::test(start_paused = true)]
async fn checker_finds_permit_above_limit() {
    assert_finds(Invariant::Permits, async |history, fault| {
        history.permit(0, 2).await;
        history.permit(1, 2).await;
        let held = 2 + usize::from(fault);
        history.begins(Begun { held, ..BEGUN });
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_permit_beside_exclusive_lock() {
    assert_finds(Invariant::Exclusion, async |history, fault| {
        history.permit(0, 2).await;
        if !fault {
            history.permit(1, 2).await;
            return;
        }
        history.free();
        history.renewed_guard(1).await;
        history.environment.check_exclusion(&history.seen());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_permit_that_passes_waiter() {
    let plan = Plan {
        queue: true,
        ..plan()
    };
    assert_finds_in(plan, Invariant::Permits, async |history, fault| {
        (history.send(0, Command::Acquire, permit(lease(1, 1), 1))).await;
        let earlier = history.environment.now();
        (history.send(1, Command::Contend, permit(lease(2, 1), 1))).await;
        history.begins(Begun {
            entered: (!fault).then_some(earlier),
            ..BEGUN
        });
        (history.send(1, Command::Leave, item(lease(2, 1), 0))).await;
    })
    .await;
}

/// Two are held, below the limit of the lease, but not below that of the owner that receives it.
#[tokio::test(start_paused = true)]
async fn checker_finds_permit_of_smaller_limit() {
    assert_finds(Invariant::Permits, async |history, fault: Fault| {
        history.permit(1, 2).await;
        let (mut waiter, guard) = history.acquire(0, None, &asks(3)).await;
        waiter.permits = Some(if fault { 1 } else { 3 });
        history.granted(&waiter, &asks(3), guard);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_waiter_beside_free_permit() {
    assert_finds(Invariant::Progress, async |history, fault| {
        history.permit(1, 2).await;
        let limit = if fault { 2 } else { 1 };
        (history.environment).acquire_starts(0, 0, &asks(limit), None);
        history.observe();
        history.advance(1_300).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_upgrade_of_permit_that_waits() {
    assert_finds(Invariant::Reentry, async |history, fault| {
        history.permit(0, 2).await;
        let owner = history.seen().guards[0].owner;
        let other = history.managers[0].new_owner();
        let owner = if fault { owner } else { other };
        history.advance(1).await;
        (history.environment).acquire_starts(0, 0, &acquire(), Some(owner));
        history.advance(50).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_permit_refused_to_reader_as_full() {
    assert_finds(Invariant::Reentry, async |history, fault| {
        let reads = Acquire {
            shared: vec![0],
            ..acquire()
        };
        history.guard(0, None, &reads).await;
        let kind = if fault {
            ErrorKind::PermitsExhausted
        } else {
            ErrorKind::KeyConflict
        };
        history.rejects(&asks(2), kind);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_full_key_of_lock() {
    assert_finds(Invariant::Mode, async |history, fault| {
        history.renewed_guard(0).await;
        let kind = if fault {
            ErrorKind::PermitsExhausted
        } else {
            ErrorKind::Busy
        };
        history.rejects(&acquire(), kind);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_guard_of_other_mode_than_permit() {
    assert_finds(Invariant::Mode, async |history, fault| {
        let (mut waiter, guard) = history.acquire(0, None, &asks(2)).await;
        if fault {
            waiter.permits = None;
        }
        history.granted(&waiter, &asks(2), guard);
    })
    .await;
}
