//! Shortens a plan for as long as it violates the same invariant.

use crate::draw::TRANSFER_TTL;
use crate::plan::{Acquire, Fate, Messages, Owner, Plan, Release, Step, What};
use crate::violation::Violation;

/// The most runs that one plan is worth.
const MOST_RUNS: usize = 3_000;

/// The shortest plan that was found, and what it violates, as `run` says.
pub fn shrink(
    mut plan: Plan,
    mut violation: Violation,
    run: &dyn Fn(&Plan) -> Option<Violation>,
) -> (Plan, Violation) {
    let invariant = violation.invariant;
    let mut runs = 0;
    loop {
        let mut shortened = false;
        let mut n = 0;
        while let Some(candidate) = candidate(&plan, n) {
            runs += 1;
            if runs > MOST_RUNS {
                return (plan, violation);
            }
            let again = run(&candidate).filter(|again| again.invariant == invariant);
            match again {
                // The next simplification has moved to this place.
                Some(again) => {
                    (plan, violation) = (candidate, again);
                    shortened = true;
                }
                None => n += 1,
            }
        }
        if !shortened {
            return (plan, violation);
        }
    }
}

/// The plan with its `n`-th simplification; `None` if it has no more.
fn candidate(plan: &Plan, mut n: usize) -> Option<Plan> {
    let mut plan = plan.clone();
    if n < plan.actors.len() {
        plan.actors.remove(n);
        return Some(plan);
    }
    n -= plan.actors.len();
    if n < plan.outsiders.len() {
        plan.outsiders.remove(n);
        return Some(plan);
    }
    n -= plan.outsiders.len();
    if n < plan.events.len() {
        plan.events.remove(n);
        return Some(plan);
    }
    n -= plan.events.len();
    for actor in &mut plan.actors {
        if n < actor.steps.len() {
            actor.steps.remove(n);
            return Some(plan);
        }
        n -= actor.steps.len();
    }
    let mut changes: Vec<Plan> = Vec::new();
    if plan.delay != (1, 1) {
        changes.push(Plan {
            delay: (1, 1),
            ..plan.clone()
        });
    }
    if plan.messages != Messages::PROMPT {
        changes.push(Plan {
            messages: Messages::PROMPT,
            ..plan.clone()
        });
    }
    if plan.lingers {
        changes.push(Plan {
            lingers: false,
            ..plan.clone()
        });
    }
    if plan.transfer_ttl != TRANSFER_TTL {
        changes.push(Plan {
            transfer_ttl: TRANSFER_TTL,
            ..plan.clone()
        });
    }
    for at in 0..plan.managers.len() {
        if plan.managers[at].keep > 0 {
            let mut simpler = plan.clone();
            simpler.managers[at].keep = 0;
            changes.push(simpler);
        }
        if plan.managers[at].fixed.is_some() {
            let mut simpler = plan.clone();
            simpler.managers[at].fixed = None;
            changes.push(simpler);
        }
    }
    for at in 0..plan.actors.len() {
        if plan.actors[at].start > 1 {
            let mut simpler = plan.clone();
            simpler.actors[at].start = 1;
            changes.push(simpler);
        }
        for step in 0..plan.actors[at].steps.len() {
            for simple in simpler_steps(&plan.actors[at].steps[step]) {
                let mut simpler = plan.clone();
                simpler.actors[at].steps[step] = simple;
                changes.push(simpler);
            }
        }
    }
    for at in 0..plan.events.len() {
        if let What::Trouble { share, .. } = &plan.events[at].what
            && *share < 100
        {
            let mut simpler = plan.clone();
            if let What::Trouble { share, .. } = &mut simpler.events[at].what {
                *share = 100;
            }
            changes.push(simpler);
        }
    }
    (n < changes.len()).then(|| changes.swap_remove(n))
}

fn simpler_steps(step: &Step) -> Vec<Step> {
    match step {
        Step::Acquire(acquire) => simpler_acquires(acquire)
            .into_iter()
            .map(Step::Acquire)
            .collect(),
        Step::Release(how) if *how != Release::Dropped => vec![Step::Release(Release::Dropped)],
        _ => Vec::new(),
    }
}

fn simpler_acquires(acquire: &Acquire) -> Vec<Acquire> {
    let mut simpler = Vec::new();
    let mut simplify = |change: &dyn Fn(&mut Acquire)| {
        let mut changed = acquire.clone();
        change(&mut changed);
        simpler.push(changed);
    };
    if acquire.fate != Fate::Awaited {
        simplify(&|it| it.fate = Fate::Awaited);
    }
    if acquire.lease.is_some() {
        simplify(&|it| it.lease = None);
    }
    if acquire.max_hold.is_some() {
        simplify(&|it| it.max_hold = None);
    }
    if matches!(acquire.owner, Owner::Shared(_)) {
        simplify(&|it| it.owner = Owner::Fresh);
    }
    if !acquire.shared.is_empty() {
        simplify(&|it| it.shared.clear());
    }
    if acquire.permits.is_some() {
        simplify(&|it| it.permits = None);
    }
    if acquire.keys.len() > 1 {
        simplify(&|it| it.keys.truncate(1));
    }
    simpler
}
