//! The tasks: acquire loops and renewals at home, first attempts and releases near the caller. And what a lane event
//! leads to.

pub(super) mod command;
pub(super) mod contender;
pub(super) mod dispatch;
pub(super) mod downgrade;
pub(super) mod first_attempt;
pub(super) mod releaser;
pub(super) mod report;
pub(super) mod unconfirmed;
pub(super) mod watchdog;
