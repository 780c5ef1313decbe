//! Cases of shared leases, one test each.

use redis::Connection;

use super::model::{Counted, Reply};
use super::scripts::{BODY, CHANNEL, Call, QUEUE};
use super::server::FrozenServer;

const TTL: i64 = 30_000;

fn manager(number: u8) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

fn writer(number: u8) -> String {
    format!("{}:1", manager(number))
}

/// Returns the name of a shared lease.
fn reader(number: u8) -> String {
    format!("s{}", writer(number))
}

fn share(number: u8, ttl: i64) -> Call {
    let lease = reader(number);
    Call::Share { lease, ttl }
}

fn renew(number: u8) -> Call {
    Call::RenewShared {
        lease: reader(number),
        ttl: TTL,
        alone: false,
    }
}

fn contend(lease: String) -> Call {
    Call::Contend {
        lease,
        ttl: TTL,
        listens: false,
    }
}

fn waits(reply: &Reply) -> bool {
    matches!(reply, Reply::Waiting(..))
}

fn run(connection: &mut Connection, call: &Call) -> Reply {
    call.run(connection, Counted::All).0
}

fn await_no_subscriber(connection: &mut Connection) {
    let mut count = || -> usize {
        let mut count = redis::cmd("PUBSUB");
        let count = count.arg("NUMSUB").arg(CHANNEL).query(connection);
        let (_, count): (String, usize) = count.unwrap();
        count
    };
    while count() > 0 {
        std::thread::yield_now();
    }
}

fn ttl(connection: &mut Connection) -> i64 {
    redis::cmd("PTTL").arg(BODY).query(connection).unwrap()
}

/// Otherwise the next waiter would hold the lock together with the other readers.
#[test]
fn forced_release_of_expired_reader_spares_others() {
    let mut server = FrozenServer::start();
    let mut connection = server.connect();
    assert_eq!(run(&mut connection, &share(1, 100)), Reply::Granted(0));
    assert_eq!(run(&mut connection, &share(2, TTL)), Reply::Granted(0));
    assert!(waits(&run(&mut connection, &contend(writer(3)))));
    server.advance(200);
    let force = |number, spares| Call::Force {
        holder: reader(number),
        spares,
    };
    assert_eq!(run(&mut connection, &force(1, true)), Reply::Number(0));
    let inspected = run(&mut connection, &Call::Inspect);
    assert_eq!(inspected, Reply::Shared(TTL - 200, 1, 1, reader(2)));
    assert!(waits(&run(&mut connection, &contend(writer(3)))));
    assert_eq!(run(&mut connection, &force(2, true)), Reply::Number(2));
}

/// The body lasts until the latest deadline, so the lease of the later one must not end before.
#[test]
fn repeated_share_with_shorter_ttl_keeps_deadline() {
    let server = FrozenServer::start();
    let mut connection = server.connect();
    assert_eq!(run(&mut connection, &share(1, TTL)), Reply::Granted(0));
    assert_eq!(run(&mut connection, &share(1, 100)), Reply::Again(None));
    let till: i64 = redis::cmd("HGET")
        .arg(&[BODY, &reader(1)])
        .query(&mut connection)
        .unwrap();
    assert_eq!(till, server.now() + TTL);
    assert_eq!(ttl(&mut connection), TTL);
}

#[test]
fn expired_reader_waits_behind_writer() {
    let mut server = FrozenServer::start();
    let mut connection = server.connect();
    assert_eq!(run(&mut connection, &share(1, 100)), Reply::Granted(0));
    assert_eq!(run(&mut connection, &share(2, TTL)), Reply::Granted(0));
    assert!(waits(&run(&mut connection, &contend(writer(3)))));
    assert_eq!(run(&mut connection, &share(1, 100)), Reply::Again(None));
    server.advance(200);
    let left = TTL - 200;
    assert_eq!(run(&mut connection, &share(1, TTL)), Reply::Outside(left));
    assert!(waits(&run(&mut connection, &contend(reader(1)))));
}

/// The attempt of a reader serves the free lock, first to another reader.
#[test]
fn reader_behind_served_reader_is_granted() {
    let mut server = FrozenServer::start();
    let mut connection = server.connect();
    let _process = server.subscribe(&[
        format!("{CHANNEL}%w"),
        format!("{CHANNEL}%{}", manager(3)),
        CHANNEL.to_owned(),
    ]);
    let acquire = Call::Acquire {
        lease: writer(1),
        ttl: 50,
    };
    assert_eq!(run(&mut connection, &acquire), Reply::Granted(0));
    let listening = Call::Contend {
        lease: reader(3),
        ttl: TTL,
        listens: true,
    };
    let polling = [reader(2), writer(4), reader(5)].map(contend);
    for call in [&polling[0], &listening, &polling[1], &polling[2]] {
        assert!(waits(&run(&mut connection, call)), "{call:?}");
    }
    server.advance(51);
    assert_eq!(run(&mut connection, &listening), Reply::Granted(0));
    assert_eq!(run(&mut connection, &polling[0]), Reply::Again(None));
    assert!(waits(&run(&mut connection, &polling[2])));
}

