//! Several servers, and servers that lose their data. `make test-long` runs these tests.

mod cluster;
mod quarantine;
mod quorum;
mod replicas;
mod sentinel;
