//! The state of one key in this process: its holder, its lease and its waiters.
//!
//! A lane is a state machine without I/O or tasks of its own. Each method that takes
//! [`Effects`](super::effect::Effects) is one event of the table in [`super`]: it changes the state under
//! the mutex of the lane table, and adds to the effects the work for after the mutex is free. The events
//! have one file per phase.

mod attempting;
mod contending;
mod entering;
mod held;
mod inline;
mod looking;
mod pace;
mod queue;
mod renewing;
mod returning;
mod state;
mod tenure;
#[cfg(test)]
mod tests;
mod waiters;

pub(super) use attempting::{Place, Refused};
pub(super) use entering::Entered;
pub(super) use held::Release;
pub(super) use inline::TakeOver;
pub(super) use looking::Look;
pub(super) use renewing::Replied;
pub(super) use returning::{Kept, Order, ReleaseOrKeep};
pub(super) use state::{Lane, Seen, Waiter};
pub(super) use tenure::TAKE_OVER;
