//! Connections: how they are opened, and how their end is announced.

mod idle;
mod reach;
