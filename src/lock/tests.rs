//! Helpers of the engine's unit tests.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};
use uuid::Uuid;

use super::attempt::Answer;
use super::claim::{Claim, ClaimOwner, Deadline, HoldId, Terms, Ticket};
use super::clock::{Moment, Span};
use super::effect::{Effects, Report, Wakeup, Work};
use super::grant::Grant;
use super::lane::{Release, Waiter};
use super::lease::LeaseNumber;
use crate::backend::{LeaseId, Renewal};
use crate::task::RuntimeId;
use crate::{LockKey, Owner};

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
pub(super) const TOKENS: u32 = 256;

pub(super) const RENEWED: Terms = Terms {
    ttl: Span::new(Duration::from_secs(30)),
    renewed: true,
    max_hold: Span::FOREVER,
};
/// Terms whose renewal is due before the hand-off budget ends.
pub(super) const SHORT: Terms = Terms {
    ttl: Span::new(Duration::from_millis(120)),
    ..RENEWED
};
pub(super) const FIXED: Terms = fixed(20);

pub(super) const fn fixed(seconds: u64) -> Terms {
    Terms {
        ttl: Span::new(Duration::from_secs(seconds)),
        renewed: false,
        max_hold: Span::FOREVER,
    }
}

/// Two runtimes that run no tasks, in which acquires are made.
static RUNTIMES: LazyLock<[Runtime; 2]> = LazyLock::new(|| {
    let runtime = || Builder::new_current_thread().build().expect("a runtime");
    [runtime(), runtime()]
});

/// The runtime of most acquires.
pub(super) fn here() -> RuntimeId {
    RuntimeId::Tokio(RUNTIMES[0].handle().id())
}

/// Another runtime.
pub(super) fn elsewhere() -> RuntimeId {
    RuntimeId::Tokio(RUNTIMES[1].handle().id())
}

pub(super) fn key() -> LockKey {
    LockKey::new("k")
}

pub(super) fn id(lease: u64) -> LeaseId {
    LeaseId::new(Uuid::from_u128(1), lease)
}

pub(super) fn number(lease: u64) -> LeaseNumber {
    LeaseNumber::of(id(lease))
}

pub(super) fn renewal(lease: u64, ttl: Duration) -> Renewal {
    Renewal::new(key(), id(lease), ttl)
}

/// Returns a claim without a deadline. Each ticket has its own owner.
pub(super) fn claim(ticket: Ticket, terms: Terms) -> Claim {
    Claim {
        ticket,
        hold: ticket,
        owner: ClaimOwner::Named(Owner::new(Uuid::from_u128(2), ticket)),
        terms,
        deadline: Deadline::Endless,
        grouped: false,
        home: here(),
    }
}

pub(super) fn from_elsewhere(claim: Claim) -> Claim {
    Claim {
        home: elsewhere(),
        ..claim
    }
}

pub(super) fn waiter(claim: Claim) -> (Waiter, Answer) {
    let seats = Arc::new(Semaphore::new(1));
    let (reply, answer) = oneshot::channel();
    let waiter = Waiter {
        claim,
        reply,
        _seat: seats.try_acquire_owned().expect("a seat"),
    };
    (waiter, answer)
}

/// Returns the grant that must be the only effect.
#[track_caller]
pub(super) fn granted(effects: Effects) -> Arc<Grant> {
    let Effects {
        mut grants,
        rejections,
        losses,
        reports: _,
        deadlines: _,
        work,
    } = effects;
    assert!(rejections.is_empty() && losses.is_empty() && work.is_empty());
    assert_eq!(grants.len(), 1);
    grants.remove(0).given.grant
}

/// Returns the only work.
#[track_caller]
pub(super) fn work(effects: &mut Effects) -> Work {
    assert_eq!(effects.work.len(), 1, "{effects:?}");
    effects.work.remove(0)
}

/// Asserts that the only work is an acquire loop in this runtime.
#[track_caller]
pub(super) fn contends(effects: &mut Effects, in_home: RuntimeId) -> Wakeup {
    match work(effects) {
        Work::Contend { home, wakeup, .. } if home == in_home => wakeup,
        other => panic!("{other:?}"),
    }
}

/// Asserts that the only work is a return from this runtime.
#[track_caller]
pub(super) fn returns(effects: &mut Effects, in_home: RuntimeId) {
    match work(effects) {
        Work::Return(home) if home == in_home => {}
        other => panic!("{other:?}"),
    }
}

/// Returns the release of a hold by a caller in `home`.
pub(super) fn release(
    hold: HoldId,
    report: Option<Report>,
    home: Option<RuntimeId>,
    now: Moment,
) -> Release {
    Release {
        hold,
        report,
        home,
        now,
    }
}
