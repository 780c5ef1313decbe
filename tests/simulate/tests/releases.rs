//! Releases whose replies are late.

use super::{acquire, plan};
use crate::plan::{Acquire, Actor, Command, Event, Plan, Release, Step, Trouble, Wait, What};
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

/// The runtime of the background work idles, also after the suspend. The caller reads the clock each second.
#[test]
fn release_over_suspend_ends_by_clock_of_caller() {
    let mut managers = plan().managers;
    managers.truncate(1);
    managers[0].runtimes = 2;
    managers[0].fixed = Some(1);
    managers[0].watchdog = 1_000;
    let idle = What::Idle {
        manager: 0,
        runtime: 1,
        pause: 800,
    };
    let release = vec![
        Step::Acquire(acquire()),
        Step::Pause(20),
        Step::Release(Release::Awaited),
    ];
    let ran = run(
        &Plan {
            managers,
            actors: vec![Actor {
                manager: 0,
                runtime: 0,
                start: 1,
                steps: release,
            }],
            events: vec![
                Event { at: 10, what: idle },
                Event {
                    at: 560,
                    what: What::Suspend(2_000),
                },
            ],
            ..plan()
        },
        true,
    );
    let trace = ran.trace.join("\n");
    assert!(ran.violation.is_none(), "{:?}\n{trace}", ran.violation);
    assert!(trace.contains("EVENT Suspend"), "{trace}");
}

/// A renewal that hangs takes effect after the clock of the store stepped back. Its process ends its releases when the
/// lease must have expired, and the next step prolongs the lease.
#[test]
fn lease_may_outlast_releases_if_clock_steps_back() {
    let trouble = |kind, pause| What::Trouble {
        manager: None,
        key: None,
        command: None,
        pause,
        share: 100,
        kind,
    };
    let events = [
        (290, trouble(Trouble::Stopped, 1_333)),
        (650, What::StepBack(1_388)),
        (1_247, trouble(Trouble::RequestLost, 2_053)),
        (1_748, What::StepBack(2_000)),
    ];
    let mut managers = plan().managers;
    managers.iter_mut().for_each(|it| it.watchdog = 600);
    let ran = run(
        &Plan {
            length: 2_210,
            managers,
            actors: vec![holds(0, 0, 1, Wait::Never, 1_295)],
            events: events.map(|(at, what)| Event { at, what }).to_vec(),
            ..plan()
        },
        true,
    );
    let trace = ran.trace.join("\n");
    assert!(ran.violation.is_none(), "{:?}\n{trace}", ran.violation);
    assert!(
        trace.contains("#6 of m0 takes effect: Ok(Renewed)"),
        "{trace}"
    );
}