/// A writer leaves that was ahead of clients outside the queue, which have left as well, and of a reader.
#[test]
fn place_of_gone_clients_stops_no_reader() {
    let mut server = FrozenServer::start();
    let mut connection = server.connect();
    assert_eq!(run(&mut connection, &share(1, TTL)), Reply::Granted(0));
    assert!(waits(&run(&mut connection, &contend(writer(2)))));
    let outside = server.subscribe(&[CHANNEL.to_owned()]);
    assert_eq!(run(&mut connection, &renew(1)), Reply::Number(2));
    assert!(waits(&run(&mut connection, &contend(reader(3)))));
    drop(outside);
    // The next attempt of the reader is due, so it can be served.
    server.advance(10);
    await_no_subscriber(&mut connection);
    assert_eq!(
        run(&mut connection, &Call::Leave(writer(2))),
        Reply::Number(0)
    );
    let exists: bool = redis::cmd("EXISTS")
        .arg(QUEUE)
        .query(&mut connection)
        .unwrap();
    assert!(!exists, "the reader has no place");
    assert_eq!(
        run(&mut connection, &contend(reader(3))),
        Reply::Again(None)
    );
}

/// A client outside the queue does not starve among readers that hold the lock too briefly for a renewal.
#[test]
fn reader_does_not_pass_client_outside_queue() {
    let server = FrozenServer::start();
    let mut connection = server.connect();
    assert_eq!(run(&mut connection, &share(1, TTL)), Reply::Granted(0));
    let _outside = server.subscribe(&[CHANNEL.to_owned()]);
    assert_eq!(run(&mut connection, &share(2, TTL)), Reply::Outside(TTL));
    assert_eq!(run(&mut connection, &share(1, TTL)), Reply::Again(None));
    let release = |number| Call::Release(writer(number));
    // It is left to the client.
    assert_eq!(run(&mut connection, &release(1)), Reply::Number(3));
    assert_eq!(run(&mut connection, &share(2, TTL)), Reply::Granted(0));
    assert!(waits(&run(&mut connection, &contend(reader(3)))));
    assert_eq!(run(&mut connection, &release(2)), Reply::Number(3));
}

/// A server of a Cluster does not count the clients that listen to plain messages at other nodes.
#[test]
fn readers_leave_turns_to_clients_at_their_node() {
    for counted in [Counted::Ours, Counted::Nothing] {
        let mut server = FrozenServer::start();
        let mut connection = server.connect();
        let mut run = |call: &Call| call.run(&mut connection, counted).0;
        assert_eq!(run(&share(1, TTL)), Reply::Granted(0));
        assert_eq!(run(&renew(1)), Reply::Number(1), "no client listens");
        let _outside = server.subscribe(&[CHANNEL.to_owned()]);
        assert_eq!(run(&renew(1)), Reply::Number(2), "{counted:?}");
        assert_eq!(run(&share(2, TTL)), Reply::Outside(TTL));
        assert_eq!(run(&Call::Release(writer(1))), Reply::Number(3));
        assert_eq!(run(&share(2, TTL)), Reply::Granted(0));
        let soon = "a turn began less than 500 ms ago";
        assert_eq!(run(&renew(2)), Reply::Number(1), "{soon}");
        server.advance(500);
        assert_eq!(run(&renew(2)), Reply::Number(2));
    }
}

/// A client that listens at another node may still wait, so its place stays for the time when the lock is free.
#[test]
fn place_of_uncounted_clients_stops_no_reader() {
    for counted in [Counted::Ours, Counted::Nothing] {
        let server = FrozenServer::start();
        let mut connection = server.connect();
        let mut run = |call: &Call| call.run(&mut connection, counted).0;
        assert_eq!(run(&share(1, TTL)), Reply::Granted(0));
        let outside = server.subscribe(&[CHANNEL.to_owned()]);
        assert_eq!(run(&renew(1)), Reply::Number(2), "{counted:?}");
        drop(outside);
        await_no_subscriber(&mut server.connect());
        assert_eq!(run(&renew(1)), Reply::Number(1), "{counted:?}");
        assert_eq!(run(&share(2, TTL)), Reply::Granted(0));
        assert_eq!(run(&contend(reader(3))), Reply::Granted(0));
        for number in [1, 2] {
            assert_eq!(run(&Call::Release(writer(number))), Reply::Number(1));
        }
        assert_eq!(run(&Call::Release(writer(3))), Reply::Number(3));
    }
}
