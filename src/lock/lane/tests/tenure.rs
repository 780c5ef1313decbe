//! The holds of one owner.

use super::*;
use crate::lock::lease::valid_until;
use crate::observe::LostReason;

/// A tenure that began under `terms`, and its clock. The first hold has id 1.
fn tenure(terms: Terms) -> (Tenure, Moment) {
    let now = Moment::now();
    let lease = Lease::new(number(1), 100, TOKENS, terms, now);
    (Tenure::begin(&key(), lease, &claim(1, terms), now), now)
}

/// Renews the lease if that is due by `now`. Returns `true` if it was due.
fn renew(tenure: &mut Tenure, now: Moment) -> bool {
    let Some(ttl) = tenure.lease.start_renewal(now) else {
        return false;
    };
    let renewed = Ok(Renewed::Renewed);
    tenure.lease.renewal_answered(ttl, now, &renewed, now);
    tenure.grant.extend(tenure.lease.valid_until());
    true
}

#[test]
fn renewed_hold_in_fixed_one_lasts_until_dropped() {
    let (mut tenure, now) = tenure(FIXED);
    let own_end = tenure.grant.valid_until();
    tenure.nest(&again(2, RENEWED), now);
    assert!(renew(&mut tenure, now));
    let third = now + RENEWED.ttl.get() / 3;
    assert!(renew(&mut tenure, third), "and again");
    assert_eq!(tenure.grant.valid_until(), valid_until(third, RENEWED.ttl));

    tenure.unnest(2, third);
    assert_eq!(tenure.grant.valid_until(), own_end);
    assert_eq!(tenure.next_look(), own_end, "not renewed any more");
}

#[test]
fn longer_fixed_hold_in_shorter_one_renews_once() {
    let (mut tenure, now) = tenure(FIXED);
    let own_end = tenure.grant.valid_until();
    tenure.nest(&again(2, fixed(60)), now);
    assert_eq!(tenure.grant.valid_until(), own_end, "not fetched yet");
    assert!(renew(&mut tenure, now));
    let end = valid_until(now, Span::new(60 * SECOND));
    assert_eq!(tenure.grant.valid_until(), end);
    assert_eq!(tenure.next_look(), end);

    tenure.unnest(2, now);
    assert_eq!(tenure.grant.valid_until(), own_end);
}

#[test]
fn shorter_fixed_hold_in_longer_one_changes_nothing() {
    let (mut tenure, now) = tenure(fixed(60));
    let own_end = tenure.grant.valid_until();
    tenure.nest(&again(2, FIXED), now);
    assert_eq!(
        (tenure.grant.valid_until(), tenure.next_look()),
        (own_end, own_end)
    );
}

#[test]
fn first_hold_dropped_first_leaves_nested_terms() {
    let (mut tenure, now) = tenure(RENEWED);
    tenure.nest(&again(2, FIXED), now);
    tenure.unnest(1, now);
    let end = valid_until(now, FIXED.ttl);
    assert_eq!((tenure.grant.valid_until(), tenure.next_look()), (end, end));

    let (mut tenure, now) = self::tenure(FIXED);
    tenure.nest(&again(2, RENEWED), now);
    tenure.unnest(1, now);
    for turn in 1..=6 {
        assert!(renew(&mut tenure, now + turn * RENEWED.ttl.get() / 3));
    }
}

#[test]
fn hold_nested_after_first_was_dropped_is_counted() {
    let (mut tenure, now) = tenure(RENEWED);
    tenure.nest(&again(2, FIXED), now);
    tenure.unnest(1, now);
    tenure.nest(&again(3, RENEWED), now);
    assert_eq!(tenure.next_look(), now, "a renewal is due");
    tenure.unnest(3, now);
    assert_eq!(tenure.grant.valid_until(), valid_until(now, FIXED.ttl));
}

