//! Connections: how they are opened, and how their end is announced.

mod distance;
mod foreign;
mod idle;
mod matrix;
mod pooled;
mod reach;
mod spread;
