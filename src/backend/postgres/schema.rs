//! The schema of locks.

/// The SQL that creates it.
pub(super) const MIGRATION: &str = include_str!("migration.sql");

/// The version that this crate uses.
pub(super) const VERSION: i32 = 1;
