//! Benchmarks: for developers estimating the cost of a lock, or choosing between locks.
//!
//! `make bench` measures this crate beside other locks and writes
//! [`benches/results`](https://github.com/tower-lock/tower-lock/tree/main/benches/results). `cargo bench -p tests --bench speed`
//! measures this crate alone. Both start their own Redis server.
//!
//! # Beside other locks
//!
//! The figures are medians of five rounds, on a machine with two cores for clients and Redis together.
//!
//! | figure | tower-lock | rslock | distributed-lock | Redisson | scripts alone, no token |
//! |---|---|---|---|---|---|
//! | acquire, 1 in flight, p50 | 89–127 µs | 80 µs | 75 µs | 104 µs | 86 µs |
//! | lock and unlock per second, 16 in flight | 66,000 | 70,000 | 43,000 | 9,000 | 33,000 |
//! | the same, 64 in flight | 138,000 | 85,000 | 46,000 | 11,000 | 72,000 |
//! | the same, 256 in flight | 186,000 | 95,000 | 52,000 | 11,000 | 96,000 |
//! | one hot key, 64 waiters in one process, grants per second | 706,000 | 7,000 | 6,000 | 3,000 | 6,000 |
//! | longest wait there | 5 ms | 790 ms | 597 ms | 518 ms | 458 ms |
//! | one hot key, 4 processes of 16 waiters, grants per second | 400,000 | 12,000 | not measured | 616 | not measured |
//! | longest wait there | 9 ms | 764 ms | not measured | 1,242 ms | not measured |
//! | requests per second through axum, 64 connections, as a share of those without a lock | 68 % on Redis (48–68 % from run to run), 95 % in memory | 61 % | not measured | not measured | 55 %, with a token |
//!
//! ![Plot: lock and unlock per second over the number in flight, one line per lock; figures in the table above][plot]
//!
//! The [table](https://github.com/tower-lock/tower-lock/blob/main/benches/results/table.md) has the figures of the
//! latest run of each scenario, with ranges, its commit and its date.
//!
//! [plot]: https://raw.githubusercontent.com/tower-lock/tower-lock/main/benches/results/throughput.svg
//!
//! # Build
//!
//! An app with axum and tokio alone is 48 packages. What this crate adds to it, in a first build without optimization:
//!
//! | features | packages | CPU time |
//! |---|---|---|
//! | the default, `axum` and `redis` | 61 | 38 s, where the app alone takes 25 s |
//! | `axum` alone, locks in memory | 19 | 16 s |
//! | `axum` and `postgres` | 55 | 42 s, where the app alone takes 19 s |
//!
//! # How to read the figures
//!
//! - Compare ratios. Absolute figures drift by a fifth between runs on such a machine. Measure on your own machine
//!   before you decide.
//! - The acquire of tower-lock takes 89 µs if the release is awaited, and 127 µs while the last release is in flight.
//!   Without wake-ups between cores (client and server on one core) it takes 32 µs, rslock 22 µs and distributed-lock
//!   30 µs.
//! - With 64 or more in flight, acquires and releases of tower-lock share script calls.
//! - On a hot key in one process, tower-lock hands the lock off without a command. The others ask Redis for each
//!   grant.
//! - The locks do different work. tower-lock counts a fencing token, renews leases and reports losses. Redisson and
//!   distributed-lock renew. rslock and the scripts do neither.
//! - A handler that does nothing shows the whole cost of a lock per request. A real handler shows less.
//!
//! # What the locks offer
//!
//! | | tower-lock | [rslock](https://docs.rs/rslock) | [distributed-lock](https://docs.rs/distributed-lock) | [Redisson](https://github.com/redisson/redisson) `RLock` | `tokio::sync::Mutex` | PostgreSQL advisory lock |
//! |---|---|---|---|---|---|---|
//! | locks live in | memory, PostgreSQL, Redis in every topology | Redis, Redlock over several, Cluster | PostgreSQL, Redis, MySQL, MongoDB, files | Redis in every topology | one process | PostgreSQL |
//! | for | axum, tower, Rust | Rust | Rust | Java | Rust | any language |
//! | HTTP responses, keys from requests | yes | no | no | no | no | no |
//! | reentrant | per request | no | no | per thread | no | per session |
//! | renewed while held | yes | by a call | yes | yes | not needed | not needed |
//! | reports its loss | yes | no | yes | no | cannot be lost | with the connection |
//! | fencing token | yes | no | no | in another lock type | not needed | no |
//! | waiters | queue, pub/sub | poll | depends on the backend | pub/sub | queue | queue |
//! | other features | several keys, all or none; shared locks, permits | | read-write locks, semaphores | fair, read-write and multi locks, semaphores, and more | | ends with the transaction |
//!
//! # When another lock is better
//!
//! - *One process, a fixed set of resources.* A `tokio::sync::Mutex` is enough and much faster: over two million
//!   hand-offs per second, where tower-lock makes about 710,000.
//! - *The data is in PostgreSQL.* `SELECT … FOR UPDATE`, or an advisory lock in the same transaction, ends with the
//!   write. Use a lock service only for work that one transaction does not cover.
//! - *One lock at a time, and only Redis.* `SET NX PX`, as in rslock and distributed-lock, needs less of the server
//!   than a script with a fencing token. Their acquires take 80 and 75 µs, where tower-lock takes 89 to 127 µs. With
//!   16 in flight, rslock makes as many pairs per second. With more in flight, tower-lock makes more.
//!
//! # This crate alone
//!
//! [`benches/README.md`](https://github.com/tower-lock/tower-lock/blob/main/benches/README.md) has the latest figures of
//! `cargo bench -p tests --bench speed`: allocations per request, the time that a layer adds, and the ratio to bare scripts.
//! `make instructions` counts the instructions of the hot paths and compares them with stored counts.
