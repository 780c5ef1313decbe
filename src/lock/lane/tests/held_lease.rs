//! The holds of one owner.

use super::*;
use crate::lock::lease::valid_until;
use crate::observe::{LostReason, Via};

/// A held lease that began under `terms`, and its clock. The first hold has id 1.
fn held_lease(terms: Terms) -> (HeldLease, Moment) {
    let now = Moment::now();
    let lease = Lease::new(number(1), 100, TOKENS, terms, now);
    (
        HeldLease::begin(&key(), lease, Via::Backend, &claim(1, terms), now),
        now,
    )
}

fn nest(held_lease: &mut HeldLease, claim: &Claim, now: Moment) {
    assert!(matches!(held_lease.nest(claim, now), Some(Ok(_))));
}

fn unnest(held_lease: &mut HeldLease, hold: HoldId, now: Moment) -> bool {
    let grant = Arc::clone(held_lease.grant());
    let holding = held_lease.find(&grant).expect("its own");
    let is_listed = holding.unnest(hold);
    if is_listed {
        held_lease.follow_others(&grant, now);
    }
    is_listed
}

fn limit_hold(held_lease: &mut HeldLease, claim: &Claim, now: Moment) {
    let grant = Arc::clone(held_lease.grant());
    held_lease.limit_hold(&grant, claim, now);
}

/// Renews the lease if that is due by `now`. Returns `true` if it was due.
fn renew(held_lease: &mut HeldLease, now: Moment) -> bool {
    let Some(ttl) = held_lease.lease.start_renewal(now) else {
        return false;
    };
    let renewed = Ok(Renewed::Renewed);
    held_lease.lease.renewal_answered(ttl, now, &renewed, now);
    held_lease.grant().extend(held_lease.lease.valid_until());
    true
}

#[test]
fn renewed_hold_in_fixed_one_lasts_until_dropped() {
    let (mut held_lease, now) = held_lease(FIXED);
    let own_end = held_lease.grant().valid_until();
    nest(&mut held_lease, &again(2, RENEWED), now);
    assert!(renew(&mut held_lease, now));
    let third = now + RENEWED.ttl.get() / 3;
    assert!(renew(&mut held_lease, third), "and again");
    assert_eq!(
        held_lease.grant().valid_until(),
        valid_until(third, RENEWED.ttl)
    );

    unnest(&mut held_lease, 2, third);
    assert_eq!(held_lease.grant().valid_until(), own_end);
    assert_eq!(held_lease.next_check(), own_end, "not renewed any more");
}

#[test]
fn longer_fixed_hold_in_shorter_one_renews_once() {
    let (mut held_lease, now) = held_lease(FIXED);
    let own_end = held_lease.grant().valid_until();
    nest(&mut held_lease, &again(2, fixed(60)), now);
    assert_eq!(held_lease.grant().valid_until(), own_end, "not fetched yet");
    assert!(renew(&mut held_lease, now));
    let end = valid_until(now, Span::new(60 * SECOND));
    assert_eq!(held_lease.grant().valid_until(), end);
    assert_eq!(held_lease.next_check(), end);

    unnest(&mut held_lease, 2, now);
    assert_eq!(held_lease.grant().valid_until(), own_end);
}

#[test]
fn shorter_fixed_hold_in_longer_one_changes_nothing() {
    let (mut held_lease, now) = held_lease(fixed(60));
    let own_end = held_lease.grant().valid_until();
    nest(&mut held_lease, &again(2, FIXED), now);
    assert_eq!(
        (held_lease.grant().valid_until(), held_lease.next_check()),
        (own_end, own_end)
    );
}

#[test]
fn first_hold_dropped_first_leaves_nested_terms() {
    let (mut held_lease, now) = held_lease(RENEWED);
    nest(&mut held_lease, &again(2, FIXED), now);
    unnest(&mut held_lease, 1, now);
    let end = valid_until(now, FIXED.ttl);
    assert_eq!(
        (held_lease.grant().valid_until(), held_lease.next_check()),
        (end, end)
    );

    let (mut held_lease, now) = self::held_lease(FIXED);
    nest(&mut held_lease, &again(2, RENEWED), now);
    unnest(&mut held_lease, 1, now);
    for turn in 1..=6 {
        assert!(renew(&mut held_lease, now + turn * RENEWED.ttl.get() / 3));
    }
}

#[test]
fn hold_nested_after_first_was_dropped_is_counted() {
    let (mut held_lease, now) = held_lease(RENEWED);
    nest(&mut held_lease, &again(2, FIXED), now);
    unnest(&mut held_lease, 1, now);
    nest(&mut held_lease, &again(3, RENEWED), now);
    assert_eq!(held_lease.next_check(), now, "a renewal is due");
    unnest(&mut held_lease, 3, now);
    assert_eq!(
        held_lease.grant().valid_until(),
        valid_until(now, FIXED.ttl)
    );
}

