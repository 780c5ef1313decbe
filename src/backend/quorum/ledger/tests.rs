use std::time::Duration;

use uuid::Uuid;

use super::*;

impl Ledger {
    pub(in crate::backend::quorum) fn len(&self) -> usize {
        self.leases.len()
    }

    fn sweep_at_next_open(&mut self) {
        self.sweep_at = 0;
    }
}

#[test]
fn earlier_reply_keeps_claim_of_repeated_attempt() {
    let ledger = Ledger::new(2);
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
    let until = Instant::now() + Duration::from_secs(60);
    ledger.lock().open(&key, lease, until);
    for node in 0..2 {
        drop(Ledger::claim(&ledger, node, &key, lease).expect("not claimed"));
    }
    let (mut claims, out) = Ledger::disown(&ledger, &key, lease);
    assert_eq!((claims.len(), out), (2, 0));
    let slow = claims.pop().expect("two");
    claims.pop().expect("two").out();
    ledger.lock().open(&key, lease, until);
    slow.out();
    for node in 0..2 {
        Ledger::claim(&ledger, node, &key, lease)
            .expect("not claimed")
            .out();
    }
    let (claims, out) = Ledger::disown(&ledger, &key, lease);
    assert_eq!((claims.len(), out), (0, 2));
    assert!(ledger.lock().is_out(&key, lease));
}

#[test]
fn expired_lease_with_vote_in_flight_is_kept() {
    let ledger = Ledger::new(1);
    let (key, other) = (LockKey::new("k"), LockKey::new("other"));
    let lease = LeaseId::new(Uuid::from_u128(1), 1);
    let now = Instant::now();
    ledger.lock().open(&key, lease, now);
    let vote = Ledger::claim(&ledger, 0, &key, lease).expect("not claimed");
    Ledger::disown(&ledger, &key, lease);
    ledger.lock().sweep_at_next_open();
    ledger.lock().open(&other, lease, now);
    assert!(!ledger.lock().is_out(&key, lease));
    assert!(vote.granted(now + Duration::from_secs(60)));
    let release = Ledger::owed(&ledger, 0, 1).pop();
    release.expect("the lease must be released").out();
    assert!(ledger.lock().is_out(&key, lease));
    ledger.lock().sweep_at_next_open();
    ledger.lock().open(&key, lease, now);
    assert!(ledger.lock().is_out(&other, lease), "expired");
}

/// Their runtimes have ended, so no task sends them.
#[tokio::test(start_paused = true)]
async fn expired_releases_do_not_make_node_full() {
    let ledger = Ledger::new(1);
    let key = LockKey::new("k");
    let until = Instant::now() + Duration::from_millis(1);
    for number in 0..FULL as u64 {
        let lease = LeaseId::new(Uuid::from_u128(1), number);
        ledger.lock().open(&key, lease, until);
        drop(Ledger::claim(&ledger, 0, &key, lease));
        drop(Ledger::disown(&ledger, &key, lease));
    }
    assert!(ledger.lock().owes(0) >= FULL);
    tokio::time::advance(Duration::from_millis(2)).await;
    assert!(ledger.lock().owes(0) < FULL && ledger.lock().len() == 0);
}

#[tokio::test(start_paused = true)]
async fn release_takes_over_stalled_claims() {
    let ledger = Ledger::new(1);
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
    let until = Instant::now() + Duration::from_secs(60);
    ledger.lock().open(&key, lease, until);
    let vote = Ledger::claim(&ledger, 0, &key, lease).expect("not claimed");
    let release = || Ledger::disown(&ledger, &key, lease).0.pop();
    assert!(release().is_none(), "the vote's sender releases it");
    tokio::time::advance(STALLED).await;
    let first = release().expect("taken over");
    assert!(release().is_none(), "the release is in flight");
    tokio::time::advance(STALLED).await;
    let second = release().expect("taken over");
    // The reply to the first release says nothing about the second.
    first.out();
    assert!(!ledger.lock().is_out(&key, lease));
    second.out();
    assert!(ledger.lock().is_out(&key, lease));
    vote.granted(until);
    let third = Ledger::owed(&ledger, 0, 1).pop();
    third.expect("the lease of the late vote is released").out();
    assert!(ledger.lock().is_out(&key, lease));
}

