//! A single attempt, which has no place, beside the queue and clients outside of it.

use redis::Connection;

use super::model::{Counted, Reply, lease, manager_name};
use super::scripts::{BODY, CHANNEL, Call};
use super::server::FrozenServer;

const TTL: i64 = 30_000;

fn acquire(number: u64) -> Call {
    Call::Acquire {
        lease: lease(number),
        ttl: TTL,
    }
}

/// Acquires as Redisson does, and returns `true` if the key was free.
fn acquire_outside(connection: &mut Connection) -> bool {
    let script = "if redis.call('exists', KEYS[1]) == 1 then return 0 end
        redis.call('hincrby', KEYS[1], 'outside', 1)
        return redis.call('pexpire', KEYS[1], 30000)";
    let mut eval = redis::cmd("EVAL");
    let reply: i64 = eval.arg(script).arg(1).arg(BODY).query(connection).unwrap();
    reply == 1
}

/// It competes for the turn of the clients outside the queue. Between the turns, the key is never free for it.
#[test]
fn single_attempt_uses_one_turn_of_others() {
    let server = FrozenServer::start();
    let _outside = server.subscribe(&[CHANNEL.to_owned()]);
    let _processes = [1, 2].map(|number| {
        let own = format!("{CHANNEL}%{}", manager_name(number));
        server.subscribe(&[format!("{CHANNEL}%w"), own, CHANNEL.to_owned()])
    });
    let mut outside = server.connect();
    let mut connection = server.connect();
    let mut run = |call: Call| call.run(&mut connection, Counted::All).0;
    let contend = |number| Call::Contend {
        lease: lease(number),
        ttl: TTL,
        listens: true,
    };
    let release = |number| Call::Release(lease(number));
    let is_busy = |reply| matches!(reply, Reply::Outside(_));
    let waits = |reply| matches!(reply, Reply::Waiting(..));
    assert_eq!(run(contend(1)), Reply::Granted(0));
    assert!(waits(run(contend(2))));
    assert_eq!(run(release(1)), Reply::Number(2));
    assert!(is_busy(run(acquire(3))), "transferred");
    assert_eq!(run(contend(2)), Reply::Again(Some(0)));
    assert!(waits(run(contend(1))));
    // Their turn comes before the place of the last waiter.
    assert_eq!(run(release(2)), Reply::Number(3));
    assert!(waits(run(contend(1))), "a turn of others");
    assert_eq!(run(acquire(3)), Reply::Granted(0));
    assert!(!acquire_outside(&mut outside));
    assert!(waits(run(contend(2))));
    assert_eq!(run(release(3)), Reply::Number(2));
    assert!(is_busy(run(acquire(3))), "transferred");
    assert_eq!(run(contend(1)), Reply::Again(Some(0)));
    // The next turn comes as if a client outside the queue had used the last one.
    assert_eq!(run(release(1)), Reply::Number(2));
    assert_eq!(run(contend(2)), Reply::Again(Some(0)));
    assert_eq!(run(release(2)), Reply::Number(3));
    assert!(acquire_outside(&mut outside));
    assert!(is_busy(run(acquire(3))));
}
