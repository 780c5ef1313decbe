//! The permissions of the documented user: enough for locks, and only for locks.

mod limits;
mod queues;
mod shared;
mod uses;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use tower_lock::RedisBackend;
use tower_lock::backend::redis::{Publish, RedisBackendBuilder};

use crate::support::engine::PATIENCE;
use crate::support::process::version;
use crate::support::redis_server::RedisServer;

/// The rules of the manual, verbatim.
const LOCKER: &str = "ACL SETUSER locker reset on >SECRET ~lock:* resetchannels \
    &redisson_lock__channel:* +ping +time +eval +evalsha +incrby +del +exists +hset +hdel +hlen \
    +hexists +pttl +pexpire +zadd +zrem +zscore +zcount +zrange +zrevrangebyscore +publish \
    +subscribe +unsubscribe +pubsub|numsub";

const CHANNEL: &str = "redisson_lock__channel:{lock:a}";

/// The additional rules for a cluster.
const IN_CLUSTER: &str =
    "+cluster|slots +asking +spublish +ssubscribe +sunsubscribe +pubsub|shardnumsub";

/// Commands that Redis 6 lacks and rejects in a rule.
const SINCE_7: &str = "+spublish +ssubscribe +sunsubscribe +pubsub|shardnumsub";

/// The additional rules for `min_replicas`.
const WITH_REPLICAS: &str = "+wait +unwatch";

/// The additional rules for the votes of a quorum.
const WITH_VOTES: &str = "+get +set";

/// The additional rules for a quarantine.
const WITH_QUARANTINE: &str = "+set +info";

/// The additional rules for shared locks.
const WITH_SHARED: &str = "+hget +hgetall";

/// The additional rule for a forced release.
const WITH_FORCE: &str = "+hgetall";

fn rules() -> String {
    format!("{LOCKER} {IN_CLUSTER} {WITH_REPLICAS} {WITH_VOTES} {WITH_QUARANTINE}")
}

/// Returns the words of the rules that the server supports.
fn known(rules: &str) -> impl Iterator<Item = &str> {
    let words = rules.split_ascii_whitespace();
    words.filter(|word| version() >= 7 || !SINCE_7.contains(&word.replace('-', "+")))
}

fn allow(server: &RedisServer, rules: &str) {
    server.cli(&known(rules).collect::<Vec<_>>());
}

fn granted(rules: &str) -> BTreeSet<&str> {
    let words = known(rules);
    words.filter_map(|word| word.strip_prefix('+')).collect()
}

/// Creates a builder for the user, with long timeouts for a busy machine.
fn at(url: &str) -> RedisBackendBuilder {
    let url = url.replace("://", "://locker:SECRET@");
    let builder = RedisBackend::builder(url).connect_timeout(PATIENCE);
    builder.response_timeout(PATIENCE)
}

/// Publishes in both ways and requires one replica for each grant.
fn with_everything(url: &str) -> RedisBackendBuilder {
    let publish = match version() {
        ..7 => Publish::Plain,
        _ => Publish::Both,
    };
    let builder = at(url).publish(publish);
    builder.min_replicas(NonZeroUsize::MIN, PATIENCE)
}
