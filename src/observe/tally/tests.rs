use std::time::Duration;

use super::{Name, Tally};
use crate::observe::{LostReason, Outcome, Reply, Via, WokenBy};

const MS: Duration = Duration::from_millis(1);

#[test]
fn threads_add_to_one_total() {
    let tally = Tally::default();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for _ in 0..100 {
                    tally.acquired(Name::NONE, Outcome::Granted, MS);
                    tally.granted(Name::NONE, Via::Backend);
                    tally.ended(Name::NONE, 2 * MS);
                    tally.released(Reply::Done);
                }
            });
        }
    });
    let totals = tally.totals();
    assert_eq!(totals.outcome(Outcome::Granted), 2000);
    assert_eq!(totals.grants(Via::Backend), 2000);
    assert_eq!((totals.wait.count(), totals.wait.sum()), (2000, 2000 * MS));
    assert_eq!((totals.hold.count(), totals.hold.sum()), (2000, 4000 * MS));
    assert_eq!(tally.traffic().releases(Reply::Done), 2000);
}

#[test]
fn each_name_has_its_own_counts() {
    let tally = Tally::default();
    let (orders, users) = (tally.number("orders"), tally.number("users"));
    tally.acquired(orders, Outcome::Busy, MS);
    tally.acquired(orders, Outcome::Cancelled, MS);
    tally.lost(users, LostReason::Forced);
    let (of_orders, of_users) = (tally.totals_of(orders), tally.totals_of(users));
    assert_eq!(of_orders.outcome(Outcome::Busy), 1);
    assert_eq!((of_orders.rejections(), of_users.rejections()), (1, 0));
    assert_eq!(
        (of_orders.rejected.count(), of_orders.cancelled.count()),
        (1, 1)
    );
    assert_eq!(
        (of_users.lost(LostReason::Forced), of_users.wait.count()),
        (1, 0)
    );
    assert_eq!(tally.totals().rejections(), 1);
}

#[test]
fn difference_of_totals_has_only_later_counts() {
    let tally = Tally::default();
    tally.granted(Name::NONE, Via::Backend);
    tally.woken(WokenBy::Message);
    tally.renewed(Reply::Failed);
    let (earlier, traffic) = (tally.totals(), tally.traffic());
    tally.granted(Name::NONE, Via::HandOff);
    tally.woken(WokenBy::Backstop);
    let (added, traffic) = (
        tally.totals().since(&earlier),
        tally.traffic().since(&traffic),
    );
    assert_eq!(
        [Via::Backend, Via::HandOff].map(|via| added.grants(via)),
        [0, 1]
    );
    assert_eq!(
        [WokenBy::Message, WokenBy::Backstop].map(|by| traffic.wakeups(by)),
        [0, 1]
    );
    assert_eq!(traffic.renewals(Reply::Failed), 0);
}
