//! Several stores that know nothing of each other: whoever has most of them has the lock.
