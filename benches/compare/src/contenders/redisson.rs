//! Redisson, in a Java program that Maven builds at the first use.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Returns the command of a worker with locks of this kind, which its `Worker` lists.
pub(crate) fn program(url: &str, kind: &str, permits: u32) -> Result<Command, String> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    BUILT.get_or_init(build).clone()?;
    let target = folder().join("target");
    let classes = [target.join("redisson.jar"), target.join("lib/*")];
    let mut command = Command::new("java");
    command
        .arg("-cp")
        .arg(std::env::join_paths(classes).expect("no path with a colon"))
        .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        .args(["compare.Worker", url, kind, &permits.to_string()]);
    Ok(command)
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/redisson"))
}

fn build() -> Result<(), String> {
    let output = Command::new("mvn")
        .args(["--quiet", "--batch-mode", "package"])
        .current_dir(folder())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("`mvn` cannot be run ({error}); it takes a JDK and Maven"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.success() {
        true => Ok(()),
        false => {
            let first = said.lines().find(|line| line.contains("ERROR"));
            Err(format!("`mvn package`: {}", first.unwrap_or("fails")))
        }
    }
}
