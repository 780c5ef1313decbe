//! The state of one key in this process: its holder, its lease and its waiters.
//!
//! A lane is a state machine without I/O or tasks of its own. Each method that takes
//! [`Effects`](effect::Effects) is one event of the table in [`super`]: it changes the state under
//! the mutex of the lane table, and adds to the effects the work for after the mutex is free. The events
//! have one file per phase:
//!
//! | file | responsibility |
//! |---|---|
//! | `state` | the state, and the queries that all events share |
//! | `entering` | an acquire enters |
//! | `contending`, `attempting` | the task that contends for the key: its start and end, its attempts and pauses |
//! | `held`, `tenure`, `holding`, `group`, `readers`, `renewing` | the events of a held lease, its owners and their holds, the replies to renewals |
//! | `downgrading` | an exclusive lease becomes shared |
//! | `returning` | the lease is returned to the backend |
//! | `queue`, `waiters`, `pace`, `estimate` | the queue, its list, its speed, the time until it is empty |
//! | `looking` | the checks by the watchdog |

pub(super) mod contending;
pub(super) mod effect;
pub(super) mod few;
pub(super) mod holding;
pub(super) mod queue;
mod state;
#[cfg(test)]
mod tests;

pub(super) use contending::attempting::{Place, Refused};
pub(super) use contending::looking::{Due, UNPOLLED};
pub use holding::MAX_HOLD_COUNT;
pub(super) use holding::downgrading::{Reserved, Turn};
pub(super) use holding::held::Release;
pub(super) use holding::returning::{Kept, Order, ReleaseOrKeep};
pub(super) use queue::entering::Entered;
pub(super) use queue::waiters::Waiter;
#[cfg(feature = "dashboard")]
pub(crate) use state::HeldBy;
pub(super) use state::{First, Lane, Seen};
