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
