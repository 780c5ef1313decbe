//! Commands that are sent together, rejected, or sent again.

mod blast_radius;
mod late;
mod renewals;
mod resend;
mod together;
