//! The cases of shared leases and permits that the random steps must reach.

use std::collections::BTreeMap;

use super::Comparison;
use crate::queue::model::{Body, Mode, Model, Place, Reply, is_shared, limit_of};
use crate::queue::scripts::Call;

pub(crate) const CASES: [&str; 13] = [
    "joined",
    "joined past an expired writer",
    "stopped by a writer",
    "stopped by clients outside the queue",
    "several admitted at once",
    "admitted after a writer left",
    "renewed beside an expired lease",
    "renewed while wanted",
    "last one released to the queue",
    "contended under an expired lease",
    "one of several released by force",
    "expired one released by force",
    "downgraded before waiting readers",
];

pub(crate) const PERMIT_CASES: [&str; 9] = [
    "permit beside others",
    "permit stopped by its limit",
    "permit stopped by a limit below those of the others",
    "permit stopped by a waiter",
    "permit admitted after a release",
    "several permits admitted at once",
    "permit in place of an expired one",
    "permit renewed beside an expired one",
    "one of several permits released by force",
];

fn shared(model: &Model) -> BTreeMap<String, i64> {
    match &model.body {
        Body::Shared(leases) => leases.clone(),
        _ => BTreeMap::new(),
    }
}

impl Comparison {
    /// Counts the cases that a call on the first lock is one of.
    pub(super) fn note(&mut self, call: &Call, before: &Model, reply: &Reply) {
        let (old, new) = (shared(before), shared(&self.model));
        let is_live = |until: &i64| *until > before.now;
        let places = &before.queue.places;
        let writer = |expired: bool| {
            places.iter().any(|place| {
                matches!(place, Place::Lease { lease, until, .. }
                    if !is_shared(lease) && is_live(until) != expired)
            })
        };
        let others = places.contains(&Place::Others);
        let is_beside = |name: &String| old.iter().any(|(it, at)| it != name && is_live(at));
        let granted = matches!(reply, Reply::Granted(_));
        let admitted = |own: &str| {
            new.keys()
                .filter(|it| *it != own && !old.contains_key(*it))
                .count()
        };
        let left = matches!(reply, Reply::Number(1..));
        let mut cases = [false; CASES.len()];
        match call {
            Call::Share { lease, .. } | Call::Contend { lease, .. } if is_shared(lease) => {
                let stopped = !granted && !old.is_empty();
                cases[0] = granted && is_beside(lease);
                cases[1] = cases[0] && writer(true);
                cases[2] = stopped && writer(false);
                cases[3] = stopped && others && !writer(false);
                cases[4] = admitted(lease) >= 2;
                let contends = matches!(call, Call::Contend { .. });
                cases[9] = contends && old.get(lease).is_some_and(|at| !is_live(at));
            }
            Call::RenewShared { lease, .. } => {
                let beside = old.iter().any(|(it, at)| it != lease && !is_live(at));
                cases[6] = left && beside;
                cases[7] = *reply == Reply::Number(2);
            }
            Call::Force { holder, spares } if *spares && is_shared(holder) => {
                cases[10] = left && !new.is_empty() && is_beside(holder);
                let expired = old.get(holder).is_some_and(|at| !is_live(at));
                cases[11] = expired && is_beside(holder);
            }
            Call::Release(_) => {
                cases[4] = admitted("") >= 2;
                let ended = !old.is_empty() && !old.keys().any(|it| new.contains_key(it));
                cases[8] = ended && !places.is_empty();
            }
            Call::Downgrade { lease, .. } => {
                cases[12] = admitted(&format!("s{lease}")) > 0;
            }
            Call::Leave(_) => {
                cases[5] = !old.is_empty() && writer(false) && admitted("") > 0;
            }
            _ => {}
        }
        for (case, _) in CASES.into_iter().zip(cases).filter(|(_, it)| *it) {
            *self.reached.entry(case).or_default() += 1;
        }
    }
    /// Counts the cases of permits that a call on the first lock is one of. Panics if a permit was granted above its
    /// limit.
    pub(super) fn note_permits(&mut self, call: &Call, before: &Model, reply: &Reply) {
        let permits = |model: &Model| match model.body.mode() {
            Some(Mode::Permits) => model.body.leases().cloned().unwrap_or_default(),
            _ => BTreeMap::new(),
        };
        let (old, new) = (permits(before), permits(&self.model));
        // A lease that ends may have a place in the queue, and be granted again.
        let ended = match call {
            Call::Release(lease) | Call::Leave(lease) | Call::Force { holder: lease, .. } => lease,
            _ => "",
        };
        let ends = |name: &String| !ended.is_empty() && name.ends_with(ended);
        let is_live = |name: &String| old.get(name).is_some_and(|until| *until > before.now);
        let stays = |name: &String| is_live(name) && !ends(name);
        let held = old.keys().filter(|it| is_live(it)).count();
        // Leases that have expired may stay beside others.
        let fresh = new
            .iter()
            .filter(|(it, until)| **until > before.now && !stays(it));
        let mut limits: Vec<_> = fresh.filter_map(|(it, _)| limit_of(it)).collect();
        limits.sort_unstable();
        let left = new.keys().filter(|it| stays(it)).count();
        // Some order of the grants keeps all limits.
        for (others, limit) in (left..).zip(&limits) {
            let limit = usize::try_from(*limit).unwrap();
            assert!(others < limit, "{call:?}: {new:?} after {before:?}");
        }
        let granted = matches!(reply, Reply::Granted(_));
        let done = matches!(reply, Reply::Number(1..));
        let mut cases = [false; PERMIT_CASES.len()];
        match call {
            Call::Share { lease, .. } | Call::Contend { lease, .. } => {
                let Some(limit) = limit_of(lease) else {
                    return;
                };
                let limit = usize::try_from(limit).unwrap();
                let waits = |place: &Place| matches!(place, Place::Lease { until, .. } if *until > before.now);
                let again = is_live(lease);
                cases[0] = granted && held > 0;
                cases[1] = !granted && !again && held == limit;
                cases[2] = !granted && !again && held > limit;
                let stopped = !granted && !again && held > 0 && held < limit;
                cases[3] = stopped && before.queue.places.iter().any(waits);
                cases[6] = granted && held > 0 && old.len() >= limit;
            }
            Call::Release(_) => {
                cases[4] = done && held > 1 && !limits.is_empty();
                cases[5] = limits.len() > 1;
            }
            Call::RenewShared { lease, .. } => {
                cases[7] = done && old.contains_key(lease) && held < old.len();
            }
            Call::Force { holder, spares } if *spares => {
                cases[8] = done && is_live(holder) && held > 1;
            }
            _ => {}
        }
        for (case, _) in PERMIT_CASES.into_iter().zip(cases).filter(|(_, it)| *it) {
            *self.reached.entry(case).or_default() += 1;
        }
    }
}
