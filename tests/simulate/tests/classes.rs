//! The classes that a plan contains.

use std::collections::BTreeMap;

use crate::draw::{CLASSES, DISTANT, TRANSFER_TTL, Weights, draw};
use crate::plan::{Acquire, Fate, Messages, Owner, Plan, Release, Step, Trouble, Wait, What};

fn of_event(what: &What) -> &'static str {
    match what {
        What::Idle { .. } => "idle",
        What::Stop { .. } => "stop",
        What::End { .. } => "end",
        What::Kill { .. } => "kill",
        What::Suspend(_) => "suspend",
        What::StepForward(_) => "forward",
        What::StepBack(_) => "back",
        What::EmptyRestart => "restart",
        What::Recovery { .. } => "recovery",
        What::NoHints { .. } => "hints",
        What::Trouble { kind, .. } => match kind {
            Trouble::RequestLost | Trouble::ReplyLost => "lost",
            Trouble::ReplyLate(_) => "late",
            Trouble::Refused => "refused",
            Trouble::Hung => "hung",
            Trouble::Stopped => "stopped",
            Trouble::Twice { .. } => "twice",
        },
    }
}

fn of_acquire(acquire: &Acquire) -> Vec<&'static str> {
    let fate = match acquire.fate {
        Fate::Awaited => None,
        Fate::DroppedAfterPolls(_) | Fate::DroppedAfter(_) => Some("dropped"),
        Fate::Stalled { .. } => Some("stalled"),
        Fate::Forgotten { .. } => Some("forgotten"),
    };
    let owner = match acquire.owner {
        Owner::Fresh => None,
        Owner::Shared(_) => Some("owners"),
        Owner::Nested => Some("nested"),
    };
    let nested = acquire.owner == Owner::Nested;
    let others = [
        ("single", acquire.wait == Wait::Never),
        ("several", acquire.keys.len() > 1),
        ("shared", !acquire.shared.is_empty()),
        ("permits", acquire.permits.is_some()),
        ("lease", acquire.lease.is_some()),
        ("max_hold", acquire.max_hold.is_some()),
        // Otherwise a nested acquire has no limit of its own.
        ("terms", nested && acquire.max_hold.is_some()),
    ];
    let others = others
        .into_iter()
        .filter_map(|(class, has)| has.then_some(class));
    others.chain(fate).chain(owner).collect()
}

fn of_step(step: &Step) -> Vec<&'static str> {
    match step {
        Step::Acquire(acquire) => of_acquire(acquire),
        Step::Release(Release::DroppedOutside) => vec!["outside"],
        Step::Block(_) => vec!["block"],
        Step::Downgrade(_) => vec!["downgrade"],
        Step::Force(_) => vec!["force"],
        Step::Shutdown(_) => vec!["shutdown"],
        Step::Release(_) | Step::Pause(_) | Step::Inspect(_) => Vec::new(),
    }
}

fn of_plan(plan: &Plan) -> Vec<&'static str> {
    let mut found: Vec<_> = plan
        .events
        .iter()
        .map(|event| of_event(&event.what))
        .collect();
    let steps = plan.actors.iter().flat_map(|actor| &actor.steps);
    found.extend(steps.flat_map(of_step));
    for manager in &plan.managers {
        let few = manager.max_waiters < 65_536 || manager.max_waiters_per_key < 1_024;
        found.extend(few.then_some("bounds"));
        found.extend((manager.runtimes > 1).then_some("runtimes"));
        found.extend(manager.fixed.map(|_| "fixed"));
        found.extend((manager.keep > 0).then_some("kept"));
    }
    found.extend((!plan.outsiders.is_empty()).then_some("outsiders"));
    found.extend(match plan.messages {
        Messages::PROMPT => None,
        Messages::LOST => Some("deaf"),
        _ => Some("messages"),
    });
    found.extend((plan.delay == DISTANT).then_some("distant"));
    found.extend(plan.lingers.then_some("lingering"));
    found.extend((plan.transfer_ttl != TRANSFER_TTL).then_some("transfers"));
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns in how many of these seeds each class is drawn.
fn counts(seeds: u64, weights: &Weights) -> BTreeMap<&'static str, usize> {
    let mut counts: BTreeMap<_, _> = CLASSES.iter().map(|class| (*class, 0)).collect();
    for class in (0..seeds).flat_map(|seed| of_plan(&draw(seed, weights))) {
        *counts.get_mut(class).unwrap() += 1;
    }
    counts
}

/// At this rate the default seeds have each class more than a hundred times.
#[test]
fn each_class_is_drawn_in_few_seeds() {
    let counts = counts(200, &Weights::without(&[]).unwrap());
    assert!(counts.values().all(|count| *count >= 10), "{counts:?}");
}

#[test]
fn class_switched_off_is_not_drawn() {
    for class in CLASSES {
        let counts = counts(50, &Weights::without(&[class]).unwrap());
        assert_eq!(counts[class], 0, "{class}");
    }
}
