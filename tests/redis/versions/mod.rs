//! Versions side by side in a rolling deployment.

mod old;
mod rolling;
