//! Many locks, waiters and rounds. `make test-long` runs these tests.

mod force_release;
mod many_locks;
