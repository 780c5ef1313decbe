//! The kind of messages that report a release, as the program selects it.

/// The commands that publish a release, and that subscribe to it. Defaults to [`Auto`](Publish::Auto).
/// [`RedisBackendBuilder::publish`](crate::backend::redis::RedisBackendBuilder::publish) sets them.
///
/// A subscriber of one kind does not receive messages of the other. A waiter of this crate then acquires at
/// its next attempt, within 1 s. A waiter in Java acquires when the reported lease has passed. Redisson
/// since 3.22 uses the sharded commands if it is configured with cluster servers of version 7 or newer, and
/// the plain ones otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Publish {
    /// `Sharded` in a cluster of version 7 or newer, otherwise `Plain`.
    #[default]
    Auto,
    /// `PUBLISH` and `SUBSCRIBE`.
    Plain,
    /// `SPUBLISH` and `SSUBSCRIBE`. Requires version 7.
    Sharded,
    /// All four, while both kinds of clients exist. Requires version 7.
    Both,
}
