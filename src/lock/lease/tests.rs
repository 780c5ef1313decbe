use super::hand_offs::Kept;
use super::hand_offs::SHORTEST_TURN;
use super::*;
use crate::FencingToken;
use crate::backend::BackendErrorKind;
use crate::backend::KeepRequest;
use crate::lock::tests::{FIXED, MS, RENEWED, SECOND, SHORT, TOKENS, number};

const TTL: Duration = RENEWED.ttl.get();
const RENEWED_OK: Result<Renewed, BackendError> = Ok(Renewed::Renewed);

fn lease(terms: Terms) -> (Lease, Moment) {
    let now = Moment::now();
    (Lease::new(number(1), 100, TOKENS, terms, now), now)
}

fn unknown() -> BackendError {
    BackendError::unknown("no reply")
}

/// Returns the reply to a command that kept a lease.
fn kept(counter: impl Into<Option<u64>>, counters: u32, sent_at: Moment, ttl: Duration) -> Kept {
    Kept {
        counter: counter.into(),
        counters,
        ttl: Span::new(ttl),
        sent_at,
    }
}

#[test]
fn deadline_counts_from_before_command() {
    let (lease, sent_at) = lease(RENEWED);
    let drift = TTL / 100 + 2 * MS;
    assert_eq!(lease.valid_until(), sent_at + (TTL - drift));
    assert_eq!(lease.expires_at(), sent_at + (TTL + drift));
    assert_eq!(lease.longest(sent_at).get(), TTL + drift);
    assert_eq!(lease.next_renewal(), Some(sent_at + TTL / 3));
}

#[test]
fn fixed_lease_has_no_renewal() {
    let (mut lease, now) = lease(FIXED);
    lease.require_renewal(now);
    assert_eq!(lease.next_renewal(), None);
    assert_eq!(lease.start_renewal(now + 20 * SECOND), None);
}

#[test]
fn renewal_joins_others_one_twentieth_early() {
    let (mut lease, now) = lease(RENEWED);
    let early = now + (TTL / 3 - TTL / 20);
    assert!(!lease.renews_early(early.before(MS)) && lease.renews_early(early));
    assert_eq!(lease.start_renewal(early.before(MS)), None);
    assert_eq!(lease.start_renewal(early), Some(TTL));
    assert!(lease.is_in_flight());
    assert_eq!(lease.start_renewal(early), None, "it is in flight");
}

#[test]
fn renewal_moves_deadlines_from_its_send_time() {
    let (mut lease, now) = lease(RENEWED);
    let sent_at = now + 10 * SECOND;
    lease.start_renewal(sent_at);
    lease.renewal_answered(TTL, sent_at, &RENEWED_OK, sent_at + SECOND);
    assert_eq!(lease.valid_until(), valid_until(sent_at, Span::new(TTL)));
    assert_eq!(lease.expires_at(), expires_at(sent_at, Span::new(TTL)));
    assert_eq!(lease.next_renewal(), Some(sent_at + TTL / 3));
}

#[test]
fn lease_suspect_in_renewal_is_renewed_again() {
    let (mut lease, now) = lease(RENEWED);
    lease.require_renewal(now);
    assert_eq!(lease.next_renewal(), Some(now));
    lease.start_renewal(now);
    lease.require_renewal(now + MS);
    assert_eq!(lease.next_renewal(), None, "after the reply");
    lease.renewal_answered(TTL, now, &RENEWED_OK, now + 2 * MS);
    assert_eq!(lease.next_renewal(), Some(now + 2 * MS));
    lease.start_renewal(now + 2 * MS);
    lease.renewal_answered(TTL, now + 2 * MS, &RENEWED_OK, now + 3 * MS);
    assert_eq!(lease.next_renewal(), Some(now + (2 * MS + TTL / 3)));
}

#[test]
fn failed_renewal_is_retried_soon_but_not_early() {
    let (mut lease, now) = lease(RENEWED);
    let sent_at = now + 10 * SECOND;
    let before = lease.valid_until();
    lease.start_renewal(sent_at);
    lease.renewal_answered(TTL, sent_at, &Err(unknown()), sent_at);
    let retry_at = sent_at + SECOND;
    assert_eq!(lease.next_renewal(), Some(retry_at));
    assert!(!lease.renews_early(retry_at.before(MS)));
    assert_eq!(lease.start_renewal(retry_at.before(MS)), None);
    assert_eq!(lease.start_renewal(retry_at), Some(TTL));
    assert_eq!(lease.valid_until(), before);
}

#[test]
fn retry_comes_sooner_near_deadline() {
    let (mut lease, now) = lease(RENEWED);
    let end = lease.valid_until();
    for (left, pause) in [(2 * SECOND, 500 * MS), (MS, 10 * MS)] {
        let at = end.before(left);
        lease.start_renewal(at);
        lease.renewal_answered(TTL, now, &Err(unknown()), at);
        assert_eq!(lease.next_renewal(), Some(at + pause));
    }
}

