//! The instructions of the hot paths, compared with the stored figures: `make instructions`.
//!
//! Callgrind counts instructions, which depend little on the load of the machine.
//! Each path runs in processes of two kinds, twice as often in the second kind. The difference excludes the
//! start of the program. `-- --store` writes the figures to a file, which is committed with the change that explains
//! them. With the feature `metrics`, the figures are in a file of their own.
#![allow(missing_docs, clippy::print_stdout, clippy::print_stderr)]

mod counted;
mod paths;
mod stored;

use std::process::ExitCode;

use paths::PATHS;
use stored::Stored;

/// The tolerance in percent.
const TOLERANCE: f64 = 3.0;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` passes this option, and this program has no tests.
    if args.iter().any(|arg| arg == "--test") {
        return ExitCode::SUCCESS;
    }
    if let [option, name, times] = &args[..]
        && option == counted::CHILD
    {
        paths::run(name, times.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let figures = PATHS.map(|(name, _)| (name, counted::instructions(name)));
    if args.iter().any(|arg| arg == "--store") {
        stored::store(&figures);
        return ExitCode::SUCCESS;
    }
    compare(&figures, &Stored::read())
}

fn compare(figures: &[(&str, u64)], stored: &Stored) -> ExitCode {
    let mut is_slower = false;
    println!("| path | instructions | stored | |\n|---|---|---|---|");
    for (name, now) in figures {
        let Some(then) = stored.figure(name) else {
            println!("| {name} | {now} | none | not stored yet |");
            is_slower = true;
            continue;
        };
        let change = (*now as f64 / then as f64 - 1.0) * 100.0;
        println!("| {name} | {now} | {then} | {change:+.1} % |");
        is_slower |= change > TOLERANCE;
    }
    if !is_slower {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "More than {TOLERANCE} % above what is stored (with {}; this is {}), or not stored. Find the \
         cause, or store the new figures with `make instructions STORE=1`.",
        stored.compiler,
        stored::compiler(),
    );
    ExitCode::FAILURE
}
