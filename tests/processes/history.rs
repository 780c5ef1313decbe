//! The writes to the database, and whether any is missing.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use rusqlite::Connection;

/// One write of an order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    pub(crate) order: String,
    pub(crate) token: i64,
    pub(crate) quantity: i64,
}

/// Records from now on each change of a quantity, in the same transaction.
pub(crate) fn keep_history(database: &Path) {
    let history = "
        CREATE TABLE writes (
            number   INTEGER PRIMARY KEY,
            order_id TEXT NOT NULL,
            token    INTEGER NOT NULL,
            quantity INTEGER NOT NULL
        );
        CREATE TRIGGER keep_history AFTER UPDATE OF quantity ON orders BEGIN
            INSERT INTO writes (order_id, token, quantity)
            VALUES (new.id, new.fence, new.quantity);
        END;";
    Connection::open(database)
        .unwrap()
        .execute_batch(history)
        .unwrap();
}

/// The state of the database at the end.
pub(crate) struct History {
    /// The writes in the order in which they were made.
    pub(crate) writes: Vec<Write>,
    /// The quantity of each order.
    quantities: HashMap<String, i64>,
}

impl History {
    pub(crate) fn read(database: &Path) -> Self {
        let database = Connection::open(database).unwrap();
        let sql = "SELECT order_id, token, quantity FROM writes ORDER BY number";
        let mut writes = database.prepare(sql).unwrap();
        let writes = writes.query_map([], |row| {
            Ok(Write {
                order: row.get(0)?,
                token: row.get(1)?,
                quantity: row.get(2)?,
            })
        });
        let mut quantities = database.prepare("SELECT id, quantity FROM orders").unwrap();
        let quantities = quantities.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        Self {
            writes: writes.unwrap().map(Result::unwrap).collect(),
            quantities: quantities.unwrap().map(Result::unwrap).collect(),
        }
    }

    /// Returns every defect: a lost update, or a missing acknowledged one.
    pub(crate) fn problems(&self, acknowledged: &[Write]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut last: HashMap<&str, &Write> = HashMap::new();
        let mut counts: HashMap<&str, i64> = HashMap::new();
        for write in &self.writes {
            *counts.entry(&write.order).or_default() += 1;
            let before = last.insert(&write.order, write);
            if write.quantity != before.map_or(0, |before| before.quantity) + 1 {
                problems.push(format!("an update is lost: {write:?} after {before:?}"));
            }
            if before.is_some_and(|before| write.token <= before.token) {
                problems.push(format!("an older token: {write:?} after {before:?}"));
            }
        }
        for (order, quantity) in &self.quantities {
            let count = counts.get(&**order).copied().unwrap_or(0);
            if *quantity != count {
                problems.push(format!("order {order}: {quantity} after {count} writes"));
            }
        }
        let writes: HashSet<_> = self.writes.iter().collect();
        for write in acknowledged.iter().filter(|write| !writes.contains(write)) {
            problems.push(format!("acknowledged, and missing: {write:?}"));
        }
        problems
    }
}
