use futures_util::FutureExt as _;
use uuid::Uuid;

use super::super::subscription::Watcher;
use super::Topic;
use crate::backend::{Hint, Hints, LeaseId};

fn watch(topic: &mut Topic, manager: Uuid) -> Hints {
    let (sender, hints) = Hints::channel();
    topic.add_manager(manager, &sender);
    let manager = Some(manager);
    let watcher = Watcher { manager, sender };
    topic.claim(&watcher);
    topic.waiters.push(watcher);
    hints
}

/// A permit does not receive the transfers to leases of other modes.
#[test]
fn transfer_that_no_watcher_receives_is_kept() {
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let transfer = Hint::transferred(lease);
    let mut topic = Topic::default();
    let _filtered = watch(&mut topic, lease.manager()).receiving(|_| false);
    let unread = topic.transferred(lease, transfer).unwrap();
    assert_eq!(unread.transfer, transfer);
    let mut next = watch(&mut topic, lease.manager());
    assert_eq!(next.next().now_or_never(), Some(transfer));
    let mut later = watch(&mut topic, lease.manager());
    assert_eq!(later.next().now_or_never(), None);
}
