//! The state of one key in this process: its holder, its lease and its waiters.
//!
//! A lane is a state machine without I/O or tasks of its own. Each method that takes
//! [`Effects`](super::effect::Effects) is one event of the table in [`super`]: it changes the state under
//! the mutex of the lane table, and adds to the effects the work for after the mutex is free. The events
//! have one file per phase:
//!
//! | file | responsibility |
//! |---|---|
//! | `state` | the state, and the queries that all events share |
//! | `entering` | an acquire enters |
//! | `inline`, `contending`, `attempting` | the first attempt by its acquire, the acquire loop, its attempts and pauses |
//! | `held`, `tenure`, `holding`, `group`, `readers`, `renewing` | the events of a held lease, its owners and their holds, the replies to renewals |
//! | `downgrading` | an exclusive lease becomes shared |
//! | `returning` | the lease is returned to the backend |
//! | `queue`, `waiters`, `pace`, `estimate` | the queue, its list, its speed, the time until it is empty |
//! | `looking` | the checks by watchdogs |

mod attempting;
mod contending;
mod downgrading;
mod entering;
mod estimate;
mod group;
mod held;
mod holding;
mod inline;
mod looking;
mod pace;
mod queue;
mod readers;
mod renewing;
mod returning;
mod state;
mod tenure;
#[cfg(test)]
mod tests;
mod waiters;

pub(super) use attempting::{Place, Refused};
pub(super) use downgrading::{Reserved, Turn};
pub(super) use entering::Entered;
pub(super) use held::Release;
pub(super) use inline::TakeOver;
pub(super) use looking::Look;
pub(super) use renewing::Replied;
pub(super) use returning::{Kept, Order, ReleaseOrKeep};
#[cfg(feature = "dashboard")]
pub(crate) use state::HeldBy;
pub(super) use state::{Lane, Seen};
pub(super) use tenure::TAKE_OVER;
pub(super) use waiters::Waiter;
