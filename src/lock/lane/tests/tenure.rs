//! The holds of one owner.

use super::*;
use crate::lock::lease::valid_until;
use crate::observe::{LostReason, Via};

/// A tenure that began under `terms`, and its clock. The first hold has id 1.
fn tenure(terms: Terms) -> (Tenure, Moment) {
    let now = Moment::now();
    let lease = Lease::new(number(1), 100, TOKENS, terms, now);
    (
        Tenure::begin(&key(), lease, Via::Backend, &claim(1, terms), now),
        now,
    )
}

fn nest(tenure: &mut Tenure, claim: &Claim, now: Moment) {
    assert!(matches!(tenure.nest(claim, now), Some(Ok(_))));
}

fn unnest(tenure: &mut Tenure, hold: HoldId, now: Moment) -> bool {
    let grant = Arc::clone(tenure.grant());
    tenure.unnest(&grant, hold, now)
}

fn limit_hold(tenure: &mut Tenure, claim: &Claim, now: Moment) {
    let grant = Arc::clone(tenure.grant());
    tenure.limit_hold(&grant, claim, now);
}

/// Renews the lease if that is due by `now`. Returns `true` if it was due.
fn renew(tenure: &mut Tenure, now: Moment) -> bool {
    let Some(ttl) = tenure.lease.start_renewal(now) else {
        return false;
    };
    let renewed = Ok(Renewed::Renewed);
    tenure.lease.renewal_answered(ttl, now, &renewed, now);
    tenure.grant().extend(tenure.lease.valid_until());
    true
}

#[test]
fn renewed_hold_in_fixed_one_lasts_until_dropped() {
    let (mut tenure, now) = tenure(FIXED);
    let own_end = tenure.grant().valid_until();
    nest(&mut tenure, &again(2, RENEWED), now);
    assert!(renew(&mut tenure, now));
    let third = now + RENEWED.ttl.get() / 3;
    assert!(renew(&mut tenure, third), "and again");
    assert_eq!(
        tenure.grant().valid_until(),
        valid_until(third, RENEWED.ttl)
    );

    unnest(&mut tenure, 2, third);
    assert_eq!(tenure.grant().valid_until(), own_end);
    assert_eq!(tenure.next_look(), own_end, "not renewed any more");
}

#[test]
fn longer_fixed_hold_in_shorter_one_renews_once() {
    let (mut tenure, now) = tenure(FIXED);
    let own_end = tenure.grant().valid_until();
    nest(&mut tenure, &again(2, fixed(60)), now);
    assert_eq!(tenure.grant().valid_until(), own_end, "not fetched yet");
    assert!(renew(&mut tenure, now));
    let end = valid_until(now, Span::new(60 * SECOND));
    assert_eq!(tenure.grant().valid_until(), end);
    assert_eq!(tenure.next_look(), end);

    unnest(&mut tenure, 2, now);
    assert_eq!(tenure.grant().valid_until(), own_end);
}

#[test]
fn shorter_fixed_hold_in_longer_one_changes_nothing() {
    let (mut tenure, now) = tenure(fixed(60));
    let own_end = tenure.grant().valid_until();
    nest(&mut tenure, &again(2, FIXED), now);
    assert_eq!(
        (tenure.grant().valid_until(), tenure.next_look()),
        (own_end, own_end)
    );
}

#[test]
fn first_hold_dropped_first_leaves_nested_terms() {
    let (mut tenure, now) = tenure(RENEWED);
    nest(&mut tenure, &again(2, FIXED), now);
    unnest(&mut tenure, 1, now);
    let end = valid_until(now, FIXED.ttl);
    assert_eq!(
        (tenure.grant().valid_until(), tenure.next_look()),
        (end, end)
    );

    let (mut tenure, now) = self::tenure(FIXED);
    nest(&mut tenure, &again(2, RENEWED), now);
    unnest(&mut tenure, 1, now);
    for turn in 1..=6 {
        assert!(renew(&mut tenure, now + turn * RENEWED.ttl.get() / 3));
    }
}

#[test]
fn hold_nested_after_first_was_dropped_is_counted() {
    let (mut tenure, now) = tenure(RENEWED);
    nest(&mut tenure, &again(2, FIXED), now);
    unnest(&mut tenure, 1, now);
    nest(&mut tenure, &again(3, RENEWED), now);
    assert_eq!(tenure.next_look(), now, "a renewal is due");
    unnest(&mut tenure, 3, now);
    assert_eq!(tenure.grant().valid_until(), valid_until(now, FIXED.ttl));
}

