//! The minimum Rust version of the library's dependencies.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// Returns `(1, 88)` for `1.88` and `1.88.0`.
fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().expect("a number"));
    (
        parts.next().expect("a major version"),
        parts.next().unwrap_or(0),
    )
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--all-features",
        ])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// Returns the ids of the packages that a program with the library builds.
fn dependencies<'a>(metadata: &'a Value, library: &'a str) -> BTreeSet<&'a str> {
    let nodes = list(&metadata["resolve"]["nodes"]);
    let mut found = BTreeSet::new();
    let mut open = vec![library];
    while let Some(id) = open.pop() {
        if !found.insert(id) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id).expect("a node");
        for dependency in list(&node["deps"]) {
            // Others are for tests.
            let kinds = list(&dependency["dep_kinds"]);
            if kinds.iter().any(|kind| kind["kind"] != "dev") {
                open.push(dependency["pkg"].as_str().expect("an id"));
            }
        }
    }
    found
}

#[test]
fn dependencies_need_no_newer_rust() {
    let metadata = metadata();
    let packages = list(&metadata["packages"]);
    let library = packages
        .iter()
        .find(|package| package["name"] == "tower-lock");
    let library = library.expect("the library");
    let minimum = version(library["rust_version"].as_str().expect("a version"));
    let ids = dependencies(&metadata, library["id"].as_str().expect("an id"));
    assert!(ids.len() > 50, "{ids:?}");
    let newer: Vec<_> = packages
        .iter()
        .filter(|package| package["id"].as_str().is_some_and(|id| ids.contains(id)))
        .filter_map(|package| Some((&package["name"], package["rust_version"].as_str()?)))
        .filter(|(_, rust)| version(rust) > minimum)
        .collect();
    assert!(
        newer.is_empty(),
        "these need a Rust newer than {minimum:?}: {newer:?}"
    );
}
