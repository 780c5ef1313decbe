//! The public items of the crate, read from its sources, so that no list can omit one.

use std::collections::BTreeSet;

const TRAITS: [&str; 9] = [
    "Backend",
    "Guarded",
    "IntoLockKeys",
    "KeyExtractor",
    "KeyPart",
    "KeyParts",
    "LockBy",
    "LockTarget",
    "Node",
];

/// Other names of types that are listed.
const ALIASES: [&str; 1] = ["LockedShared"];

/// Returns the names of the public types.
pub(crate) fn types() -> BTreeSet<&'static str> {
    let modules = [
        include_str!("../../src/lib.rs"),
        include_str!("../../src/backend/mod.rs"),
        include_str!("../../src/backend/postgres/mod.rs"),
        include_str!("../../src/backend/redis/mod.rs"),
        include_str!("../../src/dashboard/mod.rs"),
    ];
    let items = modules.iter().flat_map(|module| module.split(';'));
    let exports = items.filter_map(|item| item.split_once("pub use "));
    exports
        .flat_map(|(_, item)| words(item))
        .filter(|name| name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase))
        .filter(|name| !TRAITS.contains(name) && !ALIASES.contains(name))
        .collect()
}

pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric())
}
