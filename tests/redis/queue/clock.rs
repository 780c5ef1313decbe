//! A server whose clock steps back, or a promoted replica with a slower clock.

use super::model::{Counted, Reply, lease};
use super::scripts::{CHANNEL, Call};
use super::server::FrozenServer;

const TTL: i64 = 30_000;

#[test]
fn clock_step_back_ends_turn_of_others() {
    let mut server = FrozenServer::start();
    let _other = server.subscribe(&[CHANNEL.to_owned()]);
    let mut connection = server.connect();
    let mut run = |call: Call| call.run(&mut connection, Counted::All).0;
    let contend = |number| Call::Contend {
        lease: lease(number),
        ttl: TTL,
        listens: true,
    };
    assert_eq!(run(contend(1)), Reply::Granted(0));
    // Left to the client outside the queue.
    assert_eq!(run(Call::Release(lease(1))), Reply::Number(3));
    server.advance(-60_000);
    assert_eq!(run(contend(2)), Reply::Granted(0));
}

fn share(number: u64, ttl: i64) -> Call {
    let lease = format!("s{}", lease(number));
    Call::Share { lease, ttl }
}

fn renew_shared(number: u64) -> Call {
    Call::RenewShared {
        lease: format!("s{}", lease(number)),
        ttl: TTL,
        alone: false,
    }
}

/// A step ahead ends the leases of both modes, and no renewal revives them.
#[test]
fn clock_step_ahead_ends_shared_leases() {
    let mut server = FrozenServer::start();
    let mut connection = server.connect();
    let mut run = |call: Call| call.run(&mut connection, Counted::All).0;
    assert_eq!(run(share(1, TTL)), Reply::Granted(0));
    assert_eq!(run(share(2, 2 * TTL)), Reply::Granted(0));
    server.advance(TTL + 1);
    assert_eq!(run(renew_shared(1)), Reply::Number(0));
    assert_eq!(run(renew_shared(2)), Reply::Number(1));
    server.advance(2 * TTL);
    assert_eq!(run(renew_shared(2)), Reply::Number(0));
    let acquire = Call::Acquire {
        lease: lease(3),
        ttl: TTL,
    };
    assert_eq!(run(acquire), Reply::Granted(0));
}

/// A step back makes the leases last longer, as exclusive ones do. The release of one ends no other, and the last one
/// frees the lock.
#[test]
fn clock_step_back_keeps_shared_leases() {
    let mut server = FrozenServer::start();
    let mut connection = server.connect();
    let mut run = |call: Call| call.run(&mut connection, Counted::All).0;
    assert_eq!(run(share(1, TTL)), Reply::Granted(0));
    server.advance(-60_000);
    assert_eq!(run(share(2, TTL)), Reply::Granted(0));
    for number in [1, 2] {
        assert_eq!(run(renew_shared(number)), Reply::Number(1));
    }
    let acquire = || Call::Acquire {
        lease: lease(3),
        ttl: TTL,
    };
    let later = TTL + 60_000;
    assert_eq!(run(acquire()), Reply::Outside(later));
    assert_eq!(run(Call::Release(lease(1))), Reply::Number(1));
    assert_eq!(run(acquire()), Reply::Outside(TTL));
    assert_eq!(run(Call::Release(lease(2))), Reply::Number(1));
    assert_eq!(run(acquire()), Reply::Granted(0));
}
