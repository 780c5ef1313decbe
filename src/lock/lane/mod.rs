//! The state of one key in this process: its holder, its lease and its waiters.
//!
//! A lane is a state machine without I/O or tasks of its own. Its events are the methods that other rooms call through
//! `Engine::event` in `tasks/dispatch.rs`. An event changes the state under the mutex of the lane, as the table in [`super`]
//! shows, and adds to [`Effects`](effect::Effects) the work for after the mutex is free. A method that only needs the
//! moment takes that instead.
//!
//! | file or folder | responsibility |
//! |---|---|
//! | `state`, `effect`, `few` | the state, and the queries that all events share; the effects of an event, and their lists |
//! | `contending` | the loop that contends for the key: its start and end, its attempts and pauses, the first attempt |
//! | `holding` | the holds of an owner; the events of a held lease, its renewals, its downgrade and its return |
//! | `checks` | the checks by the watchdog, in every phase |
//! | `queue` | how acquires enter and leave the queue, whom a grant serves, the time until it is empty |

mod checks;
mod contending;
mod effect;
mod few;
mod holding;
mod queue;
mod state;
#[cfg(test)]
mod tests;

use state::{Contender, Contending, LATE_RELEASE, Phase, Returning, Sent, YIELDING};

pub(super) use checks::UNPOLLED;
pub(super) use contending::attempt::{Attempt, Replied, unanswered};
pub(super) use contending::attempting::PlaceChange;
pub(super) use effect::{Effects, Loss, Outgoing, Report, Wakeup, Work};
pub(super) use few::Few;
pub(super) use holding::returning::{OWN_TIMEOUT, Order, ReleaseOrKeep};
pub(super) use queue::entering::Entered;
pub(super) use queue::seats::{Seat, Seats};
pub(super) use queue::waiter::{Answer, Given, Waiter};
#[cfg(feature = "dashboard")]
pub(crate) use state::HeldBy;
pub(super) use state::{First, Lane, LastReply, is_unanswered};
