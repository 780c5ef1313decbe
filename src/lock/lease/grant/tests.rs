use super::*;
use crate::lock::lease::claim::Terms;
use crate::lock::tests::{FIXED, MS, RENEWED, SECOND, claim, key};

/// Returns a grant whose lease lasts a second.
fn grant(claim: &Claim, via: Via, now: Moment) -> Arc<Grant> {
    let token = FencingToken::new(1, 1, 0);
    Grant::new(key(), claim, via, token, now + SECOND, now)
}

#[test]
fn grant_describes_acquire_of_first_hold() {
    let now = Moment::now();
    let claim = Claim {
        since: now.before(SECOND),
        name: Name::OTHER,
        ..claim(2, RENEWED)
    };
    let grant = grant(&claim, Via::HandOff, now);
    assert_eq!((grant.waited.get(), grant.name), (SECOND, Name::OTHER));
    assert_eq!(grant.via_of(2), Via::HandOff);
    assert_eq!(grant.via_of(3), Via::Reentrant);
}

#[test]
fn reason_of_loss_holds_from_deadline_on() {
    let limited = Terms {
        max_hold: Span::new(500 * MS),
        ..RENEWED
    };
    for (terms, reason) in [
        (RENEWED, LostReason::Expired),
        (FIXED, LostReason::LeaseEnded),
        (limited, LostReason::MaxHold),
    ] {
        let now = Moment::now();
        let grant = grant(&claim(1, terms), Via::Backend, now);
        let end = grant.valid_until();
        assert_eq!(grant.lost_reason(end.before(MS)), None);
        assert_eq!(grant.lost_reason(end), Some(reason));
        assert_eq!(grant.lost_reason(end + SECOND), Some(reason));
        grant.set_holds(0);
        assert_eq!(grant.lost_reason(end), None, "released");
    }
}

#[test]
fn reason_of_loss_is_first_one() {
    let now = Moment::now();
    let grant = grant(&claim(1, RENEWED), Via::Backend, now);
    assert!(grant.lose(LostReason::Forced) && !grant.lose(LostReason::NotHeld));
    assert_eq!(grant.lost_reason(now), Some(LostReason::Forced));
    let end = grant.valid_until();
    assert_eq!(grant.lost_reason(end), Some(LostReason::Forced));
}