#[test]
fn retry_of_short_lease_comes_after_its_thirtieth() {
    let ttl = Span::new(3 * SECOND);
    let (mut lease, now) = lease(Terms { ttl, ..RENEWED });
    let sent_at = now + SECOND;
    lease.start_renewal(sent_at);
    lease.renewal_answered(ttl.get(), sent_at, &Err(unknown()), sent_at);
    assert_eq!(lease.next_renewal(), Some(sent_at + 100 * MS));
}

#[test]
fn suspect_lease_is_retried_at_once() {
    let (mut lease, now) = lease(RENEWED);
    lease.start_renewal(now + TTL / 3);
    let refused = BackendError::refused(BackendErrorKind::Unavailable, "loading");
    lease.renewal_answered(TTL, now, &Err(refused), now + TTL / 3);
    lease.require_renewal(now + TTL / 3);
    assert_eq!(lease.next_renewal(), Some(now + TTL / 3));
}

#[test]
fn want_until_renews_once_for_later_end() {
    let (mut lease, now) = lease(FIXED);
    let end = lease.valid_until();
    lease.want_until(end, now);
    assert_eq!(lease.next_renewal(), None, "granted already");

    let end = end + 10 * SECOND;
    lease.want_until(end, now);
    assert_eq!(lease.next_renewal(), Some(now));
    let ttl = lease.start_renewal(now).expect("due");
    lease.renewal_answered(ttl, now, &RENEWED_OK, now);
    assert!(lease.valid_until() >= end && lease.valid_until() < end + SECOND);
    assert_eq!(lease.next_renewal(), None, "once");
}

#[test]
fn want_until_of_short_lease_reaches_end() {
    let ttl = Span::new(20 * MS);
    let (mut lease, now) = lease(Terms { ttl, ..FIXED });
    let end = lease.valid_until() + MS;
    lease.want_until(end, now);
    let ttl = lease.start_renewal(now).expect("due");
    lease.renewal_answered(ttl, now, &RENEWED_OK, now);
    assert!(lease.valid_until() >= end);
}

#[test]
fn want_until_in_flight_renews_again() {
    let (mut lease, now) = lease(FIXED);
    let end = lease.valid_until();
    lease.want_until(end + SECOND, now);
    let ttl = lease.start_renewal(now).expect("due");
    lease.want_until(end + 10 * SECOND, now);
    lease.renewal_answered(ttl, now, &RENEWED_OK, now);
    let ttl = lease.start_renewal(now).expect("due again");
    lease.renewal_answered(ttl, now, &RENEWED_OK, now);
    assert!(lease.valid_until() >= end + 10 * SECOND);
    assert_eq!(lease.next_renewal(), None);
}

#[test]
fn want_always_renews_at_once_then_each_third() {
    let (mut lease, now) = lease(FIXED);
    lease.want_always(RENEWED.ttl, now);
    assert_eq!(lease.next_renewal(), Some(now));
    assert_eq!(lease.start_renewal(now), Some(TTL));
    lease.renewal_answered(TTL, now, &RENEWED_OK, now);
    assert_eq!(lease.next_renewal(), Some(now + TTL / 3));
    // A repeated request does not move the renewal.
    lease.want_always(RENEWED.ttl, now + SECOND);
    assert_eq!(lease.next_renewal(), Some(now + TTL / 3));
    // An end within the remaining TTL needs no renewal.
    lease.want_until(now + 20 * SECOND, now + SECOND);
    assert_eq!(lease.next_renewal(), None);
    assert!(!lease.may_pass_to(RENEWED, now + SECOND));
}

#[test]
fn shorter_renewal_leaves_later_end() {
    let (mut lease, now) = lease(RENEWED);
    let end = lease.valid_until();
    lease.renewal_answered(SECOND, now, &RENEWED_OK, now);
    assert_eq!(lease.valid_until(), end);
    assert_eq!(lease.next_renewal(), Some(now), "the rest is fetched");
}

#[test]
fn retired_lease_is_renewed_but_not_handed_off() {
    let (mut lease, now) = lease(RENEWED);
    assert!(lease.may_pass_to(RENEWED, now));
    lease.end_hand_offs();
    assert!(!lease.may_pass_to(RENEWED, now));
    assert_eq!(lease.start_renewal(now + TTL / 3), Some(TTL));
    lease.renewal_answered(TTL, now, &RENEWED_OK, now);
    assert!(!lease.may_pass_to(RENEWED, now), "a renewal has no counter");
    lease.keep(kept(200, 1, now, TTL), now);
    assert!(lease.may_pass_to(RENEWED, now), "under a fresh counter");
    assert_eq!(lease.token(), FencingToken::new(200, TOKENS, 0));
}

#[test]
fn lease_not_held_is_not_handed_off() {
    let (mut lease, now) = lease(RENEWED);
    lease.start_renewal(now + TTL / 3);
    lease.renewal_answered(TTL, now, &Ok(Renewed::NotHeld), now);
    assert!(!lease.is_in_flight() && !lease.may_pass_to(RENEWED, now));
}

