use super::*;
use crate::lock::tests::MS;

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
        deadlines.push(entry(now, millis));
    }
    for millis in [10, 10, 20, 30] {
        assert_eq!(deadlines.first(), Some(entry(now, millis)));
        assert_eq!(deadlines.pop(), Some(entry(now, millis)));
    }
    assert_eq!((deadlines.first(), deadlines.pop()), (None, None));
}

#[test]
fn push_reports_first_entry() {
    let (now, mut deadlines) = (Moment::now(), Deadlines::default());
    assert!(deadlines.push(entry(now, 20)));
    assert!(!deadlines.push(entry(now, 30)));
    assert!(!deadlines.push(entry(now, 20)));
    assert!(deadlines.push(entry(now, 10)));
    assert_eq!(deadlines.first(), Some(entry(now, 10)));
}

#[test]
fn compaction_drops_stale_entries_only() {
    let (now, mut deadlines) = (Moment::now(), Deadlines::default());
    let lanes = 10;
    let most = u32::try_from(2 * lanes + SLACK).expect("small");
    for millis in 0..most {
        deadlines.push(entry(now, millis));
    }
    let is_live = |entry: &Entry| entry.hash.is_multiple_of(2);
    deadlines.drop_stale(lanes, is_live);
    assert_eq!(deadlines.len(), 2 * lanes + SLACK, "not enough of them");

    deadlines.push(entry(now, most));
    deadlines.drop_stale(lanes, is_live);
    for millis in (0..=most).step_by(2) {
        assert_eq!(deadlines.pop(), Some(entry(now, millis)));
    }
    assert_eq!(deadlines.pop(), None);
}

#[test]
fn compacted_index_has_room_for_as_many_entries() {
    let (now, mut deadlines) = (Moment::now(), Deadlines::default());
    for millis in 0..10_000 {
        deadlines.push(entry(now, millis));
    }
    deadlines.drop_stale(1_000, |entry| entry.hash < 1_000);
    let budget = deadlines.0.capacity();
    assert!((2_000 + SLACK..3_000).contains(&budget), "{budget}");
}