#[test]
fn max_hold_counts_from_limit_hold() {
    let (mut held_lease, now) = held_lease(RENEWED);
    let later = now + 5 * SECOND;
    limit_hold(&mut held_lease, &again(1, limited_by(10 * SECOND)), later);
    assert_eq!(held_lease.grant().valid_until(), now + 15 * SECOND);
    let third = now + RENEWED.ttl.get() / 3;
    assert!(renew(&mut held_lease, third));
    assert_eq!(held_lease.grant().valid_until(), now + 15 * SECOND);
    // A nested hold neither shortens nor removes the limit of the first one.
    nest(&mut held_lease, &again(2, RENEWED), third);
    limit_hold(&mut held_lease, &again(2, limited_by(SECOND)), third);
    assert_eq!(held_lease.grant().valid_until(), now + 15 * SECOND);
    nest(&mut held_lease, &again(3, FIXED), third);
    assert_eq!(held_lease.grant().valid_until(), now + 15 * SECOND);
}

fn limited(seconds: u64) -> Terms {
    limited_by(Duration::from_secs(seconds))
}

fn limited_by(max_hold: Duration) -> Terms {
    Terms {
        max_hold: Span::new(max_hold),
        ..RENEWED
    }
}

#[test]
fn max_hold_ends_with_its_hold() {
    let (mut held_lease, now) = held_lease(limited(1));
    nest(&mut held_lease, &again(2, RENEWED), now);
    assert_eq!(held_lease.grant().valid_until(), now + SECOND);
    unnest(&mut held_lease, 1, now);
    assert_eq!(
        held_lease.grant().valid_until(),
        held_lease.lease.valid_until()
    );
}

#[test]
fn max_hold_of_nested_hold_follows_outer_ones() {
    let (mut held_lease, now) = held_lease(RENEWED);
    nest(&mut held_lease, &again(2, RENEWED), now);
    nest(&mut held_lease, &again(3, limited(2)), now);
    nest(&mut held_lease, &again(4, limited(1)), now);
    unnest(&mut held_lease, 1, now);
    assert_eq!(
        held_lease.grant().valid_until(),
        held_lease.lease.valid_until()
    );
    unnest(&mut held_lease, 2, now);
    assert_eq!(held_lease.grant().valid_until(), now + 2 * SECOND);
    limit_hold(&mut held_lease, &again(4, limited_by(3 * SECOND)), now);
    unnest(&mut held_lease, 3, now);
    assert_eq!(held_lease.grant().valid_until(), now + 3 * SECOND);
    limit_hold(&mut held_lease, &again(4, limited_by(4 * SECOND)), now);
    assert_eq!(held_lease.grant().valid_until(), now + 4 * SECOND);
}

#[test]
fn max_hold_of_group_counts_beside_alike_holds() {
    let (mut held_lease, now) = held_lease(RENEWED);
    nest(&mut held_lease, &again(2, RENEWED), now);
    limit_hold(&mut held_lease, &again(2, limited_by(SECOND)), now);
    assert_eq!(
        held_lease.grant().valid_until(),
        held_lease.lease.valid_until()
    );
    limit_hold(&mut held_lease, &again(1, limited_by(2 * SECOND)), now);
    assert_eq!(held_lease.grant().valid_until(), now + 2 * SECOND);
    unnest(&mut held_lease, 1, now);
    assert_eq!(held_lease.grant().valid_until(), now + SECOND);
}

#[test]
fn max_hold_in_terms_counts_from_grant() {
    let (held_lease, now) = held_lease(limited(1));
    assert_eq!(held_lease.grant().valid_until(), now + SECOND);
    assert_eq!(held_lease.next_check(), now + SECOND);
}

#[test]
fn reason_at_limit_follows_holds() {
    // The limit is that of the longest hold.
    let (mut held_lease, now) = held_lease(limited(1));
    nest(&mut held_lease, &again(2, FIXED), now);
    assert_eq!(held_lease.grant().reason_by_clock(), LostReason::MaxHold);
    // The limit is the end of the longer lease.
    let (mut held_lease, now) = self::held_lease(FIXED);
    nest(&mut held_lease, &again(2, fixed(10)), now);
    assert_eq!(held_lease.grant().reason_by_clock(), LostReason::LeaseEnded);
}

#[test]
fn end_of_alike_hold_changes_nothing() {
    let (mut held_lease, now) = held_lease(limited(1));
    nest(&mut held_lease, &again(2, limited(1)), now);
    assert!(!unnest(&mut held_lease, 2, now));
    nest(&mut held_lease, &again(3, limited(2)), now);
    assert!(unnest(&mut held_lease, 3, now), "a hold with another limit");
}
