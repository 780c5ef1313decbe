//! The number of instructions of a path, counted with callgrind.

use std::process::Command;

/// The argument that makes this program run a path instead of counting.
pub(crate) const CHILD: &str = "--run";

/// The number of runs, which is large enough to cover one-time allocations and growing tables.
const TIMES: u64 = 2_000;

/// The number of processes per figure, of which the lowest counts: on a loaded machine, a process takes
/// seconds, in which the watchdog adds its own instructions.
const PROCESSES: usize = 5;

/// Returns the instructions of one run of the path.
pub(crate) fn instructions(path: &str) -> u64 {
    let lowest = |times| (0..PROCESSES).map(|_| total(path, times)).min();
    let (once, twice) = (lowest(TIMES), lowest(2 * TIMES));
    (twice.expect("a total") - once.expect("a total")) / TIMES
}

fn total(path: &str, times: u64) -> u64 {
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([CHILD, path, &times.to_string()])
        .output()
        .expect("valgrind is installed");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{path}: {text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    let number = collected.and_then(|(_, number)| number.trim().parse().ok());
    number.unwrap_or_else(|| panic!("callgrind printed no number: {text}"))
}
