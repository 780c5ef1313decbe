//! Several stores as one: a failing minority, and a missing majority.

mod cancellation;
mod contention;
mod majority;
mod minority;
mod runtimes;
mod settings;
mod shared;
mod world;
