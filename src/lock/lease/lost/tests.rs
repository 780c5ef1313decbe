use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use futures_util::poll;
use tokio::time::{sleep, timeout};

use super::*;
use crate::FencingToken;
use crate::lock::clock::tests::checks;
use crate::lock::tests::{RENEWED, SECOND, claim, key};
use crate::observe::{LostReason, Via};

fn grant(now: Moment, until: Moment) -> Arc<Grant> {
    let token = FencingToken::new(1, 1, 0);
    Grant::new(key(), &claim(1, RENEWED), Via::Backend, token, until, now)
}

fn grants(now: Moment, ends: &[Moment]) -> (Grants, Vec<Arc<Grant>>) {
    let all: Vec<_> = ends.iter().map(|end| grant(now, *end)).collect();
    (Grants::Many(all.clone().into()), all)
}

#[test]
fn grant_is_lost_from_its_deadline_on() {
    let now = Moment::now();
    let until = now + SECOND;
    let grants = Grants::One(grant(now, until));
    let before = until.before(Duration::from_nanos(1));
    assert_eq!(grants.standing(before), Standing::HeldUntil(until));
    assert_eq!(grants.standing(until), Standing::Lost);
    assert_eq!(grants.standing(until + SECOND), Standing::Lost);
    assert!(grants.are_held(before) && !grants.are_held(until));
}

#[test]
fn grant_marked_lost_is_lost_before_deadline() {
    let now = Moment::now();
    let (grants, all) = grants(now, &[now + SECOND, now + SECOND]);
    assert!(all[1].lose(LostReason::NotHeld));
    assert_eq!(grants.standing(now), Standing::Lost);
}

#[test]
fn released_grant_is_not_lost_after_deadline() {
    let now = Moment::now();
    let grant = grant(now, now + SECOND);
    let grants = Grants::One(Arc::clone(&grant));
    grant.set_holds(0);
    assert_eq!(grants.standing(now), Standing::Released);
    assert_eq!(grants.standing(now + 2 * SECOND), Standing::Released);
    assert!(grant.lose(LostReason::NotHeld));
    assert_eq!(grants.standing(now), Standing::Lost, "it was lost first");
}

#[test]
fn several_keys_are_held_until_earliest_deadline() {
    let now = Moment::now();
    let (first, later) = (now + SECOND, now + 2 * SECOND);
    let (grants, all) = grants(now, &[later, first, later]);
    assert_eq!(grants.valid_until(), first);
    assert_eq!(grants.standing(now), Standing::HeldUntil(first));
    assert_eq!(grants.standing(first), Standing::Lost);
    // The release of one key does not end the others.
    all[1].set_holds(0);
    assert_eq!(grants.standing(first), Standing::HeldUntil(later));
    assert_eq!(grants.standing(later), Standing::Lost);
}

#[test]
fn renewal_moves_deadline_but_not_limit() {
    let now = Moment::now();
    let grant = grant(now, now + SECOND);
    let grants = Grants::One(Arc::clone(&grant));
    grant.extend(now + 3 * SECOND);
    assert_eq!(
        grants.standing(now + SECOND),
        Standing::HeldUntil(now + 3 * SECOND)
    );
    grant.set_limit(now + 2 * SECOND);
    assert_eq!(grants.standing(now + 2 * SECOND), Standing::Lost);
}

/// If the deadline passed between two looks, the second could skip the timer that the first one needs.
#[tokio::test(start_paused = true)]
async fn one_look_decides_whether_guard_is_lost() {
    let now = Moment::now();
    let mut lost = pin!(Lost::new(Grants::One(grant(now, now + SECOND))));
    let before = checks();
    assert!(poll!(&mut lost).is_pending());
    assert_eq!(checks() - before, 1);
    sleep(SECOND).await;
    let before = checks();
    assert!(poll!(&mut lost).is_ready());
    assert_eq!(checks() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn lost_follows_earlier_limit() {
    let now = Moment::now();
    let grant = grant(now, now + 10 * SECOND);
    let mut lost = pin!(Lost::new(Grants::One(Arc::clone(&grant))));
    assert!(timeout(SECOND, &mut lost).await.is_err());
    // As when nested holds are released, one by one.
    let limited = async {
        for limit in [8, 5] {
            grant.set_limit(now + limit * SECOND);
            grant.wake_listeners();
            sleep(SECOND).await;
        }
    };
    tokio::join!(lost, limited);
    let late = Moment::now().since(now + 5 * SECOND);
    assert!(late <= Duration::from_millis(2), "{late:?}");
}

/// A waker that counts its calls.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn loss_wakes_each_pending_future_once() {
    let now = Moment::now();
    let grant = grant(now, now + SECOND);
    let wakes: [Arc<Wakes>; 4] = Default::default();
    let poll = |lost: &mut Pin<Box<Lost>>, nth: usize| {
        let waker = Arc::clone(&wakes[nth]).into();
        let poll = lost.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
    };
    let [mut first, mut second, mut dropped] =
        std::array::from_fn(|_| Box::pin(Lost::new(Grants::One(Arc::clone(&grant)))));
    poll(&mut first, 0);
    poll(&mut second, 1);
    poll(&mut dropped, 2);
    // The future has moved to another task.
    poll(&mut second, 3);
    drop(dropped);
    grant.wake_listeners();
    let counts = wakes
        .each_ref()
        .map(|wakes| wakes.0.load(Ordering::Relaxed));
    assert_eq!(counts, [1, 0, 0, 1]);
    drop(first);
    grant.wake_listeners();
    let counts = wakes
        .each_ref()
        .map(|wakes| wakes.0.load(Ordering::Relaxed));
    assert_eq!(counts, [1, 0, 0, 2]);
}
