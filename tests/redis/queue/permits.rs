//! Cases of permits, one test each. The limit of each is 2.

use redis::Connection;

use super::model::{Counted, Reply, limit_of};
use super::scripts::{CHANNEL, Call};
use super::server::FrozenServer;

const TTL: i64 = 30_000;

fn manager(number: u8) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

fn lease(number: u8) -> String {
    format!("{}:1", manager(number))
}

fn permit(number: u8) -> String {
    format!("p{}", lease(number))
}

fn run(connection: &mut Connection, call: &Call) -> Reply {
    call.run(connection, Counted::All).0
}

fn share(number: u8, ttl: i64) -> Call {
    let lease = permit(number);
    Call::Share { lease, ttl }
}

fn contend(number: u8, listens: bool) -> Call {
    Call::Contend {
        lease: permit(number),
        ttl: TTL,
        listens,
    }
}

#[test]
fn forced_release_of_permit_notifies_waiter() {
    let server = FrozenServer::start();
    let mut connection = server.connect();
    let own = format!("{CHANNEL}%{}", manager(3));
    let channels = [format!("{CHANNEL}%w"), own.clone(), CHANNEL.to_owned()];
    let mut process = server.subscribe(&channels);
    for number in [1, 2] {
        let reply = run(&mut connection, &share(number, TTL));
        assert_eq!(reply, Reply::Granted(0));
    }
    let waits = run(&mut connection, &contend(3, true));
    assert!(matches!(waits, Reply::Waiting(..)), "{waits:?}");
    let force = Call::Force {
        holder: permit(1),
        spares: true,
    };
    assert_eq!(run(&mut connection, &force), Reply::Number(1));
    let message = process.recv_response().unwrap();
    let (_, channel, text): (String, String, String) = redis::from_redis_value(message).unwrap();
    assert_eq!((channel, text), (own, lease(3)));
}

/// The place of an expired permit is free at once, and only that.
#[test]
fn expired_permit_is_not_counted() {
    assert_eq!(limit_of(&permit(1)), Some(2));
    let mut server = FrozenServer::start();
    let mut connection = server.connect();
    for (number, ttl) in [(1, 100), (2, TTL)] {
        let reply = run(&mut connection, &share(number, ttl));
        assert_eq!(reply, Reply::Granted(0));
    }
    assert_eq!(run(&mut connection, &share(3, TTL)), Reply::Outside(100));
    server.advance(100);
    assert_eq!(run(&mut connection, &share(3, TTL)), Reply::Granted(0));
    let left = Reply::Outside(TTL - 100);
    assert_eq!(run(&mut connection, &share(4, TTL)), left);
    let renew = |number| Call::RenewShared {
        lease: permit(number),
        ttl: TTL,
        alone: false,
    };
    assert_eq!(run(&mut connection, &renew(1)), Reply::Number(0));
    assert_eq!(run(&mut connection, &renew(2)), Reply::Number(1));
}
