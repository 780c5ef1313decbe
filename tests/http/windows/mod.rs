//! Requests that wait for a lock read their bodies, so that these fill no window of a connection.

mod bodies;
mod delays;
mod wire;