#[tokio::test(start_paused = true)]
async fn late_vote_is_released_after_release_in_flight() {
    let ledger = Ledger::new(1);
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
    let until = Instant::now() + Duration::from_secs(60);
    ledger.lock().open(&key, lease, until);
    let vote = Ledger::claim(&ledger, 0, &key, lease).expect("not claimed");
    tokio::time::advance(STALLED).await;
    let release = Ledger::disown(&ledger, &key, lease).0.pop();
    vote.granted(until);
    let another = Ledger::owed(&ledger, 0, 1).pop().expect("granted later");
    // The release may have overtaken the vote.
    release.expect("taken over").out();
    assert!(!ledger.lock().is_out(&key, lease));
    another.out();
    assert!(ledger.lock().is_out(&key, lease));
}

#[tokio::test(start_paused = true)]
async fn late_vote_of_repeated_attempt_is_kept() {
    late_vote_is_kept(true).await;
    late_vote_is_kept(false).await;
}

async fn late_vote_is_kept(release_first: bool) {
    let ledger = Ledger::new(1);
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
    let until = Instant::now() + Duration::from_secs(60);
    ledger.lock().open(&key, lease, until);
    let vote = Ledger::claim(&ledger, 0, &key, lease).expect("not claimed");
    tokio::time::advance(STALLED).await;
    let release = Ledger::disown(&ledger, &key, lease).0.pop();
    ledger.lock().open(&key, lease, until);
    // The replies may arrive in any order.
    let release = release.expect("taken over");
    if release_first {
        release.out();
        vote.granted(until);
    } else {
        vote.granted(until);
        release.out();
    }
    assert_eq!(ledger.lock().owes(0), 0, "wanted again");
    assert_eq!(
        Ledger::disown(&ledger, &key, lease).0.len(),
        1,
        "still there"
    );
}

#[test]
fn sweep_keeps_unexpired_leases() {
    let ledger = Ledger::new(1);
    let lease = LeaseId::new(Uuid::from_u128(1), 1);
    let now = Instant::now();
    let until = now + Duration::from_secs(60);
    for nth in 0..40 {
        let key = LockKey::new(format!("k{nth}"));
        ledger.lock().open(&key, lease, until);
    }
    let key = LockKey::new("k0");
    let claim = Ledger::claim(&ledger, 0, &key, lease).expect("not claimed");
    drop(claim);
    ledger.lock().sweep_at_next_open();
    ledger.lock().open(&LockKey::new("other"), lease, now);
    assert!(!ledger.lock().is_out(&key, lease));
    // The next sweep is due when as many entries were added.
    assert_eq!(ledger.lock().sweep_at, 80);
}

#[tokio::test(start_paused = true)]
async fn prolonged_lease_is_owed_until_later_end() {
    let ledger = Ledger::new(1);
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    ledger.lock().open(&key, lease, now + 2 * second);
    drop(Ledger::claim(&ledger, 0, &key, lease).expect("not claimed"));
    assert_eq!(ledger.lock().owes(0), 0, "wanted");
    drop(Ledger::disown(&ledger, &key, lease));
    for until in [3, 1] {
        ledger.lock().prolong(&key, lease, now + until * second);
    }
    tokio::time::advance(2 * second).await;
    assert_eq!(Ledger::owed(&ledger, 0, 9).len(), 1);
    tokio::time::advance(second).await;
    assert!(ledger.lock().owes(0) == 0 && Ledger::owed(&ledger, 0, 9).is_empty());
}

