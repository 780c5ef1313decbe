//! The commands that the scripts run. Shared locks and permits add none to the calls for exclusive ones.

use std::collections::BTreeMap;

use redis::Connection;

use super::model::{Counted, Reply, lease};
use super::scripts::Call;
use super::server::FrozenServer;

const TTL: i64 = 30_000;

fn renew(manager: u64) -> Call {
    Call::Renew {
        lease: lease(manager),
        ttl: TTL,
    }
}

/// The mode is the first letter of the name.
fn share(mode: &str) -> Call {
    Call::Share {
        lease: format!("{mode}{}", lease(1)),
        ttl: TTL,
    }
}

fn acquire(manager: u64) -> Call {
    Call::Acquire {
        lease: lease(manager),
        ttl: TTL,
    }
}

/// A later attempt.
fn contend(manager: u64) -> Call {
    Call::Contend {
        lease: lease(manager),
        ttl: TTL,
        listens: true,
    }
}

/// Runs a call. Returns the reply, and the commands of its script in alphabetical order.
fn commands_of(connection: &mut Connection, call: &Call) -> (Reply, Vec<String>) {
    let mut reset = redis::cmd("CONFIG");
    reset.arg("RESETSTAT").exec(connection).unwrap();
    let reply = call.run(connection, Counted::All).0;
    let mut info = redis::cmd("INFO");
    let info: String = info.arg("commandstats").query(connection).unwrap();
    let mut commands = BTreeMap::new();
    for line in info.lines() {
        // `cmdstat_pubsub|numsub:calls=1,usec=…`. Redis 6.2 has no subcommands.
        let Some((name, counts)) = line
            .strip_prefix("cmdstat_")
            .and_then(|it| it.split_once(":calls="))
        else {
            continue;
        };
        let name = name.split('|').next().unwrap();
        let count: usize = counts.split(',').next().unwrap().parse().unwrap();
        if !["eval", "config", "info"].contains(&name) {
            *commands.entry(name.to_owned()).or_insert(0) += count;
        }
    }
    let each = commands.into_iter();
    let each = each.flat_map(|(name, count)| std::iter::repeat_n(name, count));
    (reply, each.collect())
}

fn owned(commands: &[&str]) -> Vec<String> {
    commands.iter().map(ToString::to_string).collect()
}

#[test]
fn exclusive_calls_run_few_commands() {
    let server = FrozenServer::start();
    let mut connection = server.connect();
    let mut run = |call: &Call| commands_of(&mut connection, call);
    // The first grant of a server takes its counter from the clock.
    for call in [acquire(1), Call::Release(lease(1))] {
        run(&call);
    }
    let granted = ["hset", "incrby", "pexpire", "pttl", "time"];
    let calls = [
        (acquire(1), Reply::Granted(0), &granted[..]),
        (acquire(2), Reply::Outside(TTL), &["hexists", "pttl"]),
        (renew(1), Reply::Number(1), &["hexists", "pttl"]),
        (
            Call::Release(lease(1)),
            Reply::Number(1),
            &["exists", "hdel", "publish"],
        ),
    ];
    for (call, reply, commands) in calls {
        let (replied, ran) = run(&call);
        assert_eq!((replied, ran), (reply, owned(commands)), "{call:?}");
    }
}

/// An attempt waits for shared leases and permits by the commands by which it waits for an exclusive lease.
#[test]
fn waiting_behind_others_runs_no_further_command() {
    let server = FrozenServer::start();
    let mut connection = server.connect();
    let mut ran = Vec::new();
    for holder in [acquire(1), share("s"), share("p")] {
        let mut run = |call: &Call| commands_of(&mut connection, call);
        assert!(matches!(run(&holder).0, Reply::Granted(_)), "{holder:?}");
        assert_eq!(run(&acquire(2)).0, Reply::Outside(TTL), "{holder:?}");
        let attempts = [contend(2), contend(2)].map(|attempt| {
            let (reply, commands) = run(&attempt);
            assert!(matches!(reply, Reply::Waiting(..)), "{reply:?}");
            commands
        });
        ran.push(attempts);
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
    }
    assert_eq!(ran[1], ran[0]);
    assert_eq!(ran[2], ran[0]);
}
