//! A runtime that stops affects no other, on each store of the parent module. `tests/redis` includes these tests with
//! stores of its own.

mod background;
mod elsewhere;
mod guards;
mod stopped;
mod waiters;
