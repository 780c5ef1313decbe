//! Replies to a release.

use std::time::Duration;

use super::*;
use crate::backend::BackendError;
use crate::lock::clock::Span;
use crate::lock::tests::*;

#[test]
fn failed_release_dropped_by_lane_is_resolved() {
    let mut effects = Effects::default();
    let sent = Sent {
        outgoing: Outgoing {
            lease: number(1),
            ttl: Span::new(Duration::from_secs(7)),
        },
        home: here(),
        repeat: Repeat::No,
    };
    let error = Err(BackendError::unknown("no reply"));
    sent.settle(&mut Lane::default(), error, Moment::now(), &mut effects);
    let Some(Work::Resolve { lease, ttl, home }) = effects.work.pop() else {
        panic!("not resolved");
    };
    assert_eq!((lease, home), (number(1), here()));
    assert_eq!(ttl, sent.outgoing.ttl);
}
