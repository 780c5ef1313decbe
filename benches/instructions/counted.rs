//! Instructions of a path, by callgrind.

use std::process::Command;

/// What makes this program run a path instead of counting.
pub(crate) const CHILD: &str = "--run";

/// Also enough for all that is allocated once, and for tables that grow.
const TIMES: u64 = 2_000;

/// Of one time through the path.
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
    number.unwrap_or_else(|| panic!("callgrind told no number: {text}"))
}
