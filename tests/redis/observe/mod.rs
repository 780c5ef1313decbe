//! The logs and metrics of the Redis backend.

mod logs;
mod metrics;
mod publishing;
mod writes;
