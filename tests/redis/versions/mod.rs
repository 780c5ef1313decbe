//! Versions side by side in a rolling deployment.

mod granting;
mod old;
mod rolling;
