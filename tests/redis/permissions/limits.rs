//! The documented user can run no other commands, and needs each of its permissions.

use std::collections::BTreeSet;
use std::time::Duration;

use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{ConnectError, RedisBackend};

use super::{
    CHANNEL, LOCKER, SINCE_7, WITH_FORCE, WITH_QUARANTINE, WITH_SHARED, allow, at, granted, rules,
    with_everything,
};
use crate::support::cluster::Cluster;
use crate::support::process::version;
use crate::support::redis_server::RedisServer;

/// The permissions without which a backend connects but serves no queue.
const FOR_QUEUES: [&str; 6] = [
    "zadd",
    "zrem",
    "zscore",
    "zcount",
    "zrange",
    "zrevrangebyscore",
];

/// Commands that every user may run, regardless of rules.
const EVERYBODY: [&str; 4] = ["auth", "hello", "quit", "reset"];

const KEY: &str = "lock:a";

/// Returns the rules of a user that uses each option.
fn all_rules() -> String {
    format!("{} {WITH_SHARED} {WITH_FORCE}", rules())
}

/// The commands that name a key or a channel.
const WITH_NAMES: [&str; 26] = [
    "get KEY",
    "incrby KEY 1",
    "set KEY v",
    "del KEY",
    "exists KEY",
    "hset KEY f v",
    "hdel KEY f",
    "hlen KEY",
    "hexists KEY f",
    "hget KEY f",
    "hgetall KEY",
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

#[test]
fn documented_user_runs_only_listed_commands() {
    let server = RedisServer::start();
    if version() < 7 {
        // Redis 6 has neither `COMMAND LIST` nor `ACL DRYRUN`, but lists the allowed commands.
        allow(&server, &all_rules());
        let user = server.cli(&["ACL", "GETUSER", "locker"]);
        let allowed = user.lines().find(|line| line.starts_with("-@all"));
        // The category consists of these and of `script`.
        let is_exact = |line: &str| line.contains("+@scripting") && line.contains("-script");
        assert!(allowed.is_some_and(is_exact), "{user}");
        let allowed = allowed.unwrap().replace("+@scripting", "+eval +evalsha");
        assert_eq!(granted(&allowed), granted(&all_rules()));
        return;
    }
    let list = server.cli(&["COMMAND", "LIST"]);
    // A container of subcommands is not a command.
    let is_command = |name: &&str| !list.contains(&format!("\n{name}|"));
    let all: BTreeSet<_> = list.lines().filter(is_command).collect();
    assert!(all.len() > 300, "{}", all.len());
    for rules in [LOCKER.to_owned(), rules(), all_rules()] {
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
    let rules = all_rules();
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

/// The server has the scripts that need no quarantine. The others follow them, because it must be sent their source.
#[tokio::test]
async fn partly_loaded_scripts_show_missing_permission() {
    let server = RedisServer::start();
    let quarantined = || at(&server.url()).quarantine(Duration::from_millis(1));
    let rules = format!("{LOCKER} {WITH_QUARANTINE}");
    for permission in granted(&rules) {
        server.cli(&["SCRIPT", "FLUSH"]);
        RedisBackend::builder(server.url()).connect().await.unwrap();
        allow(&server, &without(&rules, permission));
        let outcome = quarantined().connect().await;
        let is_tried =
            !FOR_QUEUES.contains(&permission) && !["set", "unwatch"].contains(&permission);
        assert_eq!(outcome.is_err(), is_tried, "without {permission}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permission_rejects_cluster_connect() {
    let cluster = Cluster::start();
    let nodes: Vec<_> = (0..6).map(|node| cluster.node(node)).collect();
    let url = cluster.url();
    is_refused_without_any(&rules(), &nodes, || with_everything(&url)).await;
}

fn without(rules: &str, permission: &str) -> String {
    // Redis 6 can add a subcommand, but cannot remove it.
    let words = rules.split_ascii_whitespace();
    let others = words.filter(|word| word.strip_prefix('+') != Some(permission));
    others.collect::<Vec<_>>().join(" ")
}

async fn is_refused_without_any(
    rules: &str,
    servers: &[&RedisServer],
    builder: impl Fn() -> RedisBackendBuilder,
) {
    for permission in granted(rules) {
        let rules = without(rules, permission);
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
