//! Leases that are kept after their last guard.

use super::{acquire, plan};
use crate::plan::{Actor, Command, Event, Ms, Plan, Release, Step, Trouble, What};
use crate::run::{Ran, run};

/// Acquires the key so often, holds it and pauses after each hold.
fn repeats(manager: usize, times: usize, hold: Ms, pause: Ms) -> Actor {
    let round = || {
        [
            Step::Acquire(acquire()),
            Step::Pause(hold),
            Step::Release(Release::Dropped),
            Step::Pause(pause),
        ]
    };
    Actor {
        manager,
        runtime: 0,
        start: 1,
        steps: (0..times).flat_map(|_| round()).collect(),
    }
}

/// Returns a plan whose first process keeps its leases for so long.
fn keeping(keep: Ms, actors: Vec<Actor>) -> Plan {
    let mut plan = Plan { actors, ..plan() };
    plan.queue = true;
    plan.managers[0].keep = keep;
    plan
}

fn ran(plan: &Plan) -> (Ran, String) {
    let ran = run(plan, true);
    let trace = ran.trace.join("\n");
    assert!(ran.violation.is_none(), "{:?}\n{trace}", ran.violation);
    (ran, trace)
}

/// Returns how often this process sends the command.
fn sent(trace: &str, manager: usize, command: Command) -> usize {
    let sends = format!("m{manager} sends");
    let command = format!("{command:?}");
    let sends = |line: &&str| {
        let mut words = line.split_once(&sends).into_iter();
        words.any(|(_, rest)| rest.split(' ').nth(2) == Some(&command))
    };
    trace.lines().filter(sends).count()
}

#[test]
fn key_that_comes_back_needs_two_acquires() {
    for (pause, first) in [(1, Command::Contend), (9, Command::Acquire)] {
        let (_, trace) = ran(&keeping(100, vec![repeats(0, 9, 1, pause)]));
        let commands = [Command::Acquire, first, Command::Pass, Command::Release];
        let sent = commands.map(|command| sent(&trace, 0, command));
        // With the shorter pause, the first release is in flight at the second acquire.
        let expected = [[2, 2, 1, 2], [1, 1, 1, 2]][usize::from(pause == 1)];
        assert_eq!(sent, expected, "{trace}");
    }
}

#[test]
fn turn_of_repeated_key_ends_with_one_command() {
    let (_, trace) = ran(&keeping(20, vec![repeats(0, 100, 1, 1)]));
    let turns = sent(&trace, 0, Command::Pass);
    // About 200 ms.
    assert!((7..=12).contains(&turns), "{turns}\n{trace}");
    assert_eq!(sent(&trace, 0, Command::Acquire), 1, "{trace}");
}

/// The invariants bound the wait of the other process.
#[test]
fn two_processes_share_repeated_key() {
    let others = vec![repeats(0, 100, 1, 0), repeats(1, 20, 1, 5)];
    let (_, trace) = ran(&keeping(20, others));
    assert!(trace.contains("Transferred"), "{trace}");
}

/// The lease that the process keeps is gone, and the next acquire may take it back until a command shows that.
#[test]
fn kept_lease_survives_no_restart() {
    let mut plan = keeping(100, vec![repeats(0, 10, 1, 1)]);
    plan.events = vec![Event {
        at: 12,
        what: What::EmptyRestart,
    }];
    let (_, trace) = ran(&plan);
    assert!(trace.contains("EVENT EmptyRestart"), "{trace}");
}

#[test]
fn kept_lease_outlasts_no_idle_home() {
    let mut plan = keeping(100, vec![repeats(0, 20, 1, 1), repeats(1, 5, 5, 50)]);
    plan.managers[0].fixed = Some(0);
    plan.events = vec![Event {
        at: 20,
        what: What::Idle {
            manager: 0,
            runtime: 0,
            pause: 4_000,
        },
    }];
    plan.length = 8_000;
    let _ran = ran(&plan);
}

/// The reply to the command that ends a turn comes late, and its second release as well.
#[test]
fn late_reply_ends_kept_lease() {
    let mut plan = keeping(20, vec![repeats(0, 30, 1, 1), repeats(1, 5, 5, 50)]);
    plan.events = vec![Event {
        at: 20,
        what: What::Trouble {
            manager: Some(0),
            key: None,
            command: Some(Command::Pass),
            pause: 30,
            share: 100,
            kind: Trouble::ReplyLate(1_000),
        },
    }];
    plan.length = 5_000;
    let (_, trace) = ran(&plan);
    assert!(sent(&trace, 0, Command::Release) > 0, "{trace}");
}
