//! The engine under simulated runtimes, a simulated store and virtual time.
//!
//! Each seed draws a plan ([`draw`]): processes with several runtimes, callers with their
//! acquires, and faults. The plan runs in virtual time ([`run`]), and what the callers and the
//! store see is checked against the invariants after each step ([`check`]). One seed always gives
//! the same history. A plan that violates an invariant is shortened ([`shrink`]) and printed.
//!
//! | variable | meaning |
//! |---|---|
//! | `SEEDS=n` | runs `n` seeds (2 000 unless set) |
//! | `FIRST=n` | starts at seed `n` (0 unless set) |
//! | `SEED=n` | runs one seed and prints its plan and its trace |
//! | `WITHOUT=a,b` | draws nothing of these classes ([`draw::CLASSES`]) |
//! | `ONLY=a,b` | draws nothing of all other classes |
//! | `KEEP=1` | goes on after violations, and counts them |
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

mod actor;
mod check;
mod draw;
mod environment;
mod executor;
mod plan;
mod queue;
mod run;
mod seen;
mod shrink;
mod store;
#[cfg(test)]
mod tests;
mod time;
mod violation;
mod wire;

use std::collections::BTreeMap;
use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::time::Instant;

use draw::{CLASSES, Weights, draw};
use violation::{Invariant, Violation};

/// How many violations are counted, and the first seed of each.
type Found = BTreeMap<Invariant, (usize, u64, Violation)>;

fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number")),
    )
}

fn weights() -> Weights {
    let names = |name| env::var(name).unwrap_or_default();
    let (without, only) = (names("WITHOUT"), names("ONLY"));
    let mut off: Vec<&str> = without.split(',').filter(|it| !it.is_empty()).collect();
    if !only.is_empty() {
        let only: Vec<&str> = only.split(',').collect();
        off.extend(CLASSES.iter().filter(|class| !only.contains(class)));
    }
    Weights::without(&off).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn seeds_keep_invariants() {
    let weights = weights();
    if let Some(seed) = number("SEED") {
        return replay(seed, &weights);
    }
    let (first, count) = (
        number("FIRST").unwrap_or(0),
        number("SEEDS").unwrap_or(2_000),
    );
    let go_on = number("KEEP").is_some();
    let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
    let found = Mutex::new(Found::new());
    let polls = AtomicU64::new(0);
    let start = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while go_on || !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let ran = run::run(&draw(seed, &weights), false);
                    polls.fetch_add(ran.polls as u64, Ordering::Relaxed);
                    let Some(violation) = ran.violation else {
                        continue;
                    };
                    failed.store(true, Ordering::Relaxed);
                    let mut found = found.lock().unwrap();
                    let entry = found.entry(violation.invariant);
                    let (times, least, what) =
                        entry.or_insert_with(|| (0, seed, violation.clone()));
                    *times += 1;
                    if seed < *least {
                        (*least, *what) = (seed, violation);
                    }
                }
            });
        }
    });
    let ran = next.into_inner().min(first + count) - first;
    let (elapsed, polls) = (start.elapsed(), polls.into_inner());
    println!("{ran} seeds, {polls} polls in {elapsed:.1?}");
    let found = found.into_inner().unwrap();
    for (invariant, (times, seed, violation)) in &found {
        println!(
            "{invariant:?}: {times} times, first in seed {seed}: {}",
            violation.what
        );
    }
    if let Some((_, seed, _)) = found.values().min_by_key(|(_, seed, _)| *seed) {
        if !go_on {
            replay(*seed, &weights);
        }
        panic!("{} invariants are violated", found.len());
    }
}

/// Prints what one seed does, and fails if it violates an invariant.
fn replay(seed: u64, weights: &Weights) {
    let plan = draw(seed, weights);
    let Some(violation) = run::run(&plan, false).violation else {
        println!("{plan:#?}");
        println!("{}", run::run(&plan, true).trace.join("\n"));
        println!("seed {seed} violates nothing");
        return;
    };
    let (plan, violation) =
        shrink::shrink(plan, violation, &|plan| run::run(plan, false).violation);
    let trace = run::run(&plan, true).trace;
    println!("{plan:?}\n{}", trace.join("\n"));
    panic!(
        "seed {seed} violates {:?}: {}",
        violation.invariant, violation.what
    );
}
