//! The permissions of the documented user: enough for locks, and only for locks.

use std::collections::BTreeSet;
use std::future::IntoFuture as _;
use std::num::NonZeroUsize;
use std::time::Duration;

use tower_lock::backend::redis::{Publish, RedisBackend, RedisBackendBuilder};
use tower_lock::backend::{
    AcquireRequest, Backend as _, BackendError, LeaseId, Release, Released, conformance,
};
use tower_lock::{ConnectError, ErrorKind, LockKey, LockManager};
use uuid::Uuid;

use crate::support::cluster::Cluster;
use crate::support::engine::{MS, PATIENCE, eventually};
use crate::support::process::version;
use crate::support::redis_server::RedisServer;

/// The rules of the manual, verbatim.
const LOCKER: &str = "ACL SETUSER locker reset on >SECRET ~lock:* resetchannels \
    &redisson_lock__channel:* +ping +time +eval +evalsha +incrby +del +exists +hset +hdel +hlen \
    +hexists +pttl +pexpire +zadd +zrem +zscore +zcount +zrange +zrevrangebyscore +publish \
    +subscribe +unsubscribe +pubsub|numsub";
/// The permissions without which a backend connects but serves no queue.
const FOR_QUEUES: [&str; 6] = [
    "zadd",
    "zrem",
    "zscore",
    "zcount",
    "zrange",
    "zrevrangebyscore",
];
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
/// The additional rule for a forced release.
const WITH_FORCE: &str = "+hgetall";

/// The names of locks without a prefix. The rules permit the invoices and forget their queues, which the trial at
/// the start cannot find out.
const WITHOUT_QUEUES: &str =
    "~order:* ~invoice:* ~self-test:* ~{fencing-token* ~{order:* ~{self-test:*";

/// Commands that every user may run, regardless of rules.
const EVERYBODY: [&str; 4] = ["auth", "hello", "quit", "reset"];
const KEY: &str = "lock:a";
const CHANNEL: &str = "redisson_lock__channel:{lock:a}";
/// The commands that name a key or a channel.
const WITH_NAMES: [&str; 24] = [
    "get KEY",
    "incrby KEY 1",
    "set KEY v",
    "del KEY",
    "exists KEY",
    "hset KEY f v",
    "hdel KEY f",
    "hlen KEY",
    "hexists KEY f",
    "pttl KEY",
    "pexpire KEY 1",
    "zadd KEY 1 m",
    "zrem KEY m",
    "zscore KEY m",
    "zcount KEY 0 1",
    "zrange KEY 0 1",
    "zrevrangebyscore KEY 1 0",
    "eval script 1 KEY",
    "evalsha hash 1 KEY",
    "publish CHANNEL 0",
    "subscribe CHANNEL",
    "spublish CHANNEL 0",
    "ssubscribe CHANNEL",
    // Permission for one of several keys is not enough.
    "del lock:b KEY",
];
/// The other commands. The number of subscribers may be read for any channel.
const WITHOUT_NAMES: [&str; 11] = [
    "info",
    "ping",
    "time",
    "unsubscribe",
    "sunsubscribe",
    "pubsub|numsub",
    "pubsub|shardnumsub",
    "cluster|slots",
    "asking",
    "wait",
    "unwatch",
];

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

/// Returns the server's reply to a command of the user: `OK`, or the missing permission.
fn dry_run(server: &RedisServer, command: &[&str]) -> redis::RedisResult<String> {
    if version() >= 7 {
        return server.command(&[&["ACL", "DRYRUN", "locker"], command].concat());
    }
    // Redis 6 has no `DRYRUN`, and checks permissions first.
    let client = redis::Client::open(server.url_of("locker", "SECRET"))?;
    let mut sent = redis::cmd(command[0]);
    match sent.arg(&command[1..]).exec(&mut client.get_connection()?) {
        Err(error) if error.code() == Some("NOPERM") => Ok(error.to_string()),
        _ => Ok("OK".to_owned()),
    }
}

/// Returns `true` if the user may send the command with at least some names.
fn may_run(server: &RedisServer, command: &str) -> bool {
    let mut words: Vec<_> = command.split('|').collect();
    loop {
        match dry_run(server, &words) {
            Ok(said) => return !said.contains("permissions to run the"),
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("wrong number of arguments"), "{said}");
                assert!(words.len() < 20, "{command}");
                words.push("1");
            }
        }
    }
}

