//! Locks in a real cluster, directly and through one endpoint.

mod endpoint;
mod migration;
mod nodes;
