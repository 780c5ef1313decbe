//! The user of the manual can lock, and can do nothing else.
// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use tower_lock::backend::conformance;
use tower_lock::backend::redis::{Publish, RedisBackend, RedisBackendBuilder};
use tower_lock::{ConnectError, ErrorKind, LockManager};

use support::cluster::Cluster;
use support::engine::{PATIENCE, eventually};
use support::process::version;
use support::redis_server::RedisServer;

/// What the manual says, word for word.
const LOCKER: &str = "ACL SETUSER locker reset on >SECRET ~lock:* resetchannels \
    &redisson_lock__channel:* +ping +time +eval +evalsha +incrby +del +exists +hset +hdel +hlen \
    +hexists +pttl +pexpire +publish +subscribe +unsubscribe +pubsub|numsub";
/// What it says of a cluster.
const IN_CLUSTER: &str =
    "+cluster|slots +asking +spublish +ssubscribe +sunsubscribe +pubsub|shardnumsub";
/// What Redis 6 has none of, and does not know in a rule.
const SINCE_7: &str = "+spublish +ssubscribe +sunsubscribe +pubsub|shardnumsub";
/// And of replicas that have to acknowledge.
const WITH_REPLICAS: &str = "+wait +unwatch";
/// And of the votes of a quorum.
const WITH_VOTES: &str = "+get +set";
/// And of a quarantine.
const WITH_QUARANTINE: &str = "+set +info";
/// And of a forced release.
const WITH_FORCE: &str = "+hgetall";

/// What a server lets everybody do, and no rule can take away.
const EVERYBODY: [&str; 4] = ["auth", "hello", "quit", "reset"];
const KEY: &str = "lock:a";
const CHANNEL: &str = "redisson_lock__channel:{lock:a}";
/// Everything that touches a key or a channel.
const WITH_NAMES: [&str; 18] = [
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
    "eval script 1 KEY",
    "evalsha hash 1 KEY",
    "publish CHANNEL 0",
    "subscribe CHANNEL",
    "spublish CHANNEL 0",
    "ssubscribe CHANNEL",
    // One of many keys is not enough.
    "del lock:b KEY",
];
/// Everything else. How many listen to a channel may be asked of any.
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

/// The words that the server knows.
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

/// What the server would say to a command of the user: `OK`, or what is missing.
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

/// Whether the user may send a command at all, be it with other names.
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

/// The user, patient with a busy machine.
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

/// Both ways to publish, and each grant acknowledged by a replica.
fn with_everything(url: &str) -> RedisBackendBuilder {
    let publish = match version() {
        ..7 => Publish::Plain,
        _ => Publish::Both,
    };
    let builder = at(url).publish(publish);
    builder.min_replicas(NonZeroUsize::MIN, PATIENCE)
}