/// Creates a builder for the user, with long timeouts for a busy machine.
fn at(url: &str) -> RedisBackendBuilder {
    let url = url.replace("://", "://locker:SECRET@");
    let builder = RedisBackend::builder(url).connect_timeout(PATIENCE);
    builder.response_timeout(PATIENCE)
}

async fn keeps_the_contract(builder: impl Fn() -> RedisBackendBuilder) {
    let (one, other) = (
        builder().connect().await.unwrap(),
        builder().connect().await.unwrap(),
    );
    conformance::all(&one, &other).await;
    conformance::node::all(&one, &other).await;
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

#[test]
fn guide_and_rustdoc_list_same_permissions() {
    let words = |text: &str| text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        include_str!("../../src/guide/redis.rs").replace("//!", ""),
        include_str!("../../src/backend/redis/backend.rs").replace("///", ""),
    ] {
        let quoted = [
            IN_CLUSTER,
            WITH_REPLICAS,
            WITH_QUARANTINE,
            WITH_VOTES,
            WITH_FORCE,
        ]
        .map(|rules| format!("`{rules}`"));
        for rules in [format!("{LOCKER} ```")].iter().chain(&quoted) {
            assert!(words(&text).contains(rules), "{rules}");
        }
    }
}

#[tokio::test]
async fn documented_user_passes_conformance() {
    let server = RedisServer::start();
    allow(&server, &format!("{LOCKER} {WITH_QUARANTINE}"));
    // The server is new, so a quarantine begins. It ends with the first grant.
    let quarantined = || at(&server.url()).quarantine(Duration::from_millis(1));
    let locks = LockManager::builder(quarantined().connect().await.unwrap());
    let locks = locks.build().unwrap();
    drop(locks.acquire("a").wait(PATIENCE).await.unwrap());
    allow(&server, &format!("{LOCKER} {WITH_FORCE}"));
    let connect = || at(&server.url()).connect();
    conformance::all(&connect().await.unwrap(), &connect().await.unwrap()).await;
    allow(&server, &format!("{LOCKER} {WITH_VOTES} {WITH_FORCE}"));
    keeps_the_contract(|| at(&server.url())).await;
    // Each grant checks for data loss and finds none.
    let rules = format!("{LOCKER} {WITH_QUARANTINE} {WITH_VOTES} {WITH_FORCE}");
    allow(&server, &rules);
    keeps_the_contract(quarantined).await;
}

