//! Releases whose replies are late.

use super::{acquire, plan};
use crate::plan::{Acquire, Actor, Command, Event, Plan, Step, Trouble, Wait, What};
use crate::run::run;

fn holds(manager: usize, runtime: usize, start: u64, wait: Wait, pause: u64) -> Actor {
    let acquire = Acquire { wait, ..acquire() };
    Actor {
        manager,
        runtime,
        start,
        steps: vec![Step::Acquire(acquire), Step::Pause(pause)],
    }
}

/// The reply that released the lease reaches a runtime that idles. The release that another runtime repeats is refused.
#[test]
fn release_of_late_reply_is_not_repeated() {
    let mut managers = plan().managers;
    for manager in &mut managers {
        manager.runtimes = 2;
    }
    let refused = What::Trouble {
        manager: None,
        key: None,
        command: Some(Command::Release),
        pause: 7_000,
        share: 100,
        kind: Trouble::Refused,
    };
    let idle = What::Idle {
        manager: 0,
        runtime: 0,
        pause: 1_700,
    };
    let ran = run(
        &Plan {
            length: 10_000,
            managers,
            actors: vec![
                holds(0, 0, 1, Wait::For(100), 1_000),
                holds(1, 0, 5, Wait::Forever, 0),
                holds(0, 1, 900, Wait::For(1_300), 0),
            ],
            events: vec![
                Event {
                    at: 500,
                    what: refused,
                },
                Event {
                    at: 1_005,
                    what: idle,
                },
            ],
            ..plan()
        },
        true,
    );
    let trace = ran.trace.join("\n");
    assert!(ran.violation.is_none(), "{:?}\n{trace}", ran.violation);
    assert!(
        trace.contains("sends #") && trace.contains("Pass"),
        "{trace}"
    );
    assert!(trace.contains("Err(Refused)"), "{trace}");
}
