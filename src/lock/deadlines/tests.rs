use super::*;
use crate::lock::tests::{MS, SECOND, elsewhere, here};

fn entry(now: Moment, millis: u32) -> Entry {
    Entry {
        at: now + millis * MS,
        hash: millis.into(),
    }
}

#[test]
fn entries_come_up_in_order_of_time() {
    let (now, mut deadlines) = (Moment::now(), Deadlines::default());
    for millis in [30, 10, 20, 10] {
        deadlines.push(here(), entry(now, millis));
    }
    for millis in [10, 10, 20, 30] {
        assert_eq!(deadlines.first(here()), Some(entry(now, millis)));
        assert_eq!(deadlines.pop(here()), Some(entry(now, millis)));
    }
    assert_eq!(
        (deadlines.first(here()), deadlines.pop(here())),
        (None, None)
    );
}

#[test]
fn push_reports_first_entry_of_its_runtime() {
    let (now, mut deadlines) = (Moment::now(), Deadlines::default());
    assert!(deadlines.push(here(), entry(now, 20)));
    assert!(!deadlines.push(here(), entry(now, 30)));
    assert!(!deadlines.push(here(), entry(now, 20)));
    assert!(deadlines.push(here(), entry(now, 10)));
    assert!(deadlines.push(elsewhere(), entry(now, 40)));
    assert_eq!(deadlines.first(here()), Some(entry(now, 10)));
    assert_eq!(deadlines.first(elsewhere()), Some(entry(now, 40)));
}

#[test]
fn compaction_drops_stale_entries_only() {
    let (now, mut deadlines) = (Moment::now(), Deadlines::default());
    let lanes = 10;
    let most = u32::try_from(2 * lanes + SLACK).expect("small");
    for millis in 0..most {
        deadlines.push(here(), entry(now, millis));
    }
    let is_live = |entry: &Entry| entry.hash.is_multiple_of(2);
    deadlines.drop_stale(here(), lanes, is_live);
    assert_eq!(
        deadlines.len(here()),
        2 * lanes + SLACK,
        "not enough of them"
    );

    deadlines.push(here(), entry(now, most));
    deadlines.push(elsewhere(), entry(now, 1));
    deadlines.drop_stale(here(), lanes, is_live);
    for millis in (0..=most).step_by(2) {
        assert_eq!(deadlines.pop(here()), Some(entry(now, millis)));
    }
    assert_eq!(deadlines.pop(here()), None);
    assert_eq!(deadlines.len(elsewhere()), 1);
}

#[test]
fn adopted_entries_join_those_of_other_runtime() {
    let (now, mut deadlines) = (Moment::now(), Deadlines::default());
    deadlines.push(here(), entry(now, 10));
    deadlines.push(here(), entry(now, 30));
    deadlines.push(elsewhere(), entry(now, 20));
    deadlines.adopt(here(), elsewhere());
    assert_eq!((deadlines.first(here()), deadlines.len(here())), (None, 0));
    for millis in [10, 20, 30] {
        assert_eq!(deadlines.pop(elsewhere()), Some(entry(now, millis)));
    }
    deadlines.adopt(here(), elsewhere());
    assert_eq!(deadlines.len(elsewhere()), 0);
}

#[test]
fn cleared_index_has_no_entries() {
    let mut deadlines = Deadlines::default();
    deadlines.push(here(), entry(Moment::now() + SECOND, 10));
    deadlines.clear();
    assert_eq!(deadlines.first(here()), None);
}

#[test]
fn compacted_index_has_room_for_as_many_entries() {
    let (now, mut deadlines) = (Moment::now(), Deadlines::default());
    for millis in 0..10_000 {
        deadlines.push(here(), entry(now, millis));
    }
    deadlines.drop_stale(here(), 1_000, |entry| entry.hash < 1_000);
    let room = deadlines.heap(here()).capacity();
    assert!((2_000 + SLACK..3_000).contains(&room), "{room}");
}