#[tokio::test]
async fn quarantine_without_info_permission_is_refused() {
    let server = RedisServer::start();
    allow(&server, &format!("{LOCKER} +set"));
    // The first call creates the counter and needs no uptime, and the second one does.
    let connect = || at(&server.url()).quarantine(PATIENCE).connect();
    for _ in 0..2 {
        let refused = connect().await.unwrap_err();
        assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    }
    allow(&server, &format!("{LOCKER} {WITH_QUARANTINE}"));
    connect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_user_passes_cluster_conformance() {
    let cluster = Cluster::start();
    for node in 0..6 {
        allow(cluster.node(node), &format!("{} {WITH_FORCE}", rules()));
    }
    let url = cluster.url();
    keeps_the_contract(|| at(&url)).await;
    keeps_the_contract(|| with_everything(&url)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_with_denied_queue_leaves_moving_slot() {
    const NAME: &str = "{user}:1";
    let cluster = Cluster::start();
    for node in 0..6 {
        let rules = format!("{LOCKER} {IN_CLUSTER}");
        let names = format!("~{NAME} ~{{*}}% ~*self-test*");
        allow(cluster.node(node), &rules.replace("~lock:*", &names));
    }
    let backend = at(&cluster.url()).prefix("").connect().await.unwrap();
    assert_eq!(backend.warnings(), <&[String]>::default());
    let (slot, from) = (cluster.slot(NAME), cluster.node_of(NAME));
    let to = cluster.primaries().into_iter().find(|it| *it != from);
    let key = LockKey::new(NAME);
    let lease = || LeaseId::new(Uuid::new_v4(), 1);
    let leave = async |lease| {
        let left = backend.leave(&[Release::new(key.clone(), lease)]).await;
        left.into_iter().next().unwrap().unwrap()
    };
    let acquired = async || {
        let lease = lease();
        let acquire = AcquireRequest::new(key.clone(), lease, 10 * PATIENCE);
        backend.try_acquire(&acquire).await.unwrap();
        lease
    };
    let mut held = acquired().await;
    cluster.begin_migration(slot, from, to.unwrap());
    // The body is at the source, which permits the queue, and then at the target.
    let rule = format!("~{NAME}%*");
    cluster.cli(from, &["ACL", "SETUSER", "locker", &rule]);
    for _ in 0..2 {
        assert_eq!(leave(lease()).await, Released::NotHeld);
        assert_eq!(leave(held).await, Released::Released);
        held = acquired().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_acquires_in_moving_slot() {
    let cluster = Cluster::start();
    for node in 0..6 {
        let rules = format!("{LOCKER} {IN_CLUSTER} {WITH_QUARANTINE}");
        allow(cluster.node(node), &rules);
    }
    let backend = at(&cluster.url()).quarantine(Duration::from_millis(1));
    let locks = LockManager::builder(backend.connect().await.unwrap());
    let locks = locks.build().unwrap();
    let (slot, from) = (cluster.slot("{user}"), cluster.node_of("{user}"));
    let to = cluster.primaries().into_iter().find(|it| *it != from);
    cluster.begin_migration(slot, from, to.unwrap());
    let guard = locks.acquire("{user}").wait(PATIENCE).await.unwrap();
    guard.release().await.unwrap();
}

#[test]
fn documented_user_runs_only_listed_commands() {
    let server = RedisServer::start();
    if version() < 7 {
        // Redis 6 has neither `COMMAND LIST` nor `ACL DRYRUN`, but lists the allowed commands.
        allow(&server, &rules());
        let user = server.cli(&["ACL", "GETUSER", "locker"]);
        let allowed = user.lines().find(|line| line.starts_with("-@all"));
        // The category consists of these and of `script`.
        let is_exact = |line: &str| line.contains("+@scripting") && line.contains("-script");
        assert!(allowed.is_some_and(is_exact), "{user}");
        let allowed = allowed.unwrap().replace("+@scripting", "+eval +evalsha");
        assert_eq!(granted(&allowed), granted(&rules()));
        return;
    }
    let list = server.cli(&["COMMAND", "LIST"]);
    // A container of subcommands is not a command.
    let is_command = |name: &&str| !list.contains(&format!("\n{name}|"));
    let all: BTreeSet<_> = list.lines().filter(is_command).collect();
    assert!(all.len() > 300, "{}", all.len());
    for rules in [LOCKER.to_owned(), rules()] {
        allow(&server, &rules);
        let mut expected = granted(&rules);
        expected.extend(EVERYBODY);
        let allowed = all.iter().copied().filter(|it| may_run(&server, it));
        assert_eq!(allowed.collect::<BTreeSet<_>>(), expected);
    }
}

#[test]
fn documented_user_accesses_only_lock_names() {
    let server = RedisServer::start();
    let rules = rules();
    allow(&server, &rules);
    let is_known = |command: &str| version() >= 7 || !SINCE_7.contains(&format!("+{command}"));
    let mut seen: BTreeSet<_> = WITHOUT_NAMES.into();
    seen.retain(|command| is_known(command));
    for command in WITH_NAMES {
        if !is_known(command.split(' ').next().unwrap()) {
            continue;
        }
        let with = |key: &str, channel: &str| {
            let command = command.replace("KEY", key).replace("CHANNEL", channel);
            let words: Vec<_> = command.split(' ').collect();
            dry_run(&server, &words).unwrap()
        };
        assert_eq!(with(KEY, CHANNEL), "OK", "{command}");
        for (key, channel) in [
            ("other", "other"),
            ("lock", "redisson_lock__channel"),
            ("", ""),
            ("*", "*"),
        ] {
            let denied = with(key, channel).contains("permissions to access");
            assert!(denied, "{command} on {key} {channel}");
        }
        seen.extend(command.split(' ').next());
    }
    assert_eq!(seen, granted(&rules), "untested permission");
}

/// A script has only the permissions of the user that sends it.
#[test]
fn user_script_has_only_user_permissions() {
    let server = RedisServer::start();
    allow(&server, &rules());
    server.cli(&["SET", "other", "untouched"]);
    let client = redis::Client::open(server.url_of("locker", "SECRET")).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut run = |command: &str| {
        let command = command.replace(' ', "', '");
        let script = format!("return redis.call('{command}')");
        let answer = redis::cmd("EVAL").arg(script).arg(0).exec(&mut connection);
        answer.map_err(|error| error.to_string())
    };
    run("set lock:a 1").unwrap();
    for command in [
        "get other",
        "set other touched",
        "del other",
        "publish other 0",
        "keys *",
        "flushall",
        "hgetall lock:a",
    ] {
        let denied = run(command).unwrap_err();
        // The wording of 7.0, and the wording of later versions.
        let wordings = [
            "The user executing the script can't",
            "ACL failure in script",
        ];
        let is_denied = wordings.iter().any(|wording| denied.contains(wording));
        assert!(is_denied, "{command}: {denied}");
    }
    assert_eq!(server.cli(&["GET", "other"]), "untouched");
}

/// Permissions that a connect does not need: votes of a quorum and a quarantine (`get`, `set`,
/// `info`), a slot in migration (`asking`), and reuse of a pooled connection (`unwatch`).
const NOT_TRIED: [&str; 5] = ["get", "set", "info", "asking", "unwatch"];

#[tokio::test]
async fn missing_permission_rejects_connect() {
    let server = RedisServer::start();
    is_refused_without_any(LOCKER, &[&server], || at(&server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permission_rejects_cluster_connect() {
    let cluster = Cluster::start();
    let nodes: Vec<_> = (0..6).map(|node| cluster.node(node)).collect();
    let url = cluster.url();
    is_refused_without_any(&rules(), &nodes, || with_everything(&url)).await;
}

async fn is_refused_without_any(
    rules: &str,
    servers: &[&RedisServer],
    builder: impl Fn() -> RedisBackendBuilder,
) {
    for permission in granted(rules) {
        // Redis 6 can add a subcommand, but cannot remove it.
        let words = rules.split_ascii_whitespace();
        let others = words.filter(|word| word.strip_prefix('+') != Some(permission));
        let rules = others.collect::<Vec<_>>().join(" ");
        servers.iter().for_each(|server| allow(server, &rules));
        match builder().connect().await {
            Ok(backend) if FOR_QUEUES.contains(&permission) => {
                let warned = backend
                    .warnings()
                    .iter()
                    .any(|it| it.contains("sorted sets"));
                assert!(warned, "without {permission}");
            }
            Ok(_) => assert!(NOT_TRIED.contains(&permission), "{permission} is needed"),
            Err(ConnectError::Refused { .. }) => {
                assert!(!NOT_TRIED.contains(&permission), "{permission} is tried");
            }
            Err(error) => panic!("without {permission}: {error:?}"),
        }
    }
}

/// The pool sends `UNWATCH` before it reuses a connection, and opens a new one if that fails.
#[tokio::test]
async fn replica_connections_need_unwatch_for_reuse() {
    let server = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let port = server.port().to_string();
    let _replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    eventually("a replica in sync", || {
        let replication = server.cli(&["INFO", "replication"]);
        replication.contains("state=online")
    })
    .await;
    let opened = || {
        let stats = server.cli(&["INFO", "stats"]);
        let count = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        count.unwrap().parse::<usize>().unwrap()
    };
    for (without, again) in [("", true), ("-unwatch", false)] {
        allow(&server, &format!("{LOCKER} {WITH_REPLICAS} {without}"));
        let builder = at(&server.url()).min_replicas(NonZeroUsize::MIN, PATIENCE);
        let backend = builder.connect().await.unwrap();
        let locks = LockManager::builder(backend).build().unwrap();
        let before = opened();
        for number in 0..10 {
            drop(locks.acquire(format!("{without}:{number}")).await.unwrap());
        }
        let opened = opened() - before;
        assert_eq!(opened < 5, again, "{opened} for {without:?}");
    }
}

/// Names shared with Java have no prefix, so the rules must list the names.
#[tokio::test]
async fn user_without_prefix_locks_allowed_names() {
    const BESIDE_THE_NAMES: &str = "~self-test:* ~{fencing-token*";
    assert!(include_str!("../../src/guide/redisson.rs").contains(BESIDE_THE_NAMES));
    let server = RedisServer::start();
    let guide = include_str!("../../src/guide/redisson.rs");
    const OF_QUEUES: &str = "~{order:* ~{self-test:*";
    assert!(guide.contains(OF_QUEUES));
    for of_queues in ["", OF_QUEUES] {
        let names = format!("~order:* {BESIDE_THE_NAMES} {of_queues}");
        allow(&server, &LOCKER.replace("~lock:*", &names));
        let backend = at(&server.url()).prefix("").connect().await.unwrap();
        let queues_are_denied = backend.warnings().len() == 1;
        assert_eq!(queues_are_denied, of_queues.is_empty());
        let other = at(&server.url()).prefix("").connect().await.unwrap();
        let [locks, others] =
            [backend, other].map(|backend| LockManager::builder(backend).build().unwrap());
        let guard = locks.acquire("order:42").await.unwrap();
        let waiting = others.acquire("order:42").wait(PATIENCE).into_future();
        let ((), next) = tokio::join!(async { guard.release().await.unwrap() }, waiting);
        next.unwrap().release().await.unwrap();
        let refused = locks.acquire("invoice:42").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Misconfigured);
    }
}

#[tokio::test]
async fn lock_with_denied_queue_is_acquired_and_released() {
    let server = RedisServer::start();
    allow(&server, &LOCKER.replace("~lock:*", WITHOUT_QUEUES));
    let mut managers = Vec::new();
    for _ in 0..2 {
        let backend = at(&server.url()).prefix("").connect().await.unwrap();
        assert_eq!(backend.warnings(), <&[String]>::default());
        managers.push(LockManager::builder(backend).build().unwrap());
    }
    let [locks, others] = &managers[..] else {
        unreachable!("two managers")
    };
    let guard = locks.acquire("invoice:1").await.unwrap();
    let busy = others.acquire("invoice:1").no_wait().await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(others.inspect("invoice:1").await.unwrap().is_some());
    let waiting = others.acquire("invoice:1").wait(PATIENCE).into_future();
    let local = locks.acquire("invoice:1").wait(PATIENCE).into_future();
    let ((), next, local) = tokio::join!(
        async { guard.release().await.unwrap() },
        async { waiting.await.unwrap().release().await },
        async { local.await.unwrap().release().await },
    );
    next.unwrap();
    local.unwrap();
    let several = [1, 2, 3].map(|n| locks.acquire(format!("invoice:{n}")).into_future());
    for guard in futures_util::future::join_all(several).await {
        drop(guard.unwrap());
    }
    eventually("all are released", || {
        server.cli(&["KEYS", "invoice:*"]).is_empty()
    })
    .await;
}

/// The server executes the acquires after their timeout, and then what undoes them.
#[tokio::test]
async fn late_acquire_with_denied_queue_is_undone() {
    let server = RedisServer::start();
    allow(&server, &LOCKER.replace("~lock:*", WITHOUT_QUEUES));
    let builder = at(&server.url()).response_timeout(200 * MS).prefix("");
    let backend = builder.connect().await.unwrap();
    let connections = || {
        let list = server.cli(&["CLIENT", "LIST"]);
        let own = list.lines().filter(|line| line.contains("user=locker"));
        own.map(|line| line.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (before, granted) = (connections(), server.calls("hset"));
    let acquires = ["invoice:1", "invoice:2", "invoice:3"].map(|key| {
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        AcquireRequest::new(LockKey::new(key), lease, 10 * PATIENCE)
    });
    server.stop_process();
    let acquires = acquires.iter().map(|it| backend.try_acquire(it));
    let outcomes = futures_util::future::join_all(acquires).await;
    let errors = outcomes.into_iter().map(Result::unwrap_err);
    let sent = errors.filter(BackendError::may_have_taken_effect).count() as u64;
    // One alone and one in a call for several. The third is in that call, or is not sent.
    assert!(sent >= 2, "{sent} of 3 sent");
    server.continue_process();
    eventually("all are undone", || {
        server.calls("hset") >= granted + sent && server.cli(&["KEYS", "invoice:*"]).is_empty()
    })
    .await;
    // An acquire that is not sent opens another connection.
    assert!(sent < 3 || connections() == before);
}

/// Without these permissions, the backend omits the owner and the memory policy warning.
#[tokio::test]
async fn extra_permissions_enable_owner_and_warnings() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    for (more, tells) in [("", false), ("+hgetall +info", true)] {
        allow(&server, &format!("{LOCKER} {more}"));
        let backend = at(&server.url()).connect().await.unwrap();
        assert_eq!(backend.warnings().len(), usize::from(tells));
        let [here, there] = [backend.clone(), backend]
            .map(|backend| LockManager::builder(backend).build().unwrap());
        let guard = here.acquire("a").await.unwrap();
        let info = there.inspect("a").await.unwrap().unwrap();
        // The part of the owner that identifies its process.
        let owner = guard.owner().to_string();
        let owner = owner.split(':').next().unwrap();
        assert_eq!(format!("{info:?}").contains(owner), tells, "{info:?}");
    }
}
