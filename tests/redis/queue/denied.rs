//! Permissions that a user loses while it holds and waits.

use redis::Connection;

use super::model::{Counted, Reply, lease};
use super::scripts::{BODY, Call, QUEUE};
use super::server::FrozenServer;

const TTL: i64 = 30_000;

const COUNTS: [Counted; 3] = [Counted::All, Counted::Ours, Counted::Nothing];

fn reader(manager: u64) -> String {
    format!("s{}", lease(manager))
}

fn share(manager: u64) -> Call {
    Call::Share {
        lease: reader(manager),
        ttl: TTL,
    }
}

/// A waiter that polls.
fn contend(lease: String) -> Call {
    Call::Contend {
        lease,
        ttl: TTL,
        listens: false,
    }
}

fn is_granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Granted(_) | Reply::Again(_))
}

fn set_rule(connection: &mut Connection, rule: &str) {
    let mut set = redis::cmd("ACL");
    set.arg(&["SETUSER", "default", rule]);
    set.exec(connection).unwrap();
}

/// Gives the clients outside the queue a place.
fn place_others(connection: &mut Connection, ticket: u8) {
    let mut place = redis::cmd("ZADD");
    place.arg(QUEUE).arg(ticket).arg("~");
    place.exec(connection).unwrap();
}

/// The attempt of a writer serves the free lock to a reader, and then cannot count the clients behind it.
#[test]
fn denied_count_grants_lock_once() {
    for counted in COUNTS {
        let mut server = FrozenServer::start();
        let mut connection = server.connect();
        let run = |connection: &mut _, call: &Call| call.run(connection, counted).0;
        let acquire = Call::Acquire {
            lease: lease(1),
            ttl: 50,
        };
        assert_eq!(run(&mut connection, &acquire), Reply::Granted(0));
        assert!(!is_granted(&run(&mut connection, &contend(reader(2)))));
        place_others(&mut connection, 2);
        assert!(!is_granted(&run(&mut connection, &contend(lease(3)))));
        set_rule(&mut connection, "-pubsub");
        server.advance(51);
        let granted = is_granted(&run(&mut connection, &contend(lease(3))));
        let mut fields: Vec<String> = redis::cmd("HKEYS")
            .arg(BODY)
            .query(&mut connection)
            .unwrap();
        fields.sort();
        let expected = match granted {
            true => vec![lease(3)],
            false => vec!["mode".to_owned(), reader(2)],
        };
        assert_eq!(fields, expected, "{counted:?}");
    }
}

#[test]
fn denied_count_lets_no_reader_pass_writer() {
    for counted in COUNTS {
        let server = FrozenServer::start();
        let mut connection = server.connect();
        let run = |connection: &mut _, call: &Call| call.run(connection, counted).0;
        assert_eq!(run(&mut connection, &share(1)), Reply::Granted(0));
        place_others(&mut connection, 1);
        assert!(!is_granted(&run(&mut connection, &contend(lease(2)))));
        set_rule(&mut connection, "-pubsub");
        let renew = Call::RenewShared {
            lease: reader(1),
            ttl: TTL,
            alone: false,
        };
        let wanted = Reply::Number(2);
        assert_eq!(run(&mut connection, &renew), wanted, "{counted:?}");
        for call in [share(3), contend(reader(3))] {
            let reply = run(&mut connection, &call);
            assert!(!is_granted(&reply), "{counted:?}: {call:?}: {reply:?}");
        }
    }
}

/// Otherwise the reply would be that of a lease that is not held.
#[test]
fn denied_read_is_error_of_release() {
    let server = FrozenServer::start();
    let mut connection = server.connect();
    let run = |connection: &mut _, call: &Call| call.run(connection, Counted::All).0;
    for manager in [1, 2] {
        assert_eq!(run(&mut connection, &share(manager)), Reply::Granted(0));
    }
    set_rule(&mut connection, "-hget");
    let force = Call::Force {
        holder: reader(1),
        spares: true,
    };
    for call in [Call::Release(lease(1)), Call::Leave(lease(1)), force] {
        assert_eq!(run(&mut connection, &call), Reply::Error, "{call:?}");
    }
    let unheld = Call::Release(lease(3));
    assert_eq!(run(&mut connection, &unheld), Reply::Number(0));
    set_rule(&mut connection, "+hget");
    let held = Call::Release(lease(1));
    assert_eq!(run(&mut connection, &held), Reply::Number(1));
}