#[test]
fn the_manual_and_the_documentation_say_the_same() {
    let words = |text: &str| text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        include_str!("../README.md").to_owned(),
        include_str!("../src/backend/redis/backend.rs").replace("///", ""),
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
async fn the_user_keeps_the_contract() {
    let server = RedisServer::start();
    allow(&server, &format!("{LOCKER} {WITH_QUARANTINE}"));
    // The server is new, so a quarantine begins. It is over after the first grant.
    let quarantined = || at(&server.url()).quarantine(Duration::from_millis(1));
    let locks = LockManager::builder(quarantined().connect().await.unwrap());
    let locks = locks.build().unwrap();
    drop(locks.acquire("a").wait(PATIENCE).await.unwrap());
    allow(&server, &format!("{LOCKER} {WITH_FORCE}"));
    let connect = || at(&server.url()).connect();
    conformance::all(&connect().await.unwrap(), &connect().await.unwrap()).await;
    allow(&server, &format!("{LOCKER} {WITH_VOTES} {WITH_FORCE}"));
    keeps_the_contract(|| at(&server.url())).await;
    // Looks for a loss at each grant, and finds none.
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
async fn the_user_keeps_the_contract_in_a_cluster() {
    let cluster = Cluster::start();
    for node in 0..6 {
        allow(cluster.node(node), &format!("{} {WITH_FORCE}", rules()));
    }
    let url = cluster.url();
    keeps_the_contract(|| at(&url)).await;
    keeps_the_contract(|| with_everything(&url)).await;
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
fn of_all_commands_the_user_may_send_those_of_the_manual() {
    let server = RedisServer::start();
    if version() < 7 {
        // Redis 6 has neither `COMMAND LIST` nor `ACL DRYRUN`, but lists what it allows.
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
    // What has subcommands is none itself.
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
fn the_user_may_touch_nothing_but_locks_and_their_channels() {
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
    assert_eq!(seen, granted(&rules), "each has been looked at");
}

/// A script may do no more than who sends it.
#[test]
fn the_user_may_do_no_more_in_a_script() {
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
        // 7.0, and later ones.
        let wordings = [
            "The user executing the script can't",
            "ACL failure in script",
        ];
        let is_denied = wordings.iter().any(|wording| denied.contains(wording));
        assert!(is_denied, "{command}: {denied}");
    }
    assert_eq!(server.cli(&["GET", "other"]), "untouched");
}

/// Connecting succeeds without: the votes of a quorum, and a quarantine; a slot on its way to
/// another node; a connection that the pool lends again.
const NOT_TRIED: [&str; 5] = ["get", "set", "info", "asking", "unwatch"];

#[tokio::test]
async fn without_any_of_the_permissions_the_user_is_refused_at_once() {
    let server = RedisServer::start();
    is_refused_without_any(LOCKER, &[&server], || at(&server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_of_the_permissions_the_user_is_refused_in_a_cluster() {
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
        // Redis 6 can add a subcommand, but not take it away.
        let words = rules.split_ascii_whitespace();
        let others = words.filter(|word| word.strip_prefix('+') != Some(permission));
        let rules = others.collect::<Vec<_>>().join(" ");
        servers.iter().for_each(|server| allow(server, &rules));
        match builder().connect().await {
            Ok(_) => assert!(NOT_TRIED.contains(&permission), "{permission} is needed"),
            Err(ConnectError::Refused { .. }) => {
                assert!(!NOT_TRIED.contains(&permission), "{permission} is tried");
            }
            Err(error) => panic!("without {permission}: {error:?}"),
        }
    }
}

/// The pool asks for it before it lends a connection again, and opens a new one if it may not.
#[tokio::test]
async fn connections_that_wait_for_replicas_are_used_again() {
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

/// Names that are shared with Java have no prefix to allow them by.
#[tokio::test]
async fn without_a_prefix_the_user_has_the_names_themselves() {
    const BESIDE_THE_NAMES: &str = "~self-test:* ~{fencing-token*";
    assert!(include_str!("../src/guide/redisson.rs").contains(BESIDE_THE_NAMES));
    let server = RedisServer::start();
    let names = format!("~order:* {BESIDE_THE_NAMES}");
    allow(&server, &LOCKER.replace("~lock:*", &names));
    let backend = at(&server.url()).prefix("").connect().await.unwrap();
    let locks = LockManager::builder(backend).build().unwrap();
    let guard = locks.acquire("order:42").await.unwrap();
    guard.release().await.unwrap();
    let refused = locks.acquire("invoice:42").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misconfigured);
}

/// What is given up for it, and what it takes to have it.
#[tokio::test]
async fn with_more_permissions_the_backend_tells_more() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    for (more, tells) in [("", false), ("+hgetall +info", true)] {
        allow(&server, &format!("{LOCKER} {more}"));
        let backend = at(&server.url()).connect().await.unwrap();
        assert_eq!(backend.warnings().len(), usize::from(tells));
        let [here, there] = [backend.clone(), backend]
            .map(|backend| LockManager::builder(backend).build().unwrap());
        let guard = here.acquire("a").await.unwrap();
        let info = there.inspect("a").await.unwrap().unwrap();
        // The part of an owner that is a process.
        let owner = guard.owner().to_string();
        let owner = owner.split(':').next().unwrap();
        assert_eq!(format!("{info:?}").contains(owner), tells, "{info:?}");
    }
}