#[test]
fn max_hold_counts_from_limit_hold() {
    let (mut tenure, now) = tenure(RENEWED);
    let later = now + 5 * SECOND;
    tenure.limit_hold(1, Span::new(10 * SECOND), later);
    assert_eq!(tenure.grant.valid_until(), now + 15 * SECOND);
    let third = now + RENEWED.ttl.get() / 3;
    assert!(renew(&mut tenure, third));
    assert_eq!(tenure.grant.valid_until(), now + 15 * SECOND);
    // A nested hold neither shortens nor removes the limit of the first one.
    tenure.nest(&again(2, RENEWED), third);
    tenure.limit_hold(2, Span::new(SECOND), third);
    assert_eq!(tenure.grant.valid_until(), now + 15 * SECOND);
    tenure.nest(&again(3, FIXED), third);
    assert_eq!(tenure.grant.valid_until(), now + 15 * SECOND);
}

fn limited(seconds: u64) -> Terms {
    Terms {
        max_hold: Span::new(Duration::from_secs(seconds)),
        ..RENEWED
    }
}

#[test]
fn max_hold_ends_with_its_hold() {
    let (mut tenure, now) = tenure(limited(1));
    tenure.nest(&again(2, RENEWED), now);
    assert_eq!(tenure.grant.valid_until(), now + SECOND);
    tenure.unnest(1, now);
    assert_eq!(tenure.grant.valid_until(), tenure.lease.valid_until());
}

#[test]
fn max_hold_of_nested_hold_follows_outer_ones() {
    let (mut tenure, now) = tenure(RENEWED);
    tenure.nest(&again(2, RENEWED), now);
    tenure.nest(&again(3, limited(2)), now);
    tenure.nest(&again(4, limited(1)), now);
    tenure.unnest(1, now);
    assert_eq!(tenure.grant.valid_until(), tenure.lease.valid_until());
    tenure.unnest(2, now);
    assert_eq!(tenure.grant.valid_until(), now + 2 * SECOND);
    tenure.limit_hold(4, Span::new(3 * SECOND), now);
    tenure.unnest(3, now);
    assert_eq!(tenure.grant.valid_until(), now + 3 * SECOND);
    tenure.limit_hold(4, Span::new(4 * SECOND), now);
    assert_eq!(tenure.grant.valid_until(), now + 4 * SECOND);
}

#[test]
fn max_hold_of_group_counts_beside_alike_holds() {
    let (mut tenure, now) = tenure(RENEWED);
    tenure.nest(&again(2, RENEWED), now);
    tenure.limit_hold(2, Span::new(SECOND), now);
    assert_eq!(tenure.grant.valid_until(), tenure.lease.valid_until());
    tenure.limit_hold(1, Span::new(2 * SECOND), now);
    assert_eq!(tenure.grant.valid_until(), now + 2 * SECOND);
    tenure.unnest(1, now);
    assert_eq!(tenure.grant.valid_until(), now + SECOND);
}

#[test]
fn max_hold_in_terms_counts_from_grant() {
    let (tenure, now) = tenure(limited(1));
    assert_eq!(tenure.grant.valid_until(), now + SECOND);
    assert_eq!(tenure.next_look(), now + SECOND);
}

#[test]
fn reason_at_limit_follows_holds() {
    // The limit is that of the longest hold.
    let (mut tenure, now) = tenure(limited(1));
    tenure.nest(&again(2, FIXED), now);
    assert_eq!(tenure.grant.reason_by_clock(), LostReason::MaxHold);
    // The limit is the end of the longer lease.
    let (mut tenure, now) = self::tenure(FIXED);
    tenure.nest(&again(2, fixed(10)), now);
    assert_eq!(tenure.grant.reason_by_clock(), LostReason::LeaseEnded);
}

#[test]
fn end_of_alike_hold_changes_nothing() {
    let (mut tenure, now) = tenure(limited(1));
    tenure.nest(&again(2, limited(1)), now);
    assert!(!tenure.unnest(2, now));
    tenure.nest(&again(3, limited(2)), now);
    assert!(tenure.unnest(3, now), "a hold with another limit");
}