#[test]
fn max_hold_counts_from_limit_hold() {
    let (mut tenure, now) = tenure(RENEWED);
    let later = now + 5 * SECOND;
    limit_hold(&mut tenure, &again(1, limited_by(10 * SECOND)), later);
    assert_eq!(tenure.grant().valid_until(), now + 15 * SECOND);
    let third = now + RENEWED.ttl.get() / 3;
    assert!(renew(&mut tenure, third));
    assert_eq!(tenure.grant().valid_until(), now + 15 * SECOND);
    // A nested hold neither shortens nor removes the limit of the first one.
    nest(&mut tenure, &again(2, RENEWED), third);
    limit_hold(&mut tenure, &again(2, limited_by(SECOND)), third);
    assert_eq!(tenure.grant().valid_until(), now + 15 * SECOND);
    nest(&mut tenure, &again(3, FIXED), third);
    assert_eq!(tenure.grant().valid_until(), now + 15 * SECOND);
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
    let (mut tenure, now) = tenure(limited(1));
    nest(&mut tenure, &again(2, RENEWED), now);
    assert_eq!(tenure.grant().valid_until(), now + SECOND);
    unnest(&mut tenure, 1, now);
    assert_eq!(tenure.grant().valid_until(), tenure.lease.valid_until());
}

#[test]
fn max_hold_of_nested_hold_follows_outer_ones() {
    let (mut tenure, now) = tenure(RENEWED);
    nest(&mut tenure, &again(2, RENEWED), now);
    nest(&mut tenure, &again(3, limited(2)), now);
    nest(&mut tenure, &again(4, limited(1)), now);
    unnest(&mut tenure, 1, now);
    assert_eq!(tenure.grant().valid_until(), tenure.lease.valid_until());
    unnest(&mut tenure, 2, now);
    assert_eq!(tenure.grant().valid_until(), now + 2 * SECOND);
    limit_hold(&mut tenure, &again(4, limited_by(3 * SECOND)), now);
    unnest(&mut tenure, 3, now);
    assert_eq!(tenure.grant().valid_until(), now + 3 * SECOND);
    limit_hold(&mut tenure, &again(4, limited_by(4 * SECOND)), now);
    assert_eq!(tenure.grant().valid_until(), now + 4 * SECOND);
}

#[test]
fn max_hold_of_group_counts_beside_alike_holds() {
    let (mut tenure, now) = tenure(RENEWED);
    nest(&mut tenure, &again(2, RENEWED), now);
    limit_hold(&mut tenure, &again(2, limited_by(SECOND)), now);
    assert_eq!(tenure.grant().valid_until(), tenure.lease.valid_until());
    limit_hold(&mut tenure, &again(1, limited_by(2 * SECOND)), now);
    assert_eq!(tenure.grant().valid_until(), now + 2 * SECOND);
    unnest(&mut tenure, 1, now);
    assert_eq!(tenure.grant().valid_until(), now + SECOND);
}

#[test]
fn max_hold_in_terms_counts_from_grant() {
    let (tenure, now) = tenure(limited(1));
    assert_eq!(tenure.grant().valid_until(), now + SECOND);
    assert_eq!(tenure.next_look(), now + SECOND);
}

#[test]
fn reason_at_limit_follows_holds() {
    // The limit is that of the longest hold.
    let (mut tenure, now) = tenure(limited(1));
    nest(&mut tenure, &again(2, FIXED), now);
    assert_eq!(tenure.grant().reason_by_clock(), LostReason::MaxHold);
    // The limit is the end of the longer lease.
    let (mut tenure, now) = self::tenure(FIXED);
    nest(&mut tenure, &again(2, fixed(10)), now);
    assert_eq!(tenure.grant().reason_by_clock(), LostReason::LeaseEnded);
}

#[test]
fn end_of_alike_hold_changes_nothing() {
    let (mut tenure, now) = tenure(limited(1));
    nest(&mut tenure, &again(2, limited(1)), now);
    assert!(!unnest(&mut tenure, 2, now));
    nest(&mut tenure, &again(3, limited(2)), now);
    assert!(unnest(&mut tenure, 3, now), "a hold with another limit");
}
