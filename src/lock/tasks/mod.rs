//! The tasks: acquire loops and renewals at home, first attempts and releases near the caller. An event reaches its lane,
//! and its effects are carried out, in `dispatch`.
//!
//! | file or folder | responsibility |
//! |---|---|
//! | `dispatch`, `report` | the events of lanes and their effects; their logs and counts |
//! | `command`, `first_attempt`, `contender` | an acquire command and its reply; the first attempt; the acquire loop |
//! | `watchdog`, `unconfirmed` | renewals and deadlines; the releases without a lane, which the watchdog sends |
//! | `releaser`, `downgrade` | the return of leases; the downgrade of a guard |

pub(super) mod command;
pub(super) mod contender;
pub(super) mod dispatch;
pub(super) mod downgrade;
pub(super) mod first_attempt;
pub(super) mod releaser;
pub(super) mod report;
pub(super) mod unconfirmed;
pub(super) mod watchdog;
