//! Rejections that no manager counts.

use metrics::{counter, histogram};

use super::families;
use crate::Error;
use crate::observe::outcome::Outcome;

/// Adds a request that was rejected without an acquire to the series of acquires without a name.
pub(in crate::observe) fn rejected_at_once(error: &Error) {
    let outcome = Outcome::of(Err(error)).as_str();
    counter!(families::ACQUIRES, "outcome" => outcome).increment(1);
    histogram!(families::WAIT, "outcome" => "rejected").record(0.0);
}
