//! The number of instructions of a path, counted with callgrind.

use std::process::Command;

/// The argument that makes this program run a path instead of counting.
pub(crate) const CHILD: &str = "--run";

/// The number of runs, which is large enough to cover one-time allocations and growing tables.
const TIMES: u64 = 2_000;

/// Returns the instructions of one run of the path.
pub(crate) fn instructions(path: &str) -> u64 {
    let (once, twice) = (total(path, TIMES), total(path, 2 * TIMES));
    (twice - once) / TIMES
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
