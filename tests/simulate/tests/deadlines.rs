//! Acquires that end at their deadlines.

use super::{acquire, actor, plan};
use crate::plan::{Acquire, Fate, Owner, Step, Wait};
use crate::run::run;

#[test]
fn first_attempt_beside_dropped_waiter_ends_in_time() {
    let asks = |wait, fate| {
        Step::Acquire(Acquire {
            owner: Owner::Fresh,
            wait,
            fate,
            ..acquire()
        })
    };
    let mut plan = plan();
    plan.seed = 351_518;
    plan.delay = (3, 20);
    plan.grouped = true;
    plan.queue = true;
    plan.actors = vec![
        actor(0, 1, vec![asks(Wait::For(430), Fate::Awaited)]),
        actor(1, 3, vec![asks(Wait::For(21), Fate::Awaited)]),
        actor(
            1,
            21,
            vec![
                asks(Wait::Never, Fate::DroppedAfterPolls(1)),
                Step::Pause(5),
                asks(Wait::For(901), Fate::Awaited),
            ],
        ),
    ];
    let ran = run(&plan, true);
    let trace = ran.trace.join("\n");
    assert!(ran.violation.is_none(), "{:?}\n{trace}", ran.violation);
    for step in ["w4 is dropped", "w2 fails"] {
        assert!(trace.contains(step), "{trace}");
    }
}

/// The reply that nothing reads grants the lock. Without home, it would stay held for a second.
#[test]
fn rejected_first_attempt_without_polls_is_released() {
    let mut plan = plan();
    let asks = Step::Acquire(Acquire {
        wait: Wait::For(9),
        fate: Fate::Stalled {
            polls: 1,
            pause: 1_838,
        },
        ..acquire()
    });
    plan.delay = (1, 1);
    plan.actors = vec![actor(0, 1, vec![asks])];
    let ran = run(&plan, true);
    let trace = ran.trace.join("\n");
    assert!(ran.violation.is_none(), "{:?}\n{trace}", ran.violation);
    assert!(trace.contains("Released { watchers: 0 }"), "{trace}");
}