#[test]
fn owed_release_has_one_sender() {
    let ledger = Ledger::new(1);
    let lease = LeaseId::new(Uuid::from_u128(1), 1);
    let until = Instant::now() + Duration::from_secs(60);
    for key in ["a", "b", "c"].map(LockKey::new) {
        ledger.lock().open(&key, lease, until);
        drop(Ledger::claim(&ledger, 0, &key, lease).expect("not claimed"));
        drop(Ledger::disown(&ledger, &key, lease));
    }
    let (first, rest) = (Ledger::owed(&ledger, 0, 2), Ledger::owed(&ledger, 0, 2));
    assert_eq!((first.len(), rest.len()), (2, 1));
    assert_eq!(ledger.lock().owes(0), 0, "all are sent");
    for claim in first {
        claim.out();
    }
    drop(rest);
    assert_eq!(Ledger::owed(&ledger, 0, 2).len(), 1, "not confirmed");
    assert_eq!(ledger.lock().len(), 1, "not confirmed");
}

/// A process may hold many leases, and a task asks for owed releases up to 20 times a second.
#[test]
fn owed_releases_are_found_among_many_leases() {
    let ledger = Ledger::new(3);
    let lease = LeaseId::new(Uuid::from_u128(1), 1);
    let until = Instant::now() + Duration::from_secs(600);
    for nth in 0..100_000 {
        let key = LockKey::new(format!("k{nth}"));
        ledger.lock().open(&key, lease, until);
        drop(Ledger::claim(&ledger, 0, &key, lease).expect("not claimed"));
    }
    drop(Ledger::disown(&ledger, &LockKey::new("k50000"), lease));
    let began = Instant::now();
    for _ in 0..1_000 {
        assert!(ledger.lock().owes(1) == 0 && ledger.lock().owes(0) == 1);
        assert_eq!(Ledger::owed(&ledger, 0, 100).len(), 1);
    }
    let took = began.elapsed();
    // A search of all leases would take at least 1 ms each time.
    assert!(took < Duration::from_millis(500), "{took:?}");
}

/// A release is sent again by its caller or a task, and fails each time.
#[test]
fn release_that_fails_again_is_owed_once() {
    let ledger = Ledger::new(1);
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
    ledger
        .lock()
        .open(&key, lease, Instant::now() + Duration::from_secs(60));
    drop(Ledger::claim(&ledger, 0, &key, lease).expect("not claimed"));
    for _ in 0..3 {
        drop(Ledger::disown(&ledger, &key, lease));
        assert_eq!(Ledger::owed(&ledger, 0, 9).len(), 1);
    }
    assert_eq!(ledger.lock().owed[0].len(), 1);
    Ledger::disown(&ledger, &key, lease)
        .0
        .pop()
        .expect("one")
        .out();
    assert!(ledger.lock().owes(0) == 0 && ledger.lock().owed[0].is_empty());
}

/// A slow node votes after the release of each lease, and the release at it is sent then.
#[test]
fn late_votes_that_are_released_leave_nothing() {
    let ledger = Ledger::new(1);
    let lease = LeaseId::new(Uuid::from_u128(1), 1);
    let until = Instant::now() + Duration::from_secs(60);
    for nth in 0..100 {
        let key = LockKey::new(format!("k{nth}"));
        ledger.lock().open(&key, lease, until);
        let vote = Ledger::claim(&ledger, 0, &key, lease).expect("not claimed");
        assert!(Ledger::disown(&ledger, &key, lease).0.is_empty());
        vote.granted(until);
        let late = Ledger::owed(&ledger, 0, 1).pop();
        late.expect("granted late").out();
    }
    assert_eq!(ledger.lock().len(), 0);
    assert!(ledger.lock().owed[0].is_empty());
}

#[test]
fn command_without_effect_leaves_node_unchanged() {
    let ledger = Ledger::new(1);
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::from_u128(1), 1));
    let claim = || Ledger::claim(&ledger, 0, &key, lease).expect("not claimed");
    ledger
        .lock()
        .open(&key, lease, Instant::now() + Duration::from_secs(60));
    claim().unchanged();
    assert_eq!(Ledger::disown(&ledger, &key, lease).1, 1, "out");
    ledger
        .lock()
        .open(&key, lease, Instant::now() + Duration::from_secs(60));
    // The node may have granted the lease.
    drop(claim());
    claim().unchanged();
    assert_eq!(
        Ledger::disown(&ledger, &key, lease).0.len(),
        1,
        "still there"
    );
}
