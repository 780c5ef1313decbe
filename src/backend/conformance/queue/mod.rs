//! The order of waiters. A store without a queue passes, because its waiters compete.

pub(super) mod places;
pub(super) mod transfers;
pub(super) mod waiter;
