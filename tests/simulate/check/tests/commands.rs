//! What is sent to the store.

use std::time::Duration;

use tower_lock::backend::{AcquireRequest, Backend, Contended, Release, Released, Renewal};

use super::{History, assert_finds, assert_finds_in, item, lease};
use crate::environment::Weather;
use crate::plan::{Command, Plan, Trouble};
use crate::tests::plan;
use crate::time::{MS, RESPONSE_TIMEOUT};
use crate::violation::Invariant;
use crate::wire::key;

impl History {
    /// The commands of the next millisecond meet this trouble.
    pub(super) fn trouble(&self, kind: Trouble) {
        let awake = self.environment.awake();
        self.environment.add_weather(Weather {
            from: awake,
            until: awake + MS,
            manager: None,
            key: None,
            command: None,
            share: 100,
            kind,
        });
    }
}

#[tokio::test(start_paused = true)]
async fn checker_finds_renewal_after_release() {
    assert_finds(Invariant::RenewedAfterRelease, async |history, fault| {
        let lease = lease(1, 1);
        (history.send(0, Command::Acquire, item(lease, 1_000))).await;
        if fault {
            (history.send(0, Command::Release, item(lease, 0))).await;
        }
        (history.send(0, Command::Renew, item(lease, 1_000))).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_renewal_after_loss() {
    assert_finds(Invariant::RenewedAfterLoss, async |history, fault| {
        history.renewed_guard(0).await;
        let lease = history.lease();
        if fault {
            history.drop_unseen();
        }
        (history.send(0, Command::Renew, item(lease, 1_000))).await;
    })
    .await;
}

/// A release whose reply is lost is sent again.
#[tokio::test(start_paused = true)]
async fn checker_finds_second_release() {
    assert_finds(Invariant::ReleasedTwice, async |history, fault| {
        let wire = history.wire(0);
        let id = history.renewed_guard(0).await;
        let leases = [Release::new(key(0), history.lease())];
        history.environment.released(id, "is released");
        if !fault {
            history.trouble(Trouble::ReplyLost);
        }
        history.drive(wire.release(&leases)).await;
        history.drive(wire.release(&leases)).await;
    })
    .await;
}

/// A release without a reply is repeated, while another task may read the reply.
#[tokio::test(start_paused = true)]
async fn checker_finds_second_release_before_timeout() {
    assert_finds(Invariant::ReleasedTwice, async |history, fault| {
        let wire = history.wire(0);
        let id = history.renewed_guard(0).await;
        let leases = [Release::new(key(0), history.lease())];
        history.environment.released(id, "is released");
        history.drive(wire.release(&leases)).await;
        {
            let mut store = history.environment.store.lock().unwrap();
            let record = store.records.get_mut(&leases[0].lease).unwrap();
            let before = if fault { 0 } else { RESPONSE_TIMEOUT };
            record.end_sent = record.end_sent.map(|sent| sent - before);
        }
        history.drive(wire.release(&leases)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_storm_of_attempts() {
    assert_finds(Invariant::Bounds, async |history, fault| {
        for number in 0..40 {
            let attempt = item(lease(1, number), 1_000);
            drop((history.environment).send(0, Command::Acquire, vec![attempt]));
            history.advance(if fault { 5 } else { 100 }).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn checker_finds_storm_of_repeats() {
    for command in [Command::Release, Command::Leave, Command::Renew] {
        let plan = Plan {
            queue: true,
            ..plan()
        };
        assert_finds_in(plan, Invariant::Bounds, async |history, fault| {
            let (wire, lease) = (history.wire(0), lease(1, 1));
            let leases = [Release::new(key(0), lease)];
            let renewals = [Renewal::new(key(0), lease, Duration::from_secs(3))];
            for _ in 0..40 {
                history.trouble(Trouble::Refused);
                match command {
                    Command::Release => drop(history.drive(wire.release(&leases)).await),
                    Command::Leave => drop(history.drive(wire.leave(&leases)).await),
                    _ => drop(history.drive(wire.renew(&renewals)).await),
                }
                history.advance(if fault { 5 } else { 100 }).await;
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn release_executed_twice_is_done() {
    for first in [true, false] {
        let history = History::new(plan());
        history.renewed_guard(0).await;
        let leases = [Release::new(key(0), history.lease())];
        history.trouble(Trouble::Twice { after: 5, first });
        let start = history.environment.awake();
        let released = history.drive(history.wire(0).release(&leases)).await;
        assert_eq!(*released[0].as_ref().unwrap(), Released::Released);
        let took = history.environment.awake() - start;
        assert_eq!(took > 5 * MS, !first, "{took} µs");
    }
}

/// The second execution confirms the transfer.
#[tokio::test(start_paused = true)]
async fn contend_executed_twice_is_granted() {
    let plan = Plan {
        queue: true,
        ..plan()
    };
    let history = History::new(plan);
    (history.send(1, Command::Acquire, item(lease(2, 1), 20))).await;
    let request = AcquireRequest::new(key(0), lease(1, 1), Duration::from_secs(3));
    for (first, is_granted) in [(true, false), (false, true)] {
        history.trouble(Trouble::Twice { after: 50, first });
        let contended = history.drive(history.wire(0).contend(&request)).await;
        let contended = contended.unwrap();
        assert_eq!(matches!(contended, Contended::Granted { .. }), is_granted);
    }
}
