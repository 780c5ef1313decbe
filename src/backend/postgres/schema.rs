//! The schema of locks.

/// The SQL that creates it.
pub(super) const MIGRATION: &str =
    concat!(include_str!("migration.sql"), include_str!("queue.sql"));

/// The version that this crate uses.
pub(super) const VERSION: i32 = 2;
