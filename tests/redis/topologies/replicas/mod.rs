//! Grants that require acknowledgements from replicas.

mod connecting;
mod connections;
mod grants;
mod replies;
mod too_few;
mod topologies;
mod trio;
