//! A command for one item, which sessions prepare: parsing and planning it takes longer than running it.
//!
//! Behind a proxy, clients share sessions. So a statement is prepared by SQL, under a name that no other statement has, and
//! not by the client library, which numbers its statements. An `EXECUTE` has no parameters, so the arguments are SQL.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::LockKey;

/// A function call that returns one row.
#[derive(Clone, Copy, Hash)]
pub(super) struct Single {
    pub(super) columns: &'static str,
    pub(super) function: &'static str,
    /// The types of the arguments.
    pub(super) types: &'static [&'static str],
}

impl Single {
    pub(super) fn prepare(self) -> String {
        let parameters: Vec<_> = (1..=self.types.len()).map(|it| format!("${it}")).collect();
        let (name, types) = (self.name(), self.types.join(", "));
        let select = self.select(&parameters.join(", "));
        format!("PREPARE {name} ({types}) AS {select}")
    }

    pub(super) fn execute(self, arguments: &str) -> String {
        format!("EXECUTE {} ({arguments})", self.name())
    }

    pub(super) fn select(self, arguments: &str) -> String {
        format!(
            "SELECT {} FROM {}({arguments})",
            self.columns, self.function
        )
    }

    /// Processes of two versions can share a session, so the name depends on the statement.
    fn name(self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!(
            "{}_{:016x}",
            self.function.replace('.', "_"),
            hasher.finish()
        )
    }
}

/// Returns the key as SQL. No character of it can end the literal.
pub(super) fn literal(key: &LockKey) -> String {
    let bytes = key.as_str().bytes();
    let hex: String = bytes.map(|it| format!("{it:02x}")).collect();
    // The session may find functions of other roles first.
    format!("pg_catalog.convert_from(pg_catalog.decode('{hex}', 'hex'), 'UTF8')")
}
