//! Locks in Go, in a program that Go builds at the first use.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Returns the command of a worker with locks of this kind, which its `connect` lists.
pub(crate) fn program(url: &str, kind: &str) -> Result<Command, String> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    BUILT.get_or_init(build).clone()?;
    let mut command = Command::new(folder().join("target/golocks"));
    command.args([url, kind]);
    Ok(command)
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/golocks"))
}

fn build() -> Result<(), String> {
    let output = Command::new("go")
        .args(["build", "-o", "target/golocks", "."])
        .current_dir(folder())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("`go` cannot be run ({error}); it takes Go 1.26"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "`go build`: {}",
            said.lines().next().unwrap_or("fails")
        )),
    }
}
