//! Commands that are sent together, rejected, or sent again.

mod blast_radius;
mod renewals;
mod resend;
mod together;
