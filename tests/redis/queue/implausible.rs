//! A server that counts subscribers wrongly: Valkey 9.1 returns hundreds of millions for some numbers of them.

use super::model::{Counted, Reply, lease};
use super::scripts::{Call, Flavor};
use super::server::FrozenServer;

const TTL: i64 = 30_000;

/// The time between two turns of the clients outside the queue, where they cannot be counted.
const PAUSE: i64 = 500;

/// Clients that do not exist would have a turn between any two holders.
#[test]
fn implausible_count_begins_one_turn_per_pause() {
    let mut server = FrozenServer::start();
    let mut connection = server.connect();
    let mut run = |call: Call| {
        call.run_as(Flavor::Implausible, &mut connection, Counted::All)
            .0
    };
    let contend = |number| Call::Contend {
        lease: lease(number),
        ttl: TTL,
        listens: false,
    };
    let mut turns = 0;
    for _ in 0..3 {
        for number in [1, 2].repeat(10) {
            // A turn passes without a client.
            let mut attempts = (0..20).map(|_| {
                server.advance(1);
                run(contend(number))
            });
            let is_granted = |reply| matches!(reply, Reply::Granted(_) | Reply::Again(_));
            assert!(attempts.any(is_granted));
            run(contend(3 - number));
            turns += i64::from(run(Call::Release(lease(number))) == Reply::Number(3));
        }
        server.advance(PAUSE);
    }
    assert!((1..=4).contains(&turns), "{turns} turns");
}

#[test]
fn implausible_count_passes_lease_to_others() {
    let server = FrozenServer::start();
    let mut connection = server.connect();
    let mut run = |call: Call| {
        call.run_as(Flavor::Implausible, &mut connection, Counted::All)
            .0
    };
    let acquire = Call::Acquire {
        lease: lease(1),
        ttl: TTL,
    };
    assert!(matches!(run(acquire), Reply::Granted(_)));
    let pass = Call::Pass {
        lease: lease(1),
        ttl: TTL,
        own: 1,
        next: None,
    };
    // Clients that cannot be counted have a turn.
    assert_eq!(run(pass), Reply::Passed(1, 3, 0));
}
