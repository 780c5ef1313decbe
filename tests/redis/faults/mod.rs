//! Faults of the server, of the network and of the process that holds a lock.

mod dropped;
mod hangs;
mod holder;
mod network;
mod process;
mod rejected;
mod restarts;
