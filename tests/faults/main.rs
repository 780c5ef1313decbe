//! Every fault that locks must survive, under load. A referee that does not use the crate judges the runs.
//!
//! `cargo test -p tests --test faults [name…]` runs each fault once, or only those whose names contain one of the
//! words. `FAULT_RUNS` sets how often each runs, and `FAULT_JOBS` how many run concurrently.
//! It is a program of its own, which `make test-long` runs: it has its own harness.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod child;
mod fenced;
mod how;
mod keeper;
mod line;
mod load;
mod old_process;
mod referee;
mod rows;
mod run;
mod store;
#[path = "../support/mod.rs"]
mod support;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;

use referee::{Verdict, Violation};
use rows::Row;
use run::Run;
use table::Runs;

fn number(variable: &str, default: usize) -> usize {
    match std::env::var(variable) {
        Ok(value) => value
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={value} is no number")),
        Err(_) => default,
    }
}

fn main() -> ExitCode {
    if child::main() || keeper::main() {
        return ExitCode::SUCCESS;
    }
    let rows: &'static [Row] = rows::all().leak();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |row: &&Row| words.is_empty() || words.iter().any(|word| row.name.contains(*word));
    let rows: Vec<&'static Row> = rows.iter().filter(wanted).collect();
    if args.iter().any(|arg| arg == "--list") {
        rows.iter().for_each(|row| println!("{}: test", row.name));
        return ExitCode::SUCCESS;
    }
    let runs = number("FAULT_RUNS", 1);
    let jobs = number("FAULT_JOBS", 4).clamp(1, rows.len().max(1) * runs);
    let start = Instant::now();
    let outcomes: Vec<_> = rows.iter().map(|_| Mutex::new(Runs::default())).collect();
    // The runs alternate over the rows, so that concurrent runs are of different rows.
    let order = (0..runs).flat_map(|run| (0..rows.len()).map(move |row| (run, row)));
    let order: Vec<_> = order
        .filter(|(run, row)| *run == 0 || !words.is_empty() || !rows[*row].once)
        .collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some((_, row)) = order.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let verdict = run(rows[*row]);
                    let runs = outcomes[*row].lock();
                    runs.unwrap_or_else(PoisonError::into_inner).0.push(verdict);
                }
            });
        }
    });
    let outcomes = outcomes
        .into_iter()
        .map(|runs| runs.into_inner().unwrap_or_else(PoisonError::into_inner));
    let outcomes: Vec<_> = rows.into_iter().zip(outcomes).collect();
    table::print(&outcomes);
    println!("\n{:.0} s", start.elapsed().as_secs_f64());
    if outcomes.iter().all(|(_, runs)| runs.are_good()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a row once, in its own runtime.
fn run(row: &'static Row) -> Verdict {
    let start = Instant::now();
    let verdict = catch_unwind(AssertUnwindSafe(|| {
        // There is one worker thread. On a busy machine, a second one would stall at other times than the
        // stall detector. The row itself has this thread, and may block it.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut run = Run::start(row).await;
            (row.fault)(&mut run).await;
            run.finish().await
        })
    }));
    let verdict = verdict.unwrap_or_else(|panic| Verdict {
        violations: vec![Violation {
            of: "panic",
            what: said(&*panic),
        }],
        ..Verdict::default()
    });
    eprintln!(
        "{} ({:.1} s): {} violations; {}",
        row.name,
        start.elapsed().as_secs_f64(),
        verdict.violations.len(),
        verdict.evidence
    );
    for violation in &verdict.violations {
        eprintln!("  {}: {}", violation.of, violation.what);
    }
    verdict
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}
