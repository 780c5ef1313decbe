//! The stores of the tests in `on_stores`.

use tower_lock::{LockManager, LockManagerBuilder, Memory};

use crate::support::engine::MS;
use crate::support::simulated::Simulated;

/// A store, with two managers as of two processes.
pub(crate) struct Store<T> {
    pub(crate) name: &'static str,
    pub(crate) processes: [LockManagerBuilder; 2],
    /// Dropped after the test.
    pub(crate) kept: T,
}

/// Returns a new store of each kind.
pub(crate) fn stores() -> [Store<impl Send>; 2] {
    let (memory, wire) = (Memory::new(), Simulated::new(MS));
    let (memories, wires) = ([memory.clone(), memory], [wire.another_wire(), wire]);
    [
        ("memory", memories.map(LockManager::builder)),
        ("wire", wires.map(LockManager::builder)),
    ]
    .map(|(name, processes)| Store {
        name,
        processes,
        kept: (),
    })
}
