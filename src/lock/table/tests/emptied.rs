//! The wait for an empty table.

use super::*;
use crate::backend::Mode;
use crate::lock::lease::QueuePlace;

#[tokio::test(start_paused = true)]
async fn emptied_completes_with_last_lane() {
    let (lanes, now) = (lanes(), Moment::now());
    let (grant, _told) = acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let mut emptied = pin!(lanes.emptied());
    assert!(timeout(SECOND, &mut emptied).await.is_err());
    release(&lanes, &key(1), &grant, now);
    assert!(timeout(SECOND, emptied).await.is_ok());
}

/// A shutdown then also waits for the retry of a failed release.
#[tokio::test(start_paused = true)]
async fn emptied_awaits_work_of_idle_lane() {
    let (lanes, mut effects) = (lanes(), Effects::at(Moment::now()));
    lanes.with(&key(0), &mut effects, |_, effects| {
        effects.leave(number(1));
    });
    let mut emptied = pin!(lanes.emptied());
    assert!(timeout(SECOND, &mut emptied).await.is_err());
    assert!(effects.outlive_lane);
    lanes.started();
    assert!(timeout(SECOND, emptied).await.is_ok());
}

/// The lane can leave the table before its work is started.
#[tokio::test(start_paused = true)]
async fn emptied_awaits_work_of_yielding_lane() {
    let (lanes, now) = (lanes(), Moment::now());
    let mut effects = Effects::at(now);
    let key = key(1);
    let (grant, _told) = acquire(&lanes, &key, claim(1, RENEWED), now);
    let place = QueuePlace {
        lease: number(2),
        mode: Mode::Exclusive,
        limit: None,
    };
    lanes.with(&key, &mut effects, |lane, effects| {
        return_to(
            ReleasedTo::Queue {
                place: Some(place),
                notified_behind: None,
            },
            lane,
            &grant,
            effects,
        );
        assert!(lane.is_yielding());
    });
    assert_eq!(lanes.unstarted(), 1);
    empty(&lanes);
    let mut emptied = pin!(lanes.emptied());
    assert!(timeout(SECOND, &mut emptied).await.is_err());
    assert!(effects.outlive_lane);
    lanes.started();
    assert!(timeout(SECOND, emptied).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn emptied_completes_with_idle_lanes() {
    let (lanes, now) = (lanes(), Moment::now());
    acquire(&lanes, &key(1), claim(1, RENEWED), now);
    let mut emptied = pin!(lanes.emptied());
    assert!(timeout(SECOND, &mut emptied).await.is_err());
    empty(&lanes);
    assert!(timeout(SECOND, emptied).await.is_ok());
}