#[test]
fn lease_near_its_end_is_not_handed_off() {
    let (mut lease, now) = lease(RENEWED);
    let enough = lease.valid_until().before(TTL / 3);
    lease.keep(kept(200, 1, enough, Duration::ZERO), enough);
    assert!(lease.may_pass_to(RENEWED, enough));
    assert!(!lease.may_pass_to(RENEWED, enough + MS));
    assert!(!lease.may_pass_to(FIXED, now));
}

#[test]
fn lease_is_renewed_for_others_until_deadline() {
    let (lease, _now) = lease(RENEWED);
    let end = lease.valid_until();
    assert!(lease.is_renewed_for(RENEWED, end.before(MS)) && !lease.is_renewed_for(RENEWED, end));
}

#[test]
fn lease_fits_only_own_terms() {
    let (lease, _now) = lease(RENEWED);
    assert!(lease.fits(RENEWED));
    let renewed = false;
    assert!(!lease.fits(Terms { renewed, ..RENEWED }) && !lease.fits(SHORT));
}

#[test]
fn handoff_budget_ends_after_50_ms() {
    let (lease, now) = lease(RENEWED);
    let end = now + 50 * MS;
    assert!(lease.may_pass_to(RENEWED, end.before(MS)) && !lease.may_pass_to(RENEWED, end));
}

#[test]
fn lease_without_fresh_counters_has_its_own_tokens() {
    let (mut lease, now) = lease(RENEWED);
    for _ in 0..TOKENS - 2 {
        assert!(lease.has_tokens());
        lease.hand_on();
    }
    lease.keep(kept(None, 8, now, TTL), now);
    assert!(lease.may_pass_to(RENEWED, now));
    lease.hand_on();
    assert!(!lease.has_tokens() && !lease.may_pass_to(RENEWED, now));
    lease.keep(kept(200, 8, now, TTL), now);
    for _ in 1..TOKENS * 8 {
        assert!(lease.has_tokens());
        lease.hand_on();
    }
    assert!(!lease.has_tokens());
    lease.keep(kept(300, 8, now, TTL), now);
    lease.end_hand_offs();
    assert!(!lease.has_tokens());
}

#[test]
fn turn_counts_waiters() {
    let (mut lease, now) = lease(RENEWED);
    lease.begin_turn(2, now);
    let later = now + SHORTEST_TURN;
    assert!(lease.may_pass_to(RENEWED, later));
    lease.hand_on();
    assert!(!lease.may_pass_to(RENEWED, later) && lease.may_pass_to(RENEWED, later.before(MS)));
}

/// The counter of a node stays behind the microseconds of its clock only if a key that is handed off seldom takes few.
#[test]
fn next_turn_has_twice_used_counters() {
    let (mut lease, now) = lease(RENEWED);
    assert_eq!(lease.next_counters(), 1);
    let mut counters = 1;
    while counters < KeepRequest::MAX_COUNTERS {
        while lease.has_tokens() {
            lease.hand_on();
        }
        counters *= 2;
        assert_eq!(lease.next_counters(), counters);
        lease.keep(kept(200, counters, now, TTL), now);
    }
    assert_eq!(lease.next_counters(), 1, "unused");
    for _ in 0..TOKENS {
        lease.hand_on();
    }
    assert_eq!(lease.next_counters(), 3);
    while lease.has_tokens() {
        lease.hand_on();
    }
    assert_eq!(lease.next_counters(), KeepRequest::MAX_COUNTERS);
}

/// A renewal of a fixed lease only asks whether others wait, and another one follows after the same time.
#[test]
fn fixed_lease_is_asked_at_requested_times() {
    let interval = 250 * MS;
    let mut now = Moment::now();
    let mut lease = Lease::new(number(1), 100, TOKENS, FIXED, now);
    let end = lease.valid_until();
    lease.ask(now + interval);
    while let Some(due) = lease.next_renewal() {
        assert_eq!(due, now + interval);
        now = due;
        let ttl = lease.start_renewal(now).expect("it is due");
        lease.renewal_answered(ttl, now, &Ok(Renewed::Wanted), now);
        lease.ask(now + interval);
    }
    assert!(now + interval >= end && lease.valid_until() == end);
}

/// While the backend is down, each end of a hold would send another one.
#[test]
fn question_after_failure_is_not_asked_early() {
    let now = Moment::now();
    let mut lease = Lease::new(number(1), 100, TOKENS, FIXED, now);
    lease.ask(now);
    let ttl = lease.start_renewal(now).expect("it is due");
    let down = BackendError::refused(BackendErrorKind::Unavailable, "down");
    lease.renewal_answered(ttl, now, &Err(down), now);
    lease.want_until(lease.valid_until(), now);
    lease.ask(now + 250 * MS);
    assert!(!lease.renews_early(now) && lease.renews_early(now + 250 * MS));
}
